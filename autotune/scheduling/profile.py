"""Runs baseline and winner once more under a profiler; what that shows is never scored."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, replace

from autotune.measure.outcome import TrialOutcome
from autotune.measure.profile import is_made, profile_folder
from autotune.request import TuneRequest
from autotune.scheduling.ray_gang import RayGang
from autotune.scheduling.remeasure import fresh, shared_group
from autotune.scheduling.trainable import execute, placement
from autotune_trials.spec import TrialSpec

PROFILED_STEPS = 3


def profile(
    request: TuneRequest,
    subjects: Mapping[str, TrialOutcome],
    fingerprint: str,
    *,
    refusal: Callable[[int], str | None],
    on_end: Callable[[TrialOutcome], None] = lambda _: None,
) -> str | None:
    """Make the profiled runs that are still missing; each leaves its record in the study's folder.

    Args:
        request: What was tuned.
        subjects: The trials by role, ``baseline`` and ``winner``; they may be one.
        fingerprint: Of the present epoch.
        refusal: Why a run of so many steps must not be launched any more, None when it may.
        on_end: Called with the outcome of every run.

    Returns:
        Why it stopped before its end; None when nothing is missing.

    Raises:
        ClusterError: no room on the cluster.
    """
    for outcome in {outcome.trial: outcome for outcome in subjects.values()}.values():
        folder = profile_folder(request, fingerprint, outcome.trial)
        if is_made(folder):
            continue
        if (refused := refusal(request.contract.steps)) is not None:
            return refused
        fresh(folder)
        spec = _spec(request, outcome)
        with shared_group(placement({"spec": asdict(spec), "trial_dir": str(folder)})) as group:
            on_end(execute(RayGang(fingerprint=fingerprint, placement_group=group), spec, folder))
    return None


def _spec(request: TuneRequest, outcome: TrialOutcome) -> TrialSpec:
    """The trial's own specification with its last steps profiled; the first one is too unlike the others."""
    spec = request.spec(outcome.trial, outcome.settings)
    return replace(spec, profile_steps=min(PROFILED_STEPS, spec.contract.steps - 1))
