"""Which of two series of step times is faster, or that they do not say."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, floor
from typing import Literal

from autotune.measure.dependence import effective_steps, logarithms, student_quantile
from autotune.measure.steady import SteadySteps, steady_steps

Verdict = Literal["a_faster", "b_faster", "tie"]

TIE_WITHIN = 0.01
"""Differences of less than this share of a step are never a win: runs of one configuration on the same nodes differ
by 0.1 % at best, and variants that turned out to be identical have differed by 1.06 % (Megatron-Bridge, PR #5098)."""

_RESOLUTION = 1e-12
"""Differences of logarithms closer than this are one."""


@dataclass(frozen=True)
class Comparison:
    """Two series side by side.

    Attributes:
        verdict: Who is faster; tie when the interval holds 1 or the ratio is within the margin.
        ratio: Time of A over time of B: the median of all ratios of a step of A to a step of B.
        ci95: 95 % interval of the ratio.
        steps_used: Steps of A and of B that were compared.
        contaminated: Steps of A and of B that were set aside: warm-up, pauses, disturbed stretches.
        a: The steady steps of A, and why the others were set aside.
        b: The same of B.
    """

    verdict: Verdict
    ratio: float
    ci95: tuple[float, float]
    steps_used: tuple[int, int]
    contaminated: tuple[int, int]
    a: SteadySteps
    b: SteadySteps


def compare_series(a: Sequence[float], b: Sequence[float], *, tie_within: float = TIE_WITHIN) -> Comparison:
    """Compare two series of step times in seconds, each in the order of its run.

    The ratio is the Hodges-Lehmann estimate on logarithms with the interval that belongs to the Mann-Whitney test
    (Hodges and Lehmann 1963; Moses 1953): no assumption on the distribution, single slow steps move neither. The steps
    count for as many as independent ones would (``effective_steps``).

    Args:
        a: Step times of A, positive and finite.
        b: Step times of B.
        tie_within: A ratio closer to 1 than this share is a tie however sure it is.

    Raises:
        ValueError: a series of fewer than 4 steps, a step time that is not positive and finite, a negative margin.
    """
    if not 0.0 <= tie_within < 1.0:
        raise ValueError(f"tie_within={tie_within!r} must be from 0 to below 1")
    kept = steady_steps(a), steady_steps(b)
    ours, theirs = (logarithms(steady.step_times_s) for steady in kept)
    middle, low, high = _shift(ours, theirs)
    verdict: Verdict = "tie"
    if high < 0.0 and exp(middle) < 1.0 - tie_within:
        verdict = "a_faster"
    elif low > 0.0 and exp(-middle) < 1.0 - tie_within:
        verdict = "b_faster"
    return Comparison(
        verdict=verdict,
        ratio=exp(middle),
        ci95=(exp(low), exp(high)),
        steps_used=(len(ours), len(theirs)),
        contaminated=(len(a) - len(ours), len(b) - len(theirs)),
        a=kept[0],
        b=kept[1],
    )


def _shift(a: list[float], b: list[float]) -> tuple[float, float, float]:
    """Median of all differences a - b, and the ends of its 95 % interval."""
    worth = effective_steps(a), effective_steps(b)
    # Mann-Whitney's U over its number of pairs has variance (1/n + 1/m) / 12 under a pure shift, plus 1 / 12nm.
    deviation = ((1.0 / worth[0] + 1.0 / worth[1] + 1.0 / (worth[0] * worth[1])) / 12.0) ** 0.5
    share = 0.5 - student_quantile(0.975, max(1.0, worth[0] + worth[1] - 2.0)) * deviation
    pairs = len(a) * len(b)
    tail = max(0, min(floor(share * pairs), (pairs - 1) // 2))
    a, b = sorted(a), sorted(b)
    lower, upper = _nth_difference(a, b, (pairs - 1) // 2), _nth_difference(a, b, pairs // 2)
    return (lower + upper) / 2.0, _nth_difference(a, b, tail), _nth_difference(a, b, pairs - 1 - tail)


def _nth_difference(a: Sequence[float], b: Sequence[float], nth: int) -> float:
    """The nth smallest (from 0) of all differences of two sorted sequences, without writing them all down."""
    low, high = a[0] - b[-1] - _RESOLUTION, a[-1] - b[0] + _RESOLUTION
    # At most nth differences reach up to low, more than nth up to high.
    while high - low > _RESOLUTION:
        middle = (low + high) / 2.0
        if _count_up_to(a, b, middle) > nth:
            high = middle
        else:
            low = middle
    return _largest_up_to(a, b, high)


def _count_up_to(a: Sequence[float], b: Sequence[float], bound: float) -> int:
    return sum(len(b) - bisect_left(b, value - bound) for value in a)


def _largest_up_to(a: Sequence[float], b: Sequence[float], bound: float) -> float:
    nearest = ((value, bisect_left(b, value - bound)) for value in a)
    return max((value - b[place] for value, place in nearest if place < len(b)), default=bound)
