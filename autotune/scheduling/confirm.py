"""Runs the finalists of a study again, in turns, on nodes that all of their runs share."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from autotune.measure.confirmation import NextRun, confirmation_folder, in_parity, next_run, recorded_runs
from autotune.measure.outcome import TrialOutcome
from autotune.request import TuneRequest
from autotune.scheduling.quarantine import quarantined
from autotune.scheduling.remeasure import measure_again, shared_group
from autotune.scheduling.trainable import placement, require_healthy
from autotune_policies.settings import Settings
from autotune_trials.spec import TrialSpec


def confirm(
    request: TuneRequest,
    finalists: Mapping[int, TrialOutcome],
    fingerprint: str,
    *,
    baseline: TrialOutcome | None,
    refusal: Callable[[int], str | None],
    on_end: Callable[[TrialOutcome], None] = lambda _: None,
) -> str | None:
    """Run what the plan of the confirmation still misses; each run leaves its record in the study's folder.

    Args:
        request: What is tuned.
        finalists: Their outcomes in the search by trial number, fastest first.
        fingerprint: Of the present epoch.
        baseline: Its run in the search, whose numbers every run must train to; None where it did not complete.
        refusal: Why a run of so many steps must not be launched any more, None when it may.
        on_end: Called with every outcome.

    Returns:
        Why it stopped before its end; None when the plan is fulfilled.

    Raises:
        ClusterError: no room on the cluster, or too few nodes outside quarantine.
        RunError: one run was lost or disturbed too often.
    """
    folder = confirmation_folder(request, fingerprint, list(finalists))
    plan = request.effort.confirm
    runs = recorded_runs(folder)

    def settle(outcome: TrialOutcome) -> TrialOutcome:
        return in_parity(request, outcome, runs.values(), baseline)

    # A lease that an earlier session had is gone, and so is one with a node that is in quarantine by now; later rounds
    # are comparable within themselves.
    while (run := next_run(plan, list(finalists), runs)) is not None:
        first = _spec(request, finalists[run.trial].settings, run)
        require_healthy(first, request.folder)
        with shared_group(placement(_config(first, folder, finalists.values()))) as group:
            while run is not None:
                if (refused := refusal(run.steps)) is not None:
                    return refused
                spec = _spec(request, finalists[run.trial].settings, run)
                into = folder / f"{run.index:02d}"
                outcome = measure_again(spec, into, fingerprint, group, on_end, settle=settle)
                if not outcome.state.runs_again:
                    runs[run.index] = outcome
                if any(node.host in outcome.hosts for node in quarantined(request.folder)):
                    break
                run = next_run(plan, list(finalists), runs)
    return None


def _config(spec: TrialSpec, folder: Path, finalists: Iterable[TrialOutcome]) -> dict[str, Any]:
    """For a group on nodes that no finalist was measured on, where there are enough of them; else on any."""
    hosts = {host for outcome in finalists for host in outcome.hosts}
    return {"spec": asdict(spec), "trial_dir": str(folder), "avoid_hosts": sorted(hosts)}


def _spec(request: TuneRequest, settings: Settings, run: NextRun) -> TrialSpec:
    """The trial's own specification with the steps of the run, and as much more time."""
    spec = request.spec(run.trial, settings)
    return replace(
        spec,
        contract=replace(spec.contract, steps=run.steps),
        deadline_s=spec.deadline_s * max(1.0, run.steps / spec.contract.steps),
    )
