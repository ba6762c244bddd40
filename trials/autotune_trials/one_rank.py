"""One rank as its node sees it: its process, its files, and what it has said."""

import statistics
import time
from collections.abc import Mapping
from pathlib import Path
from subprocess import Popen
from typing import Any

from autotune_trials.events import EventReader
from autotune_trials.status import RankStatus


class Rank:
    """What is known of one rank.

    Args:
        rank: Global rank.
        process: The process itself, a direct child.
        events: File that it appends its events to.
        stacks: File that takes its stacks.
    """

    def __init__(self, rank: int, process: Popen[bytes], events: Path, stacks: Path) -> None:
        self.rank = rank
        self.stacks = stacks
        self.process = process
        self.reader = EventReader(events)
        self.heard_s = time.monotonic()
        self.killed = False
        self.last_event: str | None = None
        self.last_step = 0
        self.peak_memory_bytes: int | None = None
        self.failure: dict[str, str] | None = None
        self.num_events = 0
        self.own_step_times_s: list[float] = []

    def take(self, event: Mapping[str, Any]) -> None:
        """Remember what belongs to the rank itself."""
        self.num_events += 1
        if event["event"] == "alive":
            return
        self.last_event = event["event"]
        self.last_step = _whole(event.get("step")) or self.last_step
        if isinstance(own_s := event.get("own_time_s", event.get("step_time_s")), float):
            self.own_step_times_s.append(own_s)
        if self.last_event == "finished":
            self.peak_memory_bytes = _whole(event.get("peak_memory_bytes"))
        elif self.last_event == "failed":
            self.failure = {name: str(event.get(name, "")) for name in ("kind", "error", "message")}

    def status(self) -> RankStatus:
        """How it stands."""
        return RankStatus(
            self.rank, self.process.returncode, self.killed, self.last_event, self.last_step,
            self.peak_memory_bytes, self.failure, self.num_events, self._median_step_time_s(),
        )  # fmt: skip

    def _median_step_time_s(self) -> float | None:
        later = self.own_step_times_s[1:] if self.process.returncode is not None else []
        return statistics.median(later) if later else None


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
