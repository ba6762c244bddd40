"""How a trial ended, in one word and the numbers that belong to it.

Life of a trial::

    PROPOSED -> REFUSED                                  a legality rule; never launched
             -> UNAVAILABLE                              a backend that cannot be used here; never launched
             -> LEASED -> PREFLIGHT -> RUNNING -> COMPLETE      the only state that is ranked
                                               -> PRUNED        stopped early, dominated
                                               -> INFEASIBLE    out of memory, crash, hang, numerics, rejected
                                               -> FALLBACK      ran, but not what was asked for
                                               -> CONTAMINATED  disturbed from outside  } run again: these
                                               -> LOST          node or driver died     } say nothing of it
"""

from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from itertools import pairwise
from math import isfinite
from typing import Any

from autotune.measure.causes import cause_named, telling_line
from autotune.measure.disturbance import disturbance, sick_nodes, slow_nodes
from autotune.measure.failure import Failure, diagnose, mentions, rank_names, violation_at
from autotune.measure.objective import (
    MIN_MEASURED_STEPS,
    counted_steps,
    measured_steps,
    median_step_time_s,
    peak_memory_bytes,
    tokens_per_s_per_gpu,
)
from autotune.measure.proof import built_differently
from autotune.measure.run import GangRun
from autotune.measure.series import set_aside_in_words
from autotune.measure.steady import SteadySteps
from autotune_policies.backends import BACKENDS
from autotune_policies.settings import Settings
from autotune_trials.lines import one_line
from autotune_trials.spec import TrialSpec


class TrialState(StrEnum):
    """How a trial ended; the diagram above says what follows from it."""

    REFUSED = "REFUSED"
    UNAVAILABLE = "UNAVAILABLE"
    COMPLETE = "COMPLETE"
    PRUNED = "PRUNED"
    INFEASIBLE = "INFEASIBLE"
    FALLBACK = "FALLBACK"
    CONTAMINATED = "CONTAMINATED"
    LOST = "LOST"

    @property
    def launched(self) -> bool:
        """Whether a gang ran: what ``--trials`` counts."""
        return self not in (TrialState.REFUSED, TrialState.UNAVAILABLE)

    @property
    def runs_again(self) -> bool:
        """Whether the same settings are to be tried again, because this end says nothing about them."""
        return self in (TrialState.CONTAMINATED, TrialState.LOST)


@dataclass(frozen=True)
class TrialOutcome:
    """How one trial ended.

    Attributes:
        trial: Trial number within the study.
        state: In one word.
        settings: All canonical settings, resolved.
        reason: One line for people; empty for COMPLETE.
        violation: How far outside the feasible region, > 0 (larger = worse); 0 for COMPLETE.
        step_time_s: Median over the steady steps.
        tokens_per_s_per_gpu: Tokens of the global batch / step_time_s / ranks.
        peak_memory_bytes: Largest over the ranks.
        loss: Loss of the last step.
        losses: Loss of every step, warm-up included.
        step_times_s: Time of every step, warm-up included.
        steps_used: Steps behind the median.
        resolved: What rank 0 read back from the built objects.
        wall_s: Launch to end as the scheduler saw it.
        rank_lifetime_s: Start of the first to end of the last rank.
        startup_s: What the ranks' life-time holds beside the steps: imports, build, compilation before them.
        warmup_s: Time of the warm-up steps, in which kernels are compiled; the contract's, and those that were found.
        gpu_s: rank_lifetime_s x ranks.
        hosts: Where it ran.
        grad_norms: Gradient norm of every step, warm-up included.
        cause: Name of the cause in the table of causes; empty for COMPLETE.
        advice: What to do about it, one line.
        retry: Whether the same settings are run again: ``never``, ``elsewhere`` or ``again``.
        blamed_host: The host whose rank is to blame; empty when no single one is.
        notes: What else a reader should know, one line each.
        set_aside: Steps after the contract's warm-up that do not count, as places in step_times_s from 0, by reason:
            ``warm_up``, ``pause``, ``disturbed``, ``unsettled``.
    """

    trial: int
    state: TrialState
    settings: Settings
    reason: str = ""
    violation: float = 0.0
    step_time_s: float | None = None
    tokens_per_s_per_gpu: float | None = None
    peak_memory_bytes: int | None = None
    loss: float | None = None
    losses: list[float] = field(default_factory=list)
    step_times_s: list[float] = field(default_factory=list)
    steps_used: int = 0
    resolved: dict[str, Any] | None = None
    wall_s: float = 0.0
    rank_lifetime_s: float = 0.0
    startup_s: float = 0.0
    warmup_s: float = 0.0
    gpu_s: float = 0.0
    hosts: list[str] = field(default_factory=list)
    grad_norms: list[float] = field(default_factory=list)
    cause: str = ""
    advice: str = ""
    retry: str = ""
    blamed_host: str = ""
    notes: list[str] = field(default_factory=list)
    set_aside: dict[str, list[int]] = field(default_factory=dict)

    @property
    def measured_step_times_s(self) -> list[float]:
        """Times of all steps after the contract's warm-up, as a comparison takes them; none unless COMPLETE."""
        measured = self.steps_used + sum(map(len, self.set_aside.values()))
        return self.step_times_s[len(self.step_times_s) - measured :]

    @property
    def counted_step_times_s(self) -> list[float]:
        """Times of the steps that ``step_time_s`` is the median of; none unless COMPLETE."""
        aside = {place for places in self.set_aside.values() for place in places}
        kept = [step_time_s for place, step_time_s in enumerate(self.step_times_s) if place not in aside]
        return kept[len(kept) - self.steps_used :]

    @property
    def runs_again(self) -> bool:
        """Whether its settings are still to be tried: they say nothing yet, and were not given up."""
        return self.state.runs_again and self.retry != "never"

    def to_dict(self) -> dict[str, Any]:
        """A JSON-able mapping; :meth:`from_dict` reads it back."""
        return asdict(self)

    @staticmethod
    def from_dict(raw: dict[str, Any]) -> "TrialOutcome":
        """The outcome back from its mapping."""
        return TrialOutcome(**{**raw, "state": TrialState(raw["state"])})

    def because(self, name: str, state: TrialState, reason: str, violation: float = 0.0) -> "TrialOutcome":
        """The same trial, ended by this cause of the table."""
        cause = cause_named(name)
        return replace(
            self, state=state, reason=reason, violation=violation, cause=name, advice=cause.advice, retry=cause.retry,
            step_time_s=None, tokens_per_s_per_gpu=None, peak_memory_bytes=None, loss=None, steps_used=0, set_aside={},
        )  # fmt: skip


