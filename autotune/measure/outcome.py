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
from math import isfinite
from typing import Any

from autotune.measure.failure import diagnose, one_line, rank_names, violation_at
from autotune.measure.objective import (
    MIN_MEASURED_STEPS,
    measured_steps,
    median_step_time_s,
    peak_memory_bytes,
    tokens_per_s_per_gpu,
)
from autotune.measure.run import GangRun
from autotune_policies.settings import Settings
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
        step_time_s: Median over the measured steps.
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
        warmup_s: Time of the warm-up steps, in which kernels are compiled; never part of a step time.
        gpu_s: rank_lifetime_s x ranks.
        hosts: Where it ran.
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

    def to_dict(self) -> dict[str, Any]:
        """A JSON-able mapping; :meth:`from_dict` reads it back."""
        return asdict(self)

    @staticmethod
    def from_dict(raw: dict[str, Any]) -> "TrialOutcome":
        """The outcome back from its mapping."""
        return TrialOutcome(**{**raw, "state": TrialState(raw["state"])})


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
    )
    if run.ending in ("lost", "cancelled"):
        return replace(outcome, reason=f"{run.ending}: {one_line(run.message) or 'no further word'}")
    if run.ending != "finished":
        failure = diagnose(run, spec.contract.steps)
        if failure.kind == "outside":
            return replace(outcome, reason=failure.reason)
        return replace(outcome, state=TrialState.INFEASIBLE, reason=failure.reason, violation=failure.violation)
    difference = built_differently(spec, run)
    if difference:
        return replace(outcome, state=TrialState.FALLBACK, reason=difference, violation=1.0)
    flaw = _flaw(spec, run)
    if flaw:
        reason, completed = flaw
        violation = violation_at(completed, spec.contract.steps)
        return replace(outcome, state=TrialState.INFEASIBLE, reason=reason, violation=violation)
    used = measured_steps(run.steps, spec.contract)
    step_time_s = median_step_time_s(used)
    return replace(
        outcome,
        state=TrialState.COMPLETE,
        step_time_s=step_time_s,
        tokens_per_s_per_gpu=tokens_per_s_per_gpu(used[-1].tokens, step_time_s, spec.gang.world_size),
        peak_memory_bytes=peak_memory_bytes(run.ranks),
        loss=run.steps[-1].loss,
        steps_used=len(used),
    )


def built_differently(spec: TrialSpec, run: GangRun) -> str:
    """Which settings were built differently from what was asked, on one line; empty when none was.

    Names in a list are compared without their order. A run without a resolved configuration proves nothing,
    so it counts as different too.
    """
    resolved = run.resolved or {}
    built = resolved.get("settings")
    if not isinstance(built, dict) or not built:
        return "nothing was read back from the built objects, so nothing proves what ran"
    if spec.model.num_experts is not None and "dispatcher" not in built:
        return "the dispatcher was not read back from the built objects, so nothing proves which one ran"
    differences = [
        f"{name} asked {_shown(asked)}, built {_shown(built[name])}"
        for name, asked in spec.settings.items()
        if name in built and not _same(asked, built[name])
    ]
    world_size = resolved.get("world_size", spec.gang.world_size)
    if world_size != spec.gang.world_size:
        differences.append(f"world_size asked {spec.gang.world_size}, built {world_size}")
    tokens = spec.contract.global_batch_size * spec.contract.seq_length
    ran = next((record.tokens for record in run.steps if record.tokens != tokens), tokens)
    if ran != tokens:
        differences.append(f"tokens per step asked {tokens}, ran {ran}")
    return "; ".join(differences)


def _flaw(spec: TrialSpec, run: GangRun) -> tuple[str, int] | None:
    """Why a run that finished as asked is still no measurement, and how many steps were sound."""
    for record in run.steps:
        for name in ("loss", "grad_norm"):
            value = getattr(record, name)
            if not isfinite(value):
                return f"numerics: {name}={value} at step {record.step}", record.step - 1
        if not (isfinite(record.step_time_s) and record.step_time_s > 0):
            return f"clock: step_time_s={record.step_time_s} at step {record.step}", record.step - 1
    used = len(measured_steps(run.steps, spec.contract))
    if used < MIN_MEASURED_STEPS:
        reason = (
            f"only {used} of {len(run.steps)} steps are after the {spec.contract.warmup_steps} of warm-up, "
            f"a measurement needs {MIN_MEASURED_STEPS}"
        )
        return reason, len(run.steps)
    peak = peak_memory_bytes(run.ranks)
    if peak is None:
        unknown = [rank.rank for rank in run.ranks if rank.peak_memory_bytes is None]
        who = rank_names(unknown) if unknown else "no rank"
        return f"peak memory is unknown: {who} reported {'none' if unknown else 'any'}", len(run.steps)
    if peak <= 0:
        return f"peak memory of {peak} bytes is no measurement", len(run.steps)
    return None


def _same(asked: object, built: object) -> bool:
    if isinstance(asked, list) and isinstance(built, list):
        return sorted(map(str, asked)) == sorted(map(str, built))
    return type(asked) is type(built) and asked == built


def _shown(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(str, value)) + "]"
    return str(value)
