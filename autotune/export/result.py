"""What a study came to: the front, the winner, the files that record them, and how both are shown."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from autotune.export.confirmed import confirmation_evidence, confirmation_in, within_limit
from autotune.export.measurements import Row, measurement_row, write_measurements, write_text_table
from autotune.export.pareto import front as pareto_front
from autotune.export.pareto import winner as choose
from autotune.export.policy import StudyFacts, make_policy, write_policy
from autotune.export.report import gpu_hours, summary
from autotune.files import write_atomically
from autotune.measure.confirmation import Confirmation, confirmation_gpu_s, with_confirmed_numbers
from autotune.measure.outcome import TrialOutcome, TrialState
from autotune.measure.profile import profile_gpu_s, profiles_of, write_profiles
from autotune.measure.surroundings import Surroundings
from autotune.request import TuneRequest
from autotune_policies.policy import Policy


@dataclass(frozen=True)
class Result:
    """The result of a study.

    Attributes:
        request: What was tuned.
        outcomes: How every trial ended, in order.
        front: The Pareto front, fastest first.
        winner: The chosen trial, with the numbers of the search; None when none completed.
        baseline: The alltoall baseline; None when it did not complete.
        confirmation: What running the finalists again said; None where that was not done.
        policy: The policy file; None when there is no winner.
        summary: The JSON document that ``autotune start --json`` prints.
    """

    request: TuneRequest
    outcomes: Sequence[TrialOutcome]
    front: Sequence[TrialOutcome]
    winner: TrialOutcome | None
    baseline: TrialOutcome | None
    confirmation: Confirmation | None
    policy: Path | None
    summary: dict[str, Any]


def conclude(
    request: TuneRequest,
    outcomes: Sequence[TrialOutcome],
    surroundings: Surroundings | None,
    *,
    wall_s: float,
    spent_gpu_hours: float | None = None,
    stopped: str | None = None,
) -> Result:
    """Choose the winner and write ``measurements.parquet`` and, where a trial completed, ``policy.yaml``.

    Args:
        request: What was tuned.
        outcomes: How every trial ended, in order.
        surroundings: Where they ran; None when nothing ran.
        wall_s: Wall time of the command.
        spent_gpu_hours: What the study has spent, in all epochs; None = what these trials did.
        stopped: Why no further trial was launched before there were as many as asked; None otherwise.
    """
    confirmation = confirmation_in(request, outcomes, surroundings)
    best, winner = best_of(request, outcomes, confirmation)
    policy = choose_policy(request, outcomes, surroundings)
    path = request.folder / "policy.yaml" if policy else None
    if surroundings is not None:
        write_measurements(request.folder / "measurements.parquet", measurement_rows(request, outcomes, surroundings))
        subjects = profiled_trials(request, outcomes, surroundings)
        write_profiles(request, profiles_of(request, surroundings.fingerprint, subjects))
    if policy is not None and path is not None:
        write_policy(path, policy)
    else:
        # An earlier one would contradict what this request says.
        (request.folder / "policy.yaml").unlink(missing_ok=True)
    document = summary(
        study=request.study, model=request.model, cluster=request.cluster.name,
        state="finished" if path else "failed", outcomes=outcomes, front=best,
        winner=winner and _as_confirmed(request, winner, confirmation), policy=str(path) if path else None,
        gpu_hours=gpu_hours(outcomes) if spent_gpu_hours is None else spent_gpu_hours, wall_s=wall_s,
        confirmation=confirmation_evidence(confirmation) if confirmation else None, stopped=stopped,
    )  # fmt: skip
    baseline = _baseline(request, outcomes, surroundings)
    return Result(request, outcomes, best, winner, baseline, confirmation, path, document)


def measurement_rows(request: TuneRequest, outcomes: Sequence[TrialOutcome], surroundings: Surroundings) -> list[Row]:
    """The study's measurement table, one row per trial."""
    return [
        measurement_row(
            outcome, study=request.study, model=request.shape, cluster=request.cluster.name,
            contract=request.contract, gang=request.gang, stack=surroundings.stack,
        )
        for outcome in outcomes
    ]  # fmt: skip


