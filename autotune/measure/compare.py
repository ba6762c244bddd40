"""Which of two series of step times is faster, or that they do not say."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, floor, fsum, log
from statistics import median
from typing import Literal

from autotune.measure.dependence import effective_steps, logarithms, student_quantile
from autotune.measure.stays import may_be_chance, stays_at
from autotune.measure.steady import SteadySteps, steady_steps

Verdict = Literal["a_faster", "b_faster", "tie"]

TIE_WITHIN = 0.01
"""Differences of less than this share of a step are never a win: runs of one configuration on the same nodes differ
by 0.1 % at best, and variants that turned out to be identical have differed by 1.06 % (Megatron-Bridge, PR #5098)."""

FEWEST_INDEPENDENT = 3.0
"""Independent steps that a series must be worth to win or lose; what wanders more has not shown its level yet."""

_MEANS_SIGMAS = 2.0
"""Standard deviations from which on a difference of means is taken for more than noise."""

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
        reason: Why the interval is not believed, in words; then the verdict is a tie. Empty otherwise.
    """

    verdict: Verdict
    ratio: float
    ci95: tuple[float, float]
    steps_used: tuple[int, int]
    contaminated: tuple[int, int]
    a: SteadySteps
    b: SteadySteps
    reason: str = ""


def compare_series(a: Sequence[float], b: Sequence[float], *, tie_within: float = TIE_WITHIN) -> Comparison:
    """Compare two series of step times in seconds, each in the order of its run.

    The ratio is the Hodges-Lehmann estimate on logarithms with the interval that belongs to the Mann-Whitney test
    (Hodges and Lehmann 1963; Moses 1953): no assumption on the distribution, single slow steps move neither. The steps
    count for as many as independent ones would (``effective_steps``).

    There is no winner when a run has no steady speed or is worth too few independent steps, when a run was at the other
    one's speed for a while, nor when the totals say the opposite: a median is blind to steps that are often, but not
    mostly, slow.

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
    worth = effective_steps(ours), effective_steps(theirs)
    middle, low, high = _shift(ours, theirs, worth)
    verdict: Verdict = "tie"
    if high < -_RESOLUTION and exp(middle) < 1.0 - tie_within:
        verdict = "a_faster"
    elif low > _RESOLUTION and exp(-middle) < 1.0 - tie_within:
        verdict = "b_faster"
    reason = _unsteady(kept, worth)
    if verdict != "tie":
        reason = reason or _wandering(a, b, ours, theirs) or _contradicted(a, b, kept, middle)
    return Comparison(
        verdict="tie" if reason else verdict,
        ratio=exp(middle),
        ci95=(exp(low), exp(high)),
        steps_used=(len(ours), len(theirs)),
        contaminated=(len(a) - len(ours), len(b) - len(theirs)),
        a=kept[0],
        b=kept[1],
        reason=reason,
    )


def _unsteady(kept: tuple[SteadySteps, SteadySteps], worth: tuple[float, float]) -> str:
    """Why one of the series says nothing, in words; empty when both do."""
    for name, steady, steps in zip("AB", kept, worth, strict=True):
        if steady.unsteady:
            return f"{name} is unsteady: {steady.unsteady}"
        if steps < FEWEST_INDEPENDENT:
            return (
                f"the {len(steady.places)} steps of {name} may depend on each other so much that they are worth "
                f"{steps:.1f} independent ones, and {FEWEST_INDEPENDENT:g} are needed"
            )
    return ""


def _wandering(a: Sequence[float], b: Sequence[float], ours: list[float], theirs: list[float]) -> str:
    """How a run was at the other one's speed, in words; empty when none was for long."""
    levels = median(ours), median(theirs)
    return may_be_chance(stays_at(logarithms(a), *levels), stays_at(logarithms(b), *reversed(levels)))


def _contradicted(a: Sequence[float], b: Sequence[float], kept: tuple[SteadySteps, SteadySteps], middle: float) -> str:
    """How the mean steps say the opposite of the medians, in words; empty when they do not.

    Where it is the steps that count, the margin decides; pauses and disturbance must also be beyond chance.
    """
    counted, _ = _log_mean_ratio(kept[0].step_times_s, kept[1].step_times_s)
    everything, deviation = _log_mean_ratio(_after_warm_up(a, kept[0]), _after_warm_up(b, kept[1]))
    for total, noise, which in (
        (counted, 0.0, "the steps that count"),
        (everything, _MEANS_SIGMAS * deviation, "all steps after warm-up"),
    ):
        if total * middle < 0.0 and abs(total) > max(noise, TIE_WITHIN):
            slower, faster = ("A", "B") if total > 0.0 else ("B", "A")
            return (
                f"by the median {slower} is faster, by the mean of {which} {faster} is, "
                f"where {slower} takes {exp(abs(total)) - 1.0:.1%} longer"
            )
    return ""


def _log_mean_ratio(a: Sequence[float], b: Sequence[float]) -> tuple[float, float]:
    """Logarithm of the mean of A over that of B, and its standard deviation."""
    logs, variance = [], 0.0
    for series in (a, b):
        unit = max(series)  # so that neither sum nor square leaves the range of numbers
        mean = fsum(value / unit for value in series) / len(series)
        squares = fsum((value / unit / mean - 1.0) ** 2 for value in series) / max(1, len(series) - 1)
        variance += squares / effective_steps(logarithms(series))
        logs.append(log(unit) + log(mean))
    return logs[0] - logs[1], variance**0.5


def _after_warm_up(step_times_s: Sequence[float], steady: SteadySteps) -> list[float]:
    warm_up = {place for part in steady.set_aside if part.reason == "warm_up" for place in part.places}
    return [value for place, value in enumerate(step_times_s) if place not in warm_up]


def _shift(a: list[float], b: list[float], worth: tuple[float, float]) -> tuple[float, float, float]:
    """Median of all differences a - b, and the ends of its 95 % interval."""
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
