"""Finalists of a study and what confirming them said: whom to run again, evidence for a policy, words for a person."""

from collections.abc import Sequence
from dataclasses import replace
from math import ceil
from statistics import fmean
from typing import Any

from autotune.export.pareto import front, winner
from autotune.measure.compare import TIE_WITHIN, compare_series
from autotune.measure.confirm import Objection
from autotune.measure.confirmation import (
    Confirmation,
    NextRun,
    confirmation_folder,
    confirmation_of,
    next_run,
    recorded_runs,
)
from autotune.measure.drift import CROSS_ALLOCATION_NOISE
from autotune.measure.matched import with_trials
from autotune.measure.outcome import TrialOutcome, TrialState
from autotune.measure.steady import FEWEST_STEPS
from autotune.measure.surroundings import Surroundings
from autotune.request import TuneRequest


def within_limit(request: TuneRequest, outcomes: Sequence[TrialOutcome]) -> list[TrialOutcome]:
    """The trials that the request's memory limit allows."""
    limit = request.memory_limit_bytes
    return [outcome for outcome in outcomes if limit is None or (outcome.peak_memory_bytes or 0) <= limit]


def finalists_of(request: TuneRequest, outcomes: Sequence[TrialOutcome]) -> list[TrialOutcome]:
    """The trials to be run again before one of them is chosen, fastest first; empty where nothing is confirmed.

    Selected by throughput, these are the trials that noise cannot tell from the fastest one (their steps do not, or
    they are closer than two runs of one configuration may be), and at least the runner-up. A median is blind to steps
    that are often slow, so the trial whose mean step is the lowest is a finalist too where it leads. Selected
    otherwise, speed does not decide: the selected trial is measured again beside the fastest one.
    """
    return _candidates(request, outcomes) if request.effort.confirm.repeats else []


def _candidates(request: TuneRequest, outcomes: Sequence[TrialOutcome]) -> list[TrialOutcome]:
    complete = [outcome for outcome in within_limit(request, outcomes) if outcome.state is TrialState.COMPLETE]
    ordered = sorted(complete, key=lambda outcome: (_step_time_s(outcome), outcome.trial))
    if not ordered:
        return []
    fastest = ordered[0]
    if request.select != "throughput":
        chosen = winner(front(ordered), request.select)
        return [fastest] if chosen.trial == fastest.trial else [fastest, chosen]
    near = [outcome for index, outcome in enumerate(ordered) if index < 2 or _within_noise(fastest, outcome)]
    finalists = near[: request.effort.confirm.finalists]
    steadiest = min(ordered, key=_mean_step_time_s)
    if _mean_step_time_s(steadiest) < min(map(_mean_step_time_s, finalists)) * (1.0 - TIE_WITHIN):
        finalists[-1] = steadiest
    return finalists


def confirmation_in(
    request: TuneRequest, outcomes: Sequence[TrialOutcome], surroundings: Surroundings | None
) -> Confirmation | None:
    """What the study's folder has on its present finalists; None where they were not run again.

    Runs that were made count, though the request asks for no further ones.
    """
    finalists = [outcome.trial for outcome in _candidates(request, outcomes)]
    if surroundings is None or not finalists:
        return None
    runs = recorded_runs(confirmation_folder(request, surroundings.fingerprint, finalists))
    if not runs:
        return None
    plan = request.effort.confirm
    made = plan.model_copy(update={"repeats": ceil((max(runs) + 1) / len(finalists))})
    found = confirmation_of(plan if plan.repeats else made, finalists, runs, limit_bytes=request.memory_limit_bytes)
    return found if plan.repeats else replace(found, missing=False)


def missing_run(request: TuneRequest, outcomes: Sequence[TrialOutcome], surroundings: Surroundings) -> NextRun | None:
    """The next run of the finalists that is still to be made; None when there is none."""
    finalists = [outcome.trial for outcome in finalists_of(request, outcomes)]
    if not finalists:
        return None
    runs = recorded_runs(confirmation_folder(request, surroundings.fingerprint, finalists))
    return next_run(request.effort.confirm, finalists, runs)


def step_time_evidence(found: Confirmation, trial: int) -> dict[str, Any]:
    """The entry ``step_time_s`` of a policy whose settings were confirmed."""
    steady = [step_time_s for outcome in found.runs[trial] for step_time_s in outcome.counted_step_times_s]
    return {
        "median": found.step_time_s(trial),
        "ci95": list(found.ci95(trial)),
        "ci95_method": (
            f"geometric mean of the medians of {found.repeats} runs, which took turns with the other finalists'; "
            "interval from the scatter between runs, pooled over the finalists"
        ),
        "range": [min(steady), max(steady)],
        "steps": len(steady),
        "repeats": found.repeats,
    }


