"""The result of a study as one JSON document: the last line that ``autotune start --json`` prints."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from autotune.measure.outcome import TrialOutcome, TrialState


def summary(
    *,
    study: str,
    model: str,
    cluster: str,
    state: str,
    outcomes: Iterable[TrialOutcome],
    front: Sequence[TrialOutcome],
    winner: TrialOutcome | None,
    policy: str | None,
    gpu_hours: float,
    wall_s: float,
    confirmation: Mapping[str, Any] | None = None,
    stopped: str | None = None,
) -> dict[str, Any]:
    """The JSON-able summary of a study.

    Args:
        study: Study name.
        model: Model name.
        cluster: Cluster name.
        state: How the run ended, e.g. ``finished`` or ``stopped``.
        outcomes: All finished trials.
        front: The Pareto front, fastest first.
        winner: The chosen trial, with its confirmed numbers; None when none completed, then ``best`` is null.
        policy: Path of the policy file; None when there is none.
        gpu_hours: GPU-hours spent, over all sessions of the study.
        wall_s: Wall time of this command in seconds.
        confirmation: What running the finalists again said; None where that was not done.
        stopped: Why the search stopped before its number of trials; None when it did not.
    """
    return {
        "study": study,
        "model": model,
        "cluster": cluster,
        "state": state,
        "counts": counts(outcomes),
        "best": _entry(winner) if winner else None,
        "pareto": [_entry(outcome) for outcome in front],
        "confirmation": None if confirmation is None else dict(confirmation),
        "stopped": stopped,
        "policy": policy,
        "gpu_hours": gpu_hours,
        "wall_s": wall_s,
    }


def counts(outcomes: Iterable[TrialOutcome]) -> dict[str, int]:
    """Trials by state; states that did not occur are left out."""
    found = Counter(outcome.state for outcome in outcomes)
    return {state.value: found[state] for state in TrialState if found[state]}


def gpu_hours(outcomes: Iterable[TrialOutcome]) -> float:
    """GPU-hours that trials spent, whatever their end."""
    return sum(outcome.gpu_s for outcome in outcomes) / 3600


def _entry(outcome: TrialOutcome) -> dict[str, Any]:
    return {
        "trial": outcome.trial,
        "step_time_s": outcome.step_time_s,
        "tokens_per_s_per_gpu": outcome.tokens_per_s_per_gpu,
        "peak_memory_bytes": outcome.peak_memory_bytes,
        "settings": dict(outcome.settings),
    }