def judge(spec: TrialSpec, run: GangRun) -> TrialOutcome:
    """How a launched trial ended, from what was asked and what came back.

    Only a run that finished, was built as asked, stayed finite and has at least two measured steps is
    COMPLETE; every other end carries its reason and no headline number. ``violation`` is 1 for a run that
    reached its end and rises to 2 for one that failed before its first step; it is 0 for COMPLETE, and for
    LOST, which says nothing of the settings.
    """
    outcome = TrialOutcome(
        trial=spec.trial,
        state=TrialState.LOST,
        settings=spec.settings,
        losses=[record.loss for record in run.steps],
        step_times_s=[record.step_time_s for record in run.steps],
        resolved=run.resolved,
        wall_s=run.wall_s,
        rank_lifetime_s=run.rank_lifetime_s,
        startup_s=max(0.0, run.rank_lifetime_s - sum(record.step_time_s for record in run.steps)),
        warmup_s=sum(record.step_time_s for record in run.steps if record.step <= spec.contract.warmup_steps),
        gpu_s=run.rank_lifetime_s * spec.gang.world_size,
        hosts=list(run.hosts),
        grad_norms=[record.grad_norm for record in run.steps],
        notes=slow_nodes(run),
    )
    if run.ending in ("lost", "cancelled"):
        reason = f"{run.ending}: {one_line(run.message) or 'no further word'}"
        return outcome.because("lost" if run.ending == "lost" else "cancelled", TrialState.LOST, reason)
    if run.ending != "finished":
        failure = diagnose(run, spec.contract.steps, representatives=spec.program == "command")
        if failure.node is not None and failure.node < len(run.hosts):
            outcome = replace(outcome, blamed_host=run.hosts[failure.node])
        if failure.cause.retry != "never" and (sick := sick_nodes(run)):
            counted = "; ".join(f"{node.host}: {node.reason}" for node in sick)
            outcome = replace(outcome, blamed_host=sick[0].host)
            return outcome.because("sick_node", TrialState.LOST, f"broken hardware: {counted}; {failure.reason}")
        state = _state(spec, failure)
        violation = 0.0 if state.runs_again else failure.violation
        doubt = _doubt(run, failure.node) if failure.cause.kind == "hardware" else ""
        return outcome.because(failure.cause.name, state, failure.reason + doubt, violation)
    difference = built_differently(spec, run)
    if difference:
        unproven = "nothing proves" in difference
        return outcome.because("unproven" if unproven else "built_differently", TrialState.FALLBACK, difference, 1.0)
    flaw = _flaw(spec, run)
    if flaw:
        name, reason, completed = flaw
        return outcome.because(name, TrialState.INFEASIBLE, reason, violation_at(completed, spec.contract.steps))
    measured = measured_steps(run.steps, spec.contract)
    steady = counted_steps(measured)
    disturbed = disturbance(run, steady)
    if disturbed:
        return outcome.because("disturbed", TrialState.CONTAMINATED, f"disturbed: {disturbed}")
    step_time_s = median_step_time_s([measured[place] for place in steady.places])
    warmup = len(run.steps) - len(measured)
    set_aside: dict[str, list[int]] = {
        part.reason: [warmup + place for place in part.places] for part in steady.set_aside
    }
    return replace(
        outcome,
        state=TrialState.COMPLETE,
        step_time_s=step_time_s,
        tokens_per_s_per_gpu=tokens_per_s_per_gpu(measured[-1].tokens, step_time_s, spec.gang.world_size),
        peak_memory_bytes=_peak(spec, run),
        loss=run.steps[-1].loss,
        steps_used=len(steady.places),
        warmup_s=outcome.warmup_s + sum(outcome.step_times_s[place] for place in set_aside.get("warm_up", ())),
        notes=[*outcome.notes, *_counted(steady, [record.step for record in measured])],
        set_aside=set_aside,
    )


