"""What a rank tells the outside: one JSON line per event, appended to its own file on the node.

A file survives whatever kills the rank, and needs no reader. Order within one rank:

    started -> imported -> built -> step ... step -> finished
                                `-> failed (at any point, when the rank could still say why)

Every event has ``event`` and ``time_s`` (Unix time). Further fields:

    started   pid
    imported  rss_bytes (resident memory before anything is allocated)
    built     resolved (see below; only one rank carries it), build_s; claim (every rank's own, see claims.py)
    step      step (from 1), step_time_s; on one rank also loss, grad_norm, tokens; on the others it is the heartbeat
    alive     (a sign of life of a rank that has nothing else to say)
    finished  steps, peak_memory_bytes, peak_memory_kind (``rss_over_imports`` on a CPU: peak resident memory minus
              that after imports; ``cuda_allocated``; ``log_lines``; ``rss`` of a command's processes on a CPU; null and
              ``not_said`` where a command's rank printed none); resolved and claim, as
              they are at the end; profile (on one rank of a profiled run: rank, steps, host, trace, and seconds per
              step by part, see native/trace.py)
    failed    kind (rejected: the configuration was refused at build | out_of_memory | numerics | exception), error
              (class name), message

``resolved`` is read back from the objects that were built, never copied from the request:

    {"settings": {canonical name: value in force}, "dispatcher_class", "schedule", "stages": [[...] per rank and chunk],
     "megatron_core", "torch", "versions": {...}, "world_size", "num_parameters"}

In a native or bridge trial rank 0 gathers step losses from the last pipeline stage, so its events alone describe the
run. In a command trial the rank that prints the step lines writes steps, and the one that shows the settings writes
``resolved``.
"""

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

EVENTS_VARIABLE = "AUTOTUNE_EVENTS"
"""Environment variable naming the rank's own event file."""


@dataclass(frozen=True)
class StepRecord:
    """One measured optimizer step.

    Attributes:
        step: From 1.
        step_time_s: Wall time of the step: the slowest rank's, since all ranks meet in the optimizer.
        loss: Mean language-model loss per token over the global batch; NaN is a legal value here.
        grad_norm: Global gradient norm before clipping.
        tokens: Tokens of the global batch.
    """

    step: int
    step_time_s: float
    loss: float
    grad_norm: float
    tokens: int


class EventWriter:
    """Appends the events of one rank; silent when the rank was started by hand without an event file."""

    def __init__(self, path: str | None = None) -> None:
        name = path or os.environ.get(EVENTS_VARIABLE)
        self._file: IO[str] | None = open(name, "a", encoding="utf-8", buffering=1) if name else None  # noqa: SIM115

    def write(self, event: str, **fields: Any) -> None:
        """Append one event; it is on the node's disk cache when this returns."""
        if self._file is not None:
            self._file.write(json.dumps({"event": event, "time_s": time.time(), **fields}) + "\n")


class EventReader:
    """Reads what a rank has appended since the last look; a half-written last line waits for the next look."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def read(self) -> list[dict[str, Any]]:
        """New events, oldest first; empty when there are none or the file does not exist yet."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            return []
        end = data.rfind(b"\n") + 1
        self._offset += end
        events = []
        for line in data[:end].splitlines():
            try:
                event = json.loads(line)
            except ValueError:
                continue  # another program wrote into our file; its line is not an event
            if isinstance(event, dict) and isinstance(event.get("event"), str):
                events.append(event)
        return events


def step_record(event: dict[str, Any]) -> StepRecord | None:
    """The StepRecord of a ``step`` event that carries one (rank 0's do), else None."""
    try:
        return StepRecord(
            int(event["step"]),
            float(event["step_time_s"]),
            float(event["loss"]),
            float(event["grad_norm"]),
            int(event["tokens"]),
        )
    except (KeyError, TypeError, ValueError):
        return None