def confirmation_evidence(found: Confirmation) -> dict[str, Any]:
    """What confirming the finalists said, as plain data: for a policy, and for ``start --json``."""
    return {
        "finalists": [
            {
                "trial": trial,
                "step_time_s": found.step_time_s(trial),
                "mean_step_time_s": found.mean_step_time_s(trial),
                "peak_memory_bytes": found.peak_memory_bytes(trial),
                "run_medians_s": found.run_medians_s(trial),
                **ratio_of(found, trial),
            }
            for trial in found.finalists
            if trial in found.runs
        ],
        "dropped": {str(trial): reason for trial, reason in found.dropped.items()},
        "repeats": found.repeats,
        "tie_set": list(found.members),
        "objections": [
            {"faster": int(one.faster), "slower": int(one.slower), "reason": _reason(one)} for one in found.objections
        ],
        "chosen": found.chosen,
        "between_runs": found.tied.between_runs if found.tied else None,
        "complete": not found.missing,
    }


def ratio_of(found: Confirmation, trial: int) -> dict[str, Any]:
    """How a finalist compares with the fastest one: ratio of the step times, interval, and whether that is a tie."""
    if found.tied is None or str(trial) not in found.tied.ratio:
        return {}
    return {
        "tie": trial in found.members,
        "ratio_to_fastest": found.tied.ratio[str(trial)],
        "ratio_ci95": list(found.tied.ci95[str(trial)]),
    }


def sentences(found: Confirmation) -> list[str]:
    """What confirming the finalists said, for a person."""
    lines = [f"Trial {trial} did not hold when it was run again: {why}." for trial, why in found.dropped.items()]
    if found.tied is None:
        return lines
    runs = f"{found.repeats} {'run' if found.repeats == 1 else 'runs'} each, in turns"
    fastest, *others = found.members
    if others:
        tied = ", ".join(map(str, found.members))
        lines.append(f"Confirmed ({runs}): trials {tied} tie; {_why_taken(found)}.")
        lines += [
            f"Trial {one.slower} is not beaten by trial {one.faster}: {_reason(one)}." for one in found.objections
        ]
    else:
        lines.append(f"Confirmed ({runs}): trial {fastest} is the fastest.")
    for trial in found.runs:
        if trial != fastest:
            ratio, (low, high) = found.tied.ratio[str(trial)], found.tied.ci95[str(trial)]
            interval = f"95 %: {low:.3f} to {high:.3f}"
            lines.append(f"A step of trial {trial} takes {ratio:.3f} x that of trial {fastest} ({interval}).")
    if found.missing:
        lines.append("Not all runs of the confirmation were made; the same command makes the others.")
    return lines


def _why_taken(found: Confirmation) -> str:
    """Why the trial is taken from a tie set."""
    assert found.chosen is not None
    peaks = {trial: found.peak_memory_bytes(trial) for trial in found.members}
    mine = peaks.pop(found.chosen)
    known = [peak for peak in peaks.values() if peak is not None]
    if mine is None or (known and min(known) < mine):
        return f"trial {found.chosen} is taken, since the mean step of the leaner ones is over 4 % longer"
    if mine in known:
        return f"trial {found.chosen} is taken: none needs less memory, nor as little with a shorter mean step"
    return f"trial {found.chosen} needs the least memory of them"


def _reason(objection: Objection) -> str:
    return with_trials(objection.reason, int(objection.faster), int(objection.slower))


def _within_noise(fastest: TrialOutcome, outcome: TrialOutcome) -> bool:
    if _step_time_s(outcome) <= _step_time_s(fastest) * (1.0 + CROSS_ALLOCATION_NOISE):
        return True
    series = [fastest.measured_step_times_s, outcome.measured_step_times_s]
    return min(map(len, series)) >= FEWEST_STEPS and compare_series(*series).verdict == "tie"


def _step_time_s(outcome: TrialOutcome) -> float:
    assert outcome.step_time_s is not None
    return outcome.step_time_s


def _mean_step_time_s(outcome: TrialOutcome) -> float:
    """Mean step after the warm-up, pauses included."""
    compiling = len(outcome.set_aside.get("warm_up", ()))
    return fmean(outcome.measured_step_times_s[compiling:] or [_step_time_s(outcome)])
