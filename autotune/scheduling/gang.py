"""The one loop that runs a gang, whatever starts its processes."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol

from autotune.measure.run import Ending, GangRun, RankExit
from autotune_trials.claims import Claim, merged
from autotune_trials.events import StepRecord
from autotune_trials.processes import describe_exit
from autotune_trials.spec import TrialSpec
from autotune_trials.status import NodeStatus, RankStatus

POLL_INTERVAL_S = 0.1
LOG_TAIL_BYTES = 16 << 10

_ENDINGS: dict[str, Ending] = {
    "rank_died": "rank_died",
    "deadline": "deadline",
    "stall": "stall",
    "fence": "lost",
    "cancelled": "cancelled",
}


class GangLost(Exception):  # noqa: N818 - reads as what it is
    """A node or its worker disappeared; nobody knows what its ranks did. The message is one line."""


class Gang(Protocol):
    """The processes of one trial on all its nodes; one object runs one trial."""

    def launch(self, spec: TrialSpec) -> None:
        """Start all ranks on all nodes; returns when they are started, not when they are ready.

        Raises:
            GangLost: a node could not be reached or could not start its ranks.
        """

    def poll(self) -> list[NodeStatus]:
        """How things stand, one entry per node in node order.

        Raises:
            GangLost: a node could not be reached.
        """

    def kill(self, *, stacks: bool = False) -> None:
        """Kill all ranks on every node that can be reached, and wait until they are gone; may be repeated.

        Args:
            stacks: Whether the nodes keep what every living rank is doing at this moment.
        """

    def logs(self, rank: int, max_bytes: int) -> str:
        """The end of what a rank printed; empty when its node cannot be reached."""

    def close(self) -> None:
        """Kill what still runs and give the nodes back; may be repeated."""


_LATE_S = 1.0
"""So long a line of output may be on its way."""
_LATE_LOOKS = 3
"""Lines that were held back come in a burst, which fewer looks see."""


def run_gang(
    gang: Gang,
    spec: TrialSpec,
    *,
    on_step: Callable[[StepRecord], None] | None = None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
    should_stop: Callable[[], bool] | None = None,
) -> GangRun:
    """Launch a gang, follow it to its end, and leave nothing of it running, whatever happens.

    Every node enforces deadline and stall by itself too; this loop does it for the gang as a whole, so that a
    node that went deaf does not hold the others.

    Args:
        gang: Where it runs; still open afterwards, so that logs can be fetched.
        spec: What it runs.
        on_step: Called with each step record as it arrives.
        clock: Seconds that only grow.
        sleep: Waits for some seconds.
        should_stop: Asked between looks; True cancels the run.

    Returns:
        What was reported. A lost node is a result too (``ending="lost"``), not an exception.
    """
    book = _Book(spec)
    started_s = clock()
    ending: Ending = "cancelled"

    def look() -> None:
        for record in book.take(gang.poll(), clock()):
            if on_step is not None:
                on_step(record)

    def follow() -> tuple[Ending, str]:
        gang.launch(spec)
        launched_s = clock()
        while True:
            look()
            if verdict := book.verdict(clock(), launched_s):
                return verdict
            if should_stop is not None and should_stop():
                return "cancelled", "cancelled"
            sleep(POLL_INTERVAL_S)

    try:
        ending, message = follow()
    except GangLost as lost:
        ending, message = "lost", str(lost)
    finally:
        gang.kill(stacks=ending in ("deadline", "stall"))
    with suppress(GangLost):  # how it ended is known; this only completes the picture
        look()
    ranks = tuple(book.rank_exit(rank, gang) for rank in range(spec.gang.world_size))
    return GangRun(
        ending=ending,
        ranks=ranks,
        steps=tuple(book.steps),
        resolved=book.resolved,
        message=message,
        wall_s=clock() - started_s,
        rank_lifetime_s=max((status.lifetime_s for status in book.nodes.values()), default=0.0),
        hosts=tuple(status.host for _, status in sorted(book.nodes.items())),
        claims=merged(Claim((rank,), shown) for rank, shown in book.claims.items()),
        stacks=book.stacks,
        health=tuple(book.health.get(node) for node in sorted(book.nodes)),
        profile=book.profile,
    )


class _Book:
    """What the nodes have reported so far."""

    def __init__(self, spec: TrialSpec) -> None:
        self._spec = spec
        self.nodes: dict[int, NodeStatus] = {}
        self.steps: list[StepRecord] = []
        self.resolved: dict[str, Any] | None = None
        self.claims: dict[int, Mapping[str, Any]] = {}
        self.stacks: dict[int, str] = {}
        self.health: dict[int, Mapping[str, Any]] = {}
        self.profile: Mapping[str, Any] | None = None
        self._heard: dict[int, tuple[tuple[str, int], float]] = {}
        self._left: tuple[int, int, float] | None = None  # first rank to end well: rank, steps told by then, when
        self._told_on_s: list[float] = []  # looks with new steps since then

    def take(self, statuses: Iterable[NodeStatus], now_s: float) -> list[StepRecord]:
        """Add one look at the nodes; returns the steps that are new."""
        news: list[StepRecord] = []
        for status in statuses:
            self.nodes[status.node] = status
            self.resolved = status.resolved or self.resolved
            self.profile = status.profile or self.profile
            self.claims |= {rank: claim.shown for claim in status.claims for rank in claim.ranks}
            self.stacks |= status.stacks
            if status.health is not None:
                self.health[status.node] = status.health
            for record in status.steps:
                # A command may print its step lines from several ranks: the first to say it counts.
                if not self.steps or record.step > self.steps[-1].step:
                    self.steps.append(record)
                    news.append(record)
            for rank in status.ranks:
                sign = (rank.place, rank.num_events)
                if rank.rank not in self._heard or self._heard[rank.rank][0] != sign:
                    self._heard[rank.rank] = (sign, now_s)
                if rank.exit_code == 0 and self._left is None:
                    self._left = (rank.rank, self.steps[-1].step if self.steps else 0, now_s)
        if news and self._left is not None and now_s > self._left[2]:
            self._told_on_s.append(now_s)
        return news

    def verdict(self, now_s: float, launched_s: float) -> tuple[Ending, str] | None:
        """How it ended, if it did; what a rank did by itself counts before what was done to it."""
        ranks = [rank for status in self.nodes.values() for rank in status.ranks]
        if dead := [rank for rank in ranks if _died(rank)]:
            said = "; ".join(f"rank {rank.rank} {describe_exit(rank.exit_code or 0)}" for rank in dead[:4])
            return "rank_died", said + (f"; {len(dead) - 4} more" if len(dead) > 4 else "")
        for status in self.nodes.values():
            if status.why is not None:
                return _ENDINGS[status.why], f"{status.message} (on {status.host})"
        if all(status.ended for status in self.nodes.values()):
            return self._finished()
        if now_s - launched_s > self._spec.deadline_s:
            return "deadline", f"the gang still ran after {self._spec.deadline_s:g} s"
        for rank in ranks:
            silent_s = now_s - self._heard[rank.rank][1]
            if rank.exit_code is None and silent_s > self._spec.stall_s:
                return "stall", rank.silence(self._spec.stall_s)
        return self._stuck_at_the_end([rank for rank in ranks if rank.exit_code is None], now_s)

    def _stuck_at_the_end(self, living: Sequence[RankStatus], now_s: float) -> tuple[Ending, str] | None:
        """Ranks that outlive one that has ended well, and the last step; those that tell none only say they live."""
        if not living or self._left is None:
            return None
        if now_s - (self._told_on_s or [self._left[2]])[-1] <= self._spec.stall_s:
            return None
        return "stall", f"rank {living[0].rank} still ran {self._spec.stall_s:g} s after rank {self._left[0]} had ended"

    def _finished(self) -> tuple[Ending, str]:
        """All ended well; but where one left early and the others trained on, they trained something else."""
        if self._left is not None and len(self._told_on_s) >= _LATE_LOOKS:
            rank, step, left_s = self._left
            if self._told_on_s[-1] - left_s > _LATE_S:
                steps = self._spec.contract.steps
                return "rank_died", f"rank {rank} ended after step {step} of {steps}, the others trained on without it"
        return "finished", ""

    def rank_exit(self, rank: int, gang: Gang) -> RankExit:
        """How one rank ended, with the end of its log where people will want it."""
        node = rank // self._spec.gang.ranks_per_node
        known = self.nodes.get(node)
        status = next((item for item in known.ranks if item.rank == rank), None) if known else None
        if status is None:
            return RankExit(rank, node, None)
        # The first and the last rank are those that programs print on.
        outer = rank in (0, self._spec.gang.world_size - 1)
        wanted = outer or _died(status) or status.failure is not None
        return RankExit(
            rank=rank,
            node=node,
            exit_code=status.exit_code,
            killed=status.killed,
            last_event=status.last_event,
            last_step=status.last_step,
            peak_memory_bytes=status.peak_memory_bytes,
            failure=status.failure,
            log_tail=gang.logs(rank, LOG_TAIL_BYTES) if wanted else "",
            median_step_time_s=status.median_step_time_s,
        )


def _died(rank: RankStatus) -> bool:
    """Whether the rank ended badly by itself, not by us."""
    return rank.exit_code not in (None, 0) and not rank.killed
