"""Whether a policy still holds, from runs or from a study that somebody else made: pure functions."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from autotune.errors import RequestError, RunError
from autotune.measure.difference import differences
from autotune.measure.drift import (
    CROSS_ALLOCATION_NOISE,
    Drift,
    Ratio,
    judge_drift,
    ratio_of_pairs,
    ratio_of_series,
    ratio_of_timings,
    spread,
    timing_of_runs,
    timing_of_steps,
)
from autotune.measure.outcome import TrialOutcome, TrialState
from autotune.measure.recorded import Recorded, changed_stack
from autotune.measure.surroundings import Surroundings
from autotune.request import TuneRequest
from autotune_trials.spec import Contract, GangShape, ModelShape


@dataclass(frozen=True)
class StillRight:
    """The answer to ``autotune policy check``.

    Attributes:
        drift: The verdict.
        recorded: The policy now over its record; None where the stack is another one.
        runner_up: The policy over its runner-up, both now; None when there is none that ran.
        step_time_s: The policy's median step time now.
        new_epoch: Whether the stack's fingerprint is another one than the policy's.
        changed_stack: Versions that differ, name -> [recorded, now].
        notes: What else a reader should know.
    """

    drift: Drift
    recorded: Ratio | None
    runner_up: Ratio | None
    step_time_s: float
    new_epoch: bool
    changed_stack: Mapping[str, Sequence[str | None]]
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """A JSON-able mapping."""
        return asdict(self)


def require_comparable(recorded: Recorded, surroundings: Surroundings) -> None:
    """On another stack only the order can be judged, and that needs two.

    Raises:
        RequestError: another stack and no runner-up.
    """
    if recorded.runner_up is None and recorded.fingerprint != surroundings.fingerprint:
        raise RequestError(
            f"{recorded.name}: measured on another stack ({_changes(recorded, surroundings)}) and without a runner-up, "
            "so there is nothing to compare with",
            hint="tune again on this stack: autotune start --warm-start",
        )


def judge_runs(
    recorded: Recorded,
    surroundings: Surroundings,
    anchor: Sequence[TrialOutcome],
    runner_up: Sequence[TrialOutcome],
    *,
    tolerance: float = CROSS_ALLOCATION_NOISE,
) -> StillRight:
    """The answer from repeated runs that took turns.

    Args:
        recorded: The policy.
        surroundings: Where they ran.
        anchor: Runs of the policy's settings.
        runner_up: Runs of the runner-up's, each the neighbour of the policy's run of the same place; empty = none.
        tolerance: Difference between days and allocations that is no finding, as a share.

    Raises:
        RunError: a run of the policy's settings did not complete.
    """
    failed = next((outcome for outcome in anchor if outcome.state is not TrialState.COMPLETE), None)
    if failed is not None:
        raise RunError(
            f"the policy's settings do not run here any more: {failed.state}: {failed.reason}",
            hint="search again from what still runs: autotune start --warm-start FILE",
        )
    ours = [_step_time_s(outcome) for outcome in anchor]
    pairs = [
        (_step_time_s(one), _step_time_s(other))
        for one, other in zip(anchor, runner_up, strict=False)
        if other.state is TrialState.COMPLETE
    ]
    notes = [
        f"a run of the runner-up was {outcome.state}: {outcome.reason}"
        for outcome in runner_up
        if outcome.state is not TrialState.COMPLETE
    ]
    new_epoch = recorded.fingerprint != surroundings.fingerprint
    against_record = None
    if not new_epoch:
        against_record = ratio_of_timings(timing_of_runs(ours), recorded.step_time, max(tolerance, spread(ours)))
    against_runner_up = ratio_of_pairs(pairs) if pairs else None
    if against_record is None and against_runner_up is None:
        raise RunError(f"no run of the runner-up completed on a changed stack, so nothing can be said: {notes[0]}")
    now_s = timing_of_runs(ours).median_s
    return _answer(recorded, surroundings, against_record, against_runner_up, now_s, notes, tolerance)


def judge_study(
    recorded: Recorded,
    request: TuneRequest,
    surroundings: Surroundings,
    outcomes: Sequence[TrialOutcome],
    *,
    tolerance: float = CROSS_ALLOCATION_NOISE,
) -> StillRight:
    """The answer from a stored study: is the policy still the fastest of what was measured there?

    Every trial ran once, so differences within the tolerance are no finding.

    Args:
        recorded: The policy.
        request: The study's request; it must have the policy's model, contract, gang and cluster.
        surroundings: Where the study ran.
        outcomes: Its trials.
        tolerance: As for :func:`judge_runs`.

    Raises:
        RequestError: another contract (the field is named), or the study never completed the policy's settings.
    """
    _require_same_contract(recorded, request)
    complete = [outcome for outcome in outcomes if outcome.state is TrialState.COMPLETE]
    ours = next((outcome for outcome in complete if outcome.settings == recorded.spec.settings), None)
    if ours is None:
        ended = next((outcome for outcome in outcomes if outcome.settings == recorded.spec.settings), None)
        said = "never tried" if ended is None else f"ended as {ended.state} ({ended.reason}), not completed"
        raise RequestError(
            f"{recorded.name}: its settings were {said} in study {request.study!r}",
            hint="measure them: autotune policy check FILE --measure",
        )
    limit = request.memory_limit_bytes
    others = [
        outcome
        for outcome in complete
        if outcome is not ours and (limit is None or (outcome.peak_memory_bytes or 0) <= limit)
    ]
    rival = min(others, key=_step_time_s, default=None)
    new_epoch = recorded.fingerprint != surroundings.fingerprint
    against_record = None
    if not new_epoch:
        against_record = ratio_of_timings(timing_of_steps(ours.counted_step_times_s), recorded.step_time, tolerance)
    against_rival = None
    if rival:
        against_rival = ratio_of_series(ours.measured_step_times_s, rival.measured_step_times_s, tolerance)
    if against_record is None and against_rival is None:
        raise RequestError(
            f"study {request.study!r} ran on another stack ({_changes(recorded, surroundings)}) and has nothing else "
            "to compare the policy with"
        )
    notes = [f"the runner-up is trial {rival.trial} of the study"] if rival else []
    return _answer(recorded, surroundings, against_record, against_rival, _step_time_s(ours), notes, tolerance)


def _answer(
    recorded: Recorded,
    surroundings: Surroundings,
    against_record: Ratio | None,
    against_runner_up: Ratio | None,
    step_time_s: float,
    notes: Sequence[str],
    tolerance: float,
) -> StillRight:
    new_epoch = recorded.fingerprint != surroundings.fingerprint
    if new_epoch:
        notes = [
            f"another stack than the policy's ({_changes(recorded, surroundings)}): its recorded step time is not "
            "compared, only the order",
            *notes,
        ]
    return StillRight(
        drift=judge_drift(
            against_record, against_runner_up, was_slower=recorded.runner_up_was_faster, tolerance=tolerance
        ),
        recorded=against_record,
        runner_up=against_runner_up,
        step_time_s=step_time_s,
        new_epoch=new_epoch,
        changed_stack=changed_stack(recorded, surroundings.stack),
        notes=tuple(notes),
    )


def _require_same_contract(recorded: Recorded, request: TuneRequest) -> None:
    spec = recorded.spec
    policy = _held_fixed(recorded.cluster, spec.model, spec.contract, spec.gang)
    study = _held_fixed(request.cluster.name, request.shape, request.contract, request.gang)
    for name, theirs, ours in differences(study, policy):
        raise RequestError(
            f"study {request.study!r} has {name}={theirs!r}, but {recorded.name} was measured with {ours!r}",
            hint="name a study of the same contract, or use --measure",
        )


def _held_fixed(cluster: str, model: ModelShape, contract: Contract, gang: GangShape) -> dict[str, Any]:
    return {"cluster": cluster, "model": asdict(model), "contract": asdict(contract), "gang": asdict(gang)}


def _changes(recorded: Recorded, surroundings: Surroundings) -> str:
    changed = changed_stack(recorded, surroundings.stack)
    said = ", ".join(f"{name} {was or 'none'} -> {now or 'none'}" for name, (was, now) in changed.items())
    return said or "same versions, other machines or drivers"


def _step_time_s(outcome: TrialOutcome) -> float:
    assert outcome.step_time_s is not None
    return outcome.step_time_s
