"""What the next trial will cost, whether it may start, and whether searching on still pays.

Costs are predicted from what this study's own trials cost: no table knows this cluster's queue, file system and
compilers. Decisions only; nothing here spends or counts GPU-hours.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, isfinite
from statistics import median

CAUTIOUS = 0.8
"""Quantile of past costs that stands for the next one: one trial in five may cost more."""

TOP_SPACINGS = 3
"""Gaps between the fastest trials that say how far apart the next records will be."""

_SECONDS_PER_HOUR = 3600.0


@dataclass(frozen=True)
class TrialCost:
    """Wall time of one trial, in seconds.

    Attributes:
        start_s: Until the first step: placement, imports, build.
        compile_s: Steps that warm up and compile, beyond what they would have taken otherwise.
        steps_s: All steps at their steady speed.
    """

    start_s: float
    compile_s: float
    steps_s: float

    @property
    def wall_s(self) -> float:
        """All of it."""
        return self.start_s + self.compile_s + self.steps_s

    def gpu_hours(self, gpus: int) -> float:
        """What it takes from the budget on so many GPUs."""
        return self.wall_s * gpus / _SECONDS_PER_HOUR


def predict_cost(
    past: Sequence[TrialCost], *, repeats: int = 1, first: TrialCost | None = None, quantile: float = CAUTIOUS
) -> TrialCost | None:
    """What the next trial will cost, with so many repeats of its run.

    Each repeat starts fresh processes; compilation is cached on the nodes after the first.

    Args:
        past: What trials of this study cost, the failed ones too: they cost as well.
        repeats: Runs of the trial.
        first: What to expect before any trial has run.
        quantile: Which quantile of each part stands for the next one; 1.0 is the dearest so far.

    Returns:
        The expected cost of all its runs; None when nothing is known.

    Raises:
        ValueError: fewer than one repeat, or a quantile outside 0 to 1.
    """
    if repeats < 1 or not 0.0 <= quantile <= 1.0:
        raise ValueError(f"repeats={repeats} must be at least 1 and quantile={quantile!r} from 0 to 1")
    known = list(past) or ([first] if first else [])
    if not known:
        return None

    def part(values: Sequence[float]) -> float:
        return sorted(values)[max(0, ceil(quantile * len(values)) - 1)]

    return TrialCost(
        start_s=repeats * part([cost.start_s for cost in known]),
        compile_s=part([cost.compile_s for cost in known]),
        steps_s=repeats * part([cost.steps_s for cost in known]),
    )


def refusal(
    next_trial: TrialCost | None,
    gpus: int,
    *,
    spent_gpu_hours: float = 0.0,
    budget_gpu_hours: float | None = None,
    remaining_s: float | None = None,
) -> str | None:
    """Why the next trial must not start, in one line; None when it may.

    Args:
        next_trial: Its predicted cost. When nothing is known, only what is used up refuses.
        gpus: GPUs it holds.
        spent_gpu_hours: Spent so far, trials that are running counted with their predicted cost.
        budget_gpu_hours: Never exceeded if trials cost what was predicted; None = no budget.
        remaining_s: Wall time left to the allocation or the deadline; None = no limit.
    """
    needed_s = next_trial.wall_s if next_trial else 0.0
    needed_gpu_hours = next_trial.gpu_hours(gpus) if next_trial else 0.0
    if budget_gpu_hours is not None:
        left = budget_gpu_hours - spent_gpu_hours
        if left <= 0.0 or needed_gpu_hours > left:
            needs = f"; the next trial needs about {needed_gpu_hours:.3g}" if next_trial else ""
            return f"the budget has {max(0.0, left):.3g} of {budget_gpu_hours:.4g} GPU-hours left{needs}"
    if remaining_s is not None and (remaining_s <= 0.0 or needed_s > remaining_s):
        needs = f"; the next trial needs about {needed_s:.0f} s" if next_trial else ""
        return f"{max(0.0, remaining_s):.0f} s of wall time are left{needs}"
    return None


def expected_gain(step_times_s: Sequence[float]) -> float:
    """Share of the best step time that one more trial is expected to save.

    If trials come in no special order, the next of n + 1 is the fastest of all once in n + 1 times, and then leads by
    the usual gap between the two fastest. Where step times end at a floor, as those of a finite space do, the gaps
    between the fastest few are alike on average, so that their mean stands for it. A sampler that learns does better
    than chance: ask for several trials' worth before believing it.

    Returns:
        From 0.0 to 1.0; 1.0 while fewer than two trials are known: nothing speaks against going on.

    Raises:
        ValueError: a step time that is not positive and finite.
    """
    if not all(isfinite(value) and value > 0.0 for value in step_times_s):
        raise ValueError(f"step times {list(step_times_s)!r} must be positive and finite")
    if len(step_times_s) < 2:
        return 1.0
    ordered = sorted(step_times_s)
    gaps = min(TOP_SPACINGS, len(ordered) - 1)
    usual = (ordered[gaps] - ordered[0]) / gaps
    return min(1.0, usual / (len(ordered) + 1) / ordered[0])


def pays_back(gain: float, step_time_s: float, training_gpus: int, steps: int, cost_gpu_hours: float) -> bool:
    """Whether a training of so many steps saves at least what finding the gain costs.

    Args:
        gain: Expected share of the step time that is saved, from 0 to 1.
        step_time_s: Best step time so far, at the scale of the training.
        training_gpus: GPUs of the training.
        steps: Steps that it still has to go (``--pays-back-after``).
        cost_gpu_hours: What the next trial costs.
    """
    return gain * step_time_s * steps * training_gpus / _SECONDS_PER_HOUR >= cost_gpu_hours


def cost_of(startup_s: float, step_times_s: Sequence[float], warmup_steps: int, wall_s: float) -> TrialCost:
    """Split the wall time of a finished or failed trial; what no part explains went before the first step.

    Args:
        startup_s: Seconds before the first step as the ranks saw it.
        step_times_s: All steps, warm-up first.
        warmup_steps: How many of them warm up.
        wall_s: Launch to end.
    """
    counted = step_times_s[warmup_steps:] or step_times_s
    steady_s = median(counted) * len(step_times_s) if counted else 0.0
    compile_s = max(0.0, sum(step_times_s[:warmup_steps]) - median(counted) * warmup_steps) if counted else 0.0
    steps_s = min(wall_s, steady_s)
    compile_s = min(wall_s - steps_s, compile_s)
    return TrialCost(start_s=max(startup_s, wall_s - steps_s - compile_s), compile_s=compile_s, steps_s=steps_s)
