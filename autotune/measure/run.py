"""What came back from one gang: plain facts, before anybody judges them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from autotune_trials.claims import Claim
from autotune_trials.events import StepRecord

Ending = Literal["finished", "rank_died", "deadline", "stall", "cancelled", "lost"]


@dataclass(frozen=True)
class RankExit:
    """How one rank ended.

    Attributes:
        rank: Global rank.
        node: Index of the node within the gang.
        exit_code: Exit status; negative = ended by that signal; None = the node was lost, nobody knows.
        killed: Whether we ended it, because another rank died, a deadline passed, or the run was cancelled.
        last_event: Name of the last event it wrote (``started``, ``imported``, ``built``, ``step``, ...).
        last_step: Last step it reported, 0 before the first.
        peak_memory_bytes: Peak memory it reported when it finished.
        failure: Fields ``kind``, ``error`` and ``message`` of its ``failed`` event, if it wrote one.
        log_tail: Last lines it printed; filled for the first and the last rank and for ranks that failed.
        median_step_time_s: Median time of its own steps after the first; None before two.
    """

    rank: int
    node: int
    exit_code: int | None
    killed: bool = False
    last_event: str | None = None
    last_step: int = 0
    peak_memory_bytes: int | None = None
    failure: dict[str, str] | None = None
    log_tail: str = ""
    median_step_time_s: float | None = None


@dataclass(frozen=True)
class GangRun:
    """Everything one launched gang reported.

    Attributes:
        ending: Why it is over: all ranks ended by themselves with status 0 (``finished``), one died first
            (``rank_died``), the hard deadline passed, nothing was heard from a rank for too long (``stall``),
            somebody stopped it (``cancelled``), or a node or its worker disappeared (``lost``).
        ranks: One entry per rank, in rank order.
        steps: Step records of rank 0, in order.
        resolved: What rank 0 read back from the built objects; None when nothing was built.
        message: One line on why it ended, for people; empty when it finished.
        wall_s: Launch to end as the caller saw it.
        rank_lifetime_s: From the first rank's start to the last rank's end, as the nodes saw it.
        hosts: Host name of each node.
        claims: What the ranks showed of what they built, equal ones merged.
        stacks: What each hanging rank was doing when its time was up, by rank.
        health: What was sampled of each node during the run, in node order; None where nothing could be.
        profile: What the profiler saw in a profiled run; None in all others.
    """

    ending: Ending
    ranks: tuple[RankExit, ...]
    steps: tuple[StepRecord, ...] = ()
    resolved: dict[str, Any] | None = None
    message: str = ""
    wall_s: float = 0.0
    rank_lifetime_s: float = 0.0
    hosts: tuple[str, ...] = field(default=())
    claims: tuple[Claim, ...] = ()
    stacks: Mapping[int, str] = field(default_factory=dict)
    health: tuple[Mapping[str, Any] | None, ...] = ()
    profile: Mapping[str, Any] | None = None
