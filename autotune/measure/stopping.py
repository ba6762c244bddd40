"""When a run has shown its speed well enough to stop measuring."""

from collections.abc import Sequence

from autotune.measure.dependence import effective_steps, logarithms, order_statistics
from autotune.measure.objective import MedianInterval, median_interval
from autotune.measure.steady import FEWEST_STEPS, steady_steps

MIN_STEPS = 20
"""Before this many steps the rule never stops: an interval from fewer is too often narrow by chance."""

TARGET_HALF_WIDTH = 0.005
"""Half the width of the interval over the median, at which two such runs can be told apart when they differ by 1 %."""


def dependent_interval(counted_s: Sequence[float], confidence: float = 0.95) -> MedianInterval | None:
    """Interval of the median of steps that count, in their order, as wide as their dependence demands.

    So many of their order statistics, evenly spaced, as they are worth independent steps stand for them.

    Returns:
        The interval in seconds, or None when they are worth too few for the confidence.
    """
    worth = int(effective_steps(logarithms(counted_s)))
    return median_interval(order_statistics(counted_s, worth), confidence)


def enough(
    step_times_s: Sequence[float],
    *,
    target_half_width: float = TARGET_HALF_WIDTH,
    min_steps: int = MIN_STEPS,
    max_steps: int = 200,
) -> bool:
    """Whether measuring may stop: the median is known to the target, or the limit is reached.

    The rule looks at the width of the interval only, never at where it lies, so that stopping by it favours neither
    side; looking after every step costs little coverage (Chow and Robbins 1965, fixed-width sequential intervals).

    Args:
        step_times_s: All steps so far, in order, warm-up included.
        target_half_width: Half the interval's width over its middle, e.g. 0.005 for half a percent.
        min_steps: Steady steps below which it never stops.
        max_steps: Steps at which it always stops.

    Raises:
        ValueError: limits that contradict each other, or a step time that is not positive and finite.
    """
    if not target_half_width > 0.0 or not FEWEST_STEPS <= min_steps <= max_steps:
        raise ValueError(
            f"target_half_width={target_half_width!r} must be above 0, and {FEWEST_STEPS} <= min_steps={min_steps} "
            f"<= max_steps={max_steps}"
        )
    if len(step_times_s) >= max_steps:
        return True
    if len(step_times_s) < min_steps:
        return False
    steady = steady_steps(step_times_s)
    if steady.unsteady or len(steady.places) < min_steps:
        return False
    interval = dependent_interval(steady.step_times_s)
    return interval is not None and (interval.high_s / interval.low_s) ** 0.5 - 1.0 <= target_half_width
