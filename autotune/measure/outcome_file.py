"""Reading ``outcome.json`` back, whatever has become of the file."""

import json
from math import isfinite
from pathlib import Path
from typing import Any

from autotune.measure.outcome import TrialOutcome, TrialState


def read_outcome(path: Path) -> TrialOutcome | None:
    """The outcome of a run from its record; None where there is none, or a damaged one, which counts as none."""
    try:
        outcome = TrialOutcome.from_dict(json.loads(path.read_text(encoding="utf-8")))
        return outcome if _is_sound(outcome) else None
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def _is_sound(outcome: TrialOutcome) -> bool:
    """Whether what is added up, compared or ranked is of the kind that it should be."""
    spent = (outcome.wall_s, outcome.rank_lifetime_s, outcome.startup_s, outcome.warmup_s, outcome.gpu_s)
    peak: object = outcome.peak_memory_bytes
    settings: object = outcome.settings
    if not all(_is_number(value) and value >= 0 for value in (*spent, *outcome.step_times_s)):
        return False
    if not isinstance(peak, int | None) or not isinstance(settings, dict):
        return False
    if outcome.state is not TrialState.COMPLETE:
        return True
    counted = outcome.counted_step_times_s
    ranked: list[Any] = [outcome.step_time_s, outcome.tokens_per_s_per_gpu, *counted]
    aside = sum(map(len, outcome.set_aside.values()))
    return (
        all(_is_number(value) and value > 0 for value in ranked)
        and 0 < outcome.steps_used == len(counted)
        and outcome.steps_used + aside <= len(outcome.step_times_s)
    )


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)
