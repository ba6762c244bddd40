"""``autotune status``."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import click

from autotune.cli import options
from autotune.export.confirmed import confirmation_evidence, confirmation_in, missing_run, sentences
from autotune.export.report import summary
from autotune.export.result import best_of, profiled_trials
from autotune.measure.account import Account
from autotune.measure.outcome import TrialOutcome, TrialState
from autotune.measure.profile import profiles_of
from autotune.measure.profile import sentences as profile_sentences
from autotune.monitor.progress import short
from autotune.request import stored_request
from autotune.scheduling.quarantine import quarantined
from autotune.search.epochs import Epoch, difference
from autotune.search.study import Study


@click.command("status")
@click.argument("study")
@options.home
@options.as_json
def command(study: str, home: Path | None, as_json: bool) -> None:
    """How a study stands: trials by state, and the best so far. It may be running at the same time."""
    request = stored_request(study, home)
    opened = Study(request, create=False)
    outcomes, policy = opened.outcomes(), request.folder / "policy.yaml"
    found = confirmation_in(request, outcomes, opened.surroundings)
    best, winner = best_of(request, outcomes, found)
    account, epochs, here = opened.account(), opened.epochs(), opened.surroundings
    searched = opened.launched() >= request.trials
    confirming = searched and here is not None and missing_run(request, outcomes, here) is not None
    document = summary(
        study=study, model=request.model, cluster=request.cluster.name,
        state="finished" if searched and not confirming else "unfinished", outcomes=outcomes, front=best,
        winner=winner, policy=str(policy) if policy.exists() else None,
        gpu_hours=account.spent_gpu_hours, wall_s=0.0, confirmation=confirmation_evidence(found) if found else None,
    )  # fmt: skip
    sick = quarantined(request.folder)
    profiles = here and profiles_of(request, here.fingerprint, profiled_trials(request, outcomes, here))
    document = {**document, "quarantine": [asdict(node) for node in sick]}
    document = {
        **document,
        "profile": profiles or {},
        "account": account.to_dict(),
        "epochs": [asdict(epoch) for epoch in epochs],
        "causes": _causes(outcomes),
        "notes": {str(outcome.trial): outcome.notes for outcome in outcomes if outcome.notes},
    }
    if as_json:
        print(json.dumps(document))
        return
    launched = f"{opened.launched()} of {request.trials} trials launched"
    states = ", ".join(f"{count} {state}" for state, count in document["counts"].items())
    print(f"{study}: {document['state']}, {launched}" + (f" ({states})" if states else ""))
    if confirming:
        print("finalists are still to be run again")
    for outcome in outcomes:
        if outcome.state is TrialState.COMPLETE and outcome in best:
            print(
                f"  front: trial {outcome.trial:04d}  {outcome.tokens_per_s_per_gpu:.1f} tokens/s/GPU  "
                f"{(outcome.peak_memory_bytes or 0) / 2**20:.1f} MiB  {short(outcome.settings)}"
            )
    said = [*(sentences(found) if found else []), *profile_sentences(profiles or {})]
    for line in [*_failures(outcomes), *said, *_spending(account), *_stacks(epochs)]:
        print(line)
    for node in sick:
        print(f"quarantine: {node.host}: {node.reason} (trial {node.trial:04d})")
    if document["policy"]:
        print(f"policy: {document['policy']}")


def _causes(outcomes: Sequence[TrialOutcome]) -> list[dict[str, Any]]:
    """Each cause for which trials did not count, with those trials and what to do about it."""
    found: dict[str, dict[str, Any]] = {}
    for outcome in outcomes:
        if outcome.cause:
            entry = {"cause": outcome.cause, "advice": outcome.advice, "trials": []}
            found.setdefault(outcome.cause, entry)["trials"].append(outcome.trial)
    return list(found.values())


def _failures(outcomes: Sequence[TrialOutcome]) -> Iterator[str]:
    for entry in _causes(outcomes):
        trials = ", ".join(f"{trial:04d}" for trial in entry["trials"])
        yield f"  {entry['cause']}: {entry['advice']} ({'trials' if ',' in trials else 'trial'} {trials})"
    for outcome in outcomes:
        yield from (f"  note on trial {outcome.trial:04d}: {note}" for note in outcome.notes)


def _spending(account: Account) -> Iterator[str]:
    limit = "" if account.budget_gpu_hours is None else f" of {account.budget_gpu_hours:.4g}"
    trial = account.next_trial
    yield f"GPU-hours: {account.spent_gpu_hours:.3g}{limit} spent"
    if trial:
        yield f"next trial: about {trial.gpu_hours(account.gpus):.3g} GPU-hours, {trial.wall_s:.0f} s"
    if (refused := account.refusal()) is not None:
        yield f"no further trial: {refused}"


def _stacks(epochs: Sequence[Epoch]) -> Iterator[str]:
    """Why earlier trials are not ranked with the present ones."""
    for number, (before, after) in enumerate(pairwise(epochs), start=2):
        earlier = sum(before.counts.values())
        yield f"epoch {number}: {difference(before, after)}; {earlier} trials of the epoch before are not compared"
