"""How the ranks of one node stand: what a node tells whoever asked."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from autotune_trials.claims import Claim
from autotune_trials.events import StepRecord

Why = Literal["rank_died", "deadline", "stall", "fence", "cancelled"]


@dataclass(frozen=True)
class RankStatus:
    """What is known of one rank.

    Attributes:
        rank: Global rank.
        exit_code: None while it lives; negative = ended by that signal.
        killed: Whether it was ended by this node, not by itself.
        last_event: Name of its last event, if any.
        last_step: Last step it reported, 0 before the first.
        peak_memory_bytes: Peak memory it reported when it finished.
        failure: Fields ``kind``, ``error`` and ``message`` of its ``failed`` event, if it wrote one.
        num_events: Events it has written so far, signs of life included.
        median_step_time_s: Median time of its own steps after the first, once it has ended; None before two.
    """

    rank: int
    exit_code: int | None = None
    killed: bool = False
    last_event: str | None = None
    last_step: int = 0
    peak_memory_bytes: int | None = None
    failure: dict[str, str] | None = None
    num_events: int = 0
    median_step_time_s: float | None = None

    @property
    def place(self) -> str:
        """How far it came, for people: ``its start``, ``built``, ``step 3``."""
        return f"step {self.last_step}" if self.last_event == "step" else self.last_event or "its start"

    def silence(self, silent_s: float) -> str:
        """That nothing was heard from it, in one line for people."""
        return f"rank {self.rank} reported nothing for {silent_s:g} s after {self.place}"


@dataclass(frozen=True)
class NodeStatus:
    """What one look at a node showed.

    Attributes:
        node: Index of the node within the gang.
        host: Its host name.
        ranks: Its ranks, in rank order.
        steps: Step records that no earlier look has handed out; one rank of the gang writes complete ones.
        resolved: What was read back from the built objects; handed out once, like the steps.
        claims: What its ranks showed of what they built since the last look, equal ones merged.
        stacks: What each rank was doing when its time was up, by rank; handed out once.
        health: What was sampled of this node, once all ranks have ended; handed out once.
        profile: What the profiler saw, where one of its ranks was profiled; handed out once.
        ended: Whether all ranks have exited.
        why: Why ranks were killed here; None when they were not. ``fence``: nobody asked for too long.
        message: One line for people that belongs to ``why``.
        lifetime_s: From the first rank's start to now, or to the end of the last rank.
    """

    node: int
    host: str
    ranks: tuple[RankStatus, ...]
    steps: tuple[StepRecord, ...] = ()
    resolved: dict[str, Any] | None = None
    claims: tuple[Claim, ...] = ()
    stacks: dict[int, str] = field(default_factory=dict)
    health: dict[str, Any] | None = None
    profile: dict[str, Any] | None = None
    ended: bool = False
    why: Why | None = None
    message: str = ""
    lifetime_s: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """A JSON-able mapping; :meth:`from_dict` reads it back."""
        return asdict(self)

    @staticmethod
    def from_dict(raw: Mapping[str, Any]) -> "NodeStatus":
        """The status back from its mapping."""
        ranks = tuple(RankStatus(**rank) for rank in raw["ranks"])
        steps = tuple(StepRecord(**step) for step in raw["steps"])
        claims = tuple(Claim(tuple(claim["ranks"]), claim["shown"]) for claim in raw["claims"])
        stacks = {int(rank): text for rank, text in raw["stacks"].items()}
        return NodeStatus(**{**raw, "ranks": ranks, "steps": steps, "claims": claims, "stacks": stacks})