def _counted(steady: SteadySteps, steps: list[int]) -> list[str]:
    """What a reader should know of the choice of steps."""
    said = set_aside_in_words(steady, steps)
    return [*([f"not counted: {said}"] if said else ()), *([f"unsteady: {steady.unsteady}"] if steady.unsteady else ())]


def _state(spec: TrialSpec, failure: Failure) -> TrialState:
    """What follows from a failure. A backend of the trial that cannot be imported is a fact of the environment."""
    if failure.cause.kind == "outside":
        return TrialState.LOST
    if failure.cause.kind == "import" and mentions(failure.evidence, _libraries(spec)):
        return TrialState.UNAVAILABLE
    return TrialState.INFEASIBLE


def _doubt(run: GangRun, node: int | None) -> str:
    """How little a text about broken hardware weighs where no counter of the node moved."""
    health = run.health[node] if node is not None and node < len(run.health) else None
    if health and health.get("gpus"):
        return "; only the text says so, no counter of the node moved"
    return "; only the text says so, the node's counters cannot be read"


def _libraries(spec: TrialSpec) -> list[str]:
    """What the dispatcher of a trial loads: modules and names by which a log speaks of them."""
    backend = BACKENDS.get(str(spec.settings.get("dispatcher")))
    if backend is None or backend.library is None:
        return []
    return [backend.name, backend.library, *backend.extensions]


def _flaw(spec: TrialSpec, run: GangRun) -> tuple[str, str, int] | None:
    """Why a run that finished as asked is still no measurement: cause, reason, and how many steps were sound."""
    for record in run.steps:
        for name in ("loss", "grad_norm"):
            value = getattr(record, name)
            if not isfinite(value):
                return "not_a_number", f"numerics: {name}={value} at step {record.step}", record.step - 1
        if not (isfinite(record.step_time_s) and record.step_time_s > 0):
            return "no_measurement", f"clock: step_time_s={record.step_time_s} at step {record.step}", record.step - 1
    if missing := _missing_steps(spec, run):
        return "ended_early", missing, len(run.steps)
    if lost_work := _lost_work(spec, run):
        return (*lost_work, len(run.steps))
    used = len(measured_steps(run.steps, spec.contract))
    if used < MIN_MEASURED_STEPS:
        reason = (
            f"only {used} of {len(run.steps)} steps are after the {spec.contract.warmup_steps} of warm-up, "
            f"a measurement needs {MIN_MEASURED_STEPS}"
        )
        return "no_measurement", reason, len(run.steps)
    peak = _peak(spec, run)
    if peak is None:
        unknown = [rank.rank for rank in run.ranks if rank.peak_memory_bytes is None]
        who = rank_names(unknown) if unknown else "no rank"
        reason = f"peak memory is unknown: {who} reported {'none' if unknown else 'any'}"
        return "no_measurement", reason, len(run.steps)
    if peak <= 0:
        return "no_measurement", f"peak memory of {peak} bytes is no measurement", len(run.steps)
    return None


def _missing_steps(spec: TrialSpec, run: GangRun) -> str:
    """Which steps of the contract were not taken though everything ended well, on one line; empty when all were.

    Only some ranks of a command tell steps, and a line of its log may stand for several of them; where it has a line
    for each, one that is missing took its time with it.
    """
    steps = spec.contract.steps
    told = [record.step for record in run.steps]
    if not told or told[-1] < steps:
        return f"ended early: {told[-1] if told else 0} of {steps} steps were told, and every rank left with status 0"
    gaps = {later - earlier for earlier, later in pairwise(told)}
    if spec.program == "command":
        absent = sorted(set(range(told[0], steps)).difference(told)) if 1 in gaps else []
    else:
        absent = sorted(set(range(1, steps)).difference(told))
        early = [rank for rank in run.ranks if rank.last_step < steps]
        if early:
            who = rank_names([rank.rank for rank in early])
            return f"ended early: {who} left with status 0 after step {early[0].last_step} of {steps}"
    if absent:
        more = {1: "", 2: ", nor was another"}.get(len(absent), f", nor were {len(absent) - 1} others")
        return f"step {absent[0]} of {steps} was not told{more}"
    return ""


def _lost_work(spec: TrialSpec, run: GangRun) -> tuple[str, str] | None:
    """Cause and reason where a log that ended well still says that tokens were left out, against the contract."""
    if spec.contract.routing.token_policy != "dropless":
        return None
    for rank in run.ranks:
        for name in ("tokens_dropped", "graph_overflow"):
            line = telling_line(rank.log_tail, cause_named(name))
            if line:
                return name, f"{cause_named(name).title}: {one_line(line)} (rank {rank.rank})"
    return None


def _peak(spec: TrialSpec, run: GangRun) -> int | None:
    return peak_memory_bytes(run.ranks, representatives=spec.program == "command")