def write_record(
    folder: Path, request: TuneRequest, outcomes: Sequence[TrialOutcome], surroundings: Surroundings, policy: Policy
) -> None:
    """Write a policy with the record behind it, as text for a review: the request, and how every trial ended.

    What was typed is left out, since it may name folders of one machine and the password of a storage.

    Raises:
        OSError: a file cannot be written.
    """
    asked = json.loads(json.dumps({**request.identity(), "baseline": request.space.baseline}))
    write_atomically(folder / "request.yaml", yaml.safe_dump(asked, sort_keys=False).encode())
    rows = measurement_rows(request, outcomes, surroundings)
    about = f"study {request.study}: every trial, in order"
    write_text_table(folder / "measurements.tsv", rows, about)
    write_policy(folder / "policy.yaml", policy)


def choose_policy(
    request: TuneRequest, outcomes: Sequence[TrialOutcome], surroundings: Surroundings | None
) -> Policy | None:
    """The policy of the member of the front that the request selects; None when no trial completed."""
    confirmation = confirmation_in(request, outcomes, surroundings)
    best, winner = best_of(request, outcomes, confirmation)
    if winner is None or surroundings is None:
        return None
    facts = StudyFacts(
        study=request.study, model=request.model, shape=request.shape, cluster=request.cluster.name,
        contract=request.contract, gang=request.gang, stack=surroundings.stack, fingerprint=surroundings.fingerprint,
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        gpu_hours=gpu_hours(outcomes) + (confirmation_gpu_s(request) + profile_gpu_s(request)) / 3600.0,
        env=request.environment(winner.settings), launch=request.cluster.launch,
        program=request.program, recipe=request.recipe, command=request.command,
    )  # fmt: skip
    baseline = _baseline(request, outcomes, surroundings)
    return make_policy(
        facts, winner=_as_confirmed(request, winner, confirmation), baseline=baseline, front=best, outcomes=outcomes,
        confirmation=confirmation, profiles=profiles_of(
            request, surroundings.fingerprint, profiled_trials(request, outcomes, surroundings)
        ),
    )  # fmt: skip


def profiled_trials(
    request: TuneRequest, outcomes: Sequence[TrialOutcome], surroundings: Surroundings
) -> dict[str, TrialOutcome]:
    """The trials that are run under a profiler too, by role: ``baseline`` and ``winner``, those that completed."""
    _, winner = best_of(request, outcomes, confirmation_in(request, outcomes, surroundings))
    found = {"baseline": _baseline(request, outcomes, surroundings), "winner": winner}
    return {role: outcome for role, outcome in found.items() if outcome is not None}


def best_of(
    request: TuneRequest, outcomes: Sequence[TrialOutcome], confirmation: Confirmation | None
) -> tuple[Sequence[TrialOutcome], TrialOutcome | None]:
    """The Pareto front within the request's memory limit, and the trial to use.

    Selected by throughput, that is the one chosen of those which tied as the fastest when they were run again; it
    stands in the front even where another trial's single run looked better in both respects. What failed when it was
    run again is in neither.
    """
    dropped = confirmation.dropped if confirmation else {}
    held = [outcome for outcome in within_limit(request, outcomes) if outcome.trial not in dropped]
    best = pareto_front(held)
    if request.select != "throughput" or confirmation is None or confirmation.chosen is None:
        return best, choose(best, request.select) if best else None
    winner = next(outcome for outcome in held if outcome.trial == confirmation.chosen)
    joined = best if winner in best else sorted([*best, winner], key=lambda outcome: outcome.step_time_s or 0.0)
    return joined, winner


def _as_confirmed(request: TuneRequest, winner: TrialOutcome, confirmation: Confirmation | None) -> TrialOutcome:
    if confirmation is None or winner.trial not in confirmation.runs:
        return winner
    return with_confirmed_numbers(winner, confirmation, request.contract, request.gang)


def _baseline(
    request: TuneRequest, outcomes: Sequence[TrialOutcome], surroundings: Surroundings | None
) -> TrialOutcome | None:
    here = replace(request, pinned=surroundings.pinned) if surroundings is not None else request
    wanted = here.settings(here.space.baseline)
    complete = (outcome for outcome in outcomes if outcome.state is TrialState.COMPLETE)
    return next((outcome for outcome in complete if outcome.settings == wanted), None)
