"""Which of two series of step times is faster, or that they do not say."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import exp, expm1, floor, fsum, log
from statistics import median
from typing import Literal

from autotune.measure.dependence import effective_steps, logarithms, order_statistics, student_quantile
from autotune.measure.stays import may_be_chance, stays_at
from autotune.measure.steady import SteadySteps, steady_steps
from autotune.measure.trend import trend_of

Verdict = Literal["a_faster", "b_faster", "tie"]

TIE_WITHIN = 0.01
"""Differences of less than this share of a step are never a win: runs of one configuration on the same nodes differ
by 0.1 % at best, and variants that turned out to be identical have differed by 1.06 % (Megatron-Bridge, PR #5098)."""

FEWEST_INDEPENDENT = 3.0
"""Independent steps that a series must be worth to win or lose; what wanders more has not shown its level yet."""

_PART = 1 / 4
"""Share of a run's steps whose median stands for it when the others are on another level."""

_LIKELY = 0.5
"""Share of runs on one level with a stretch like it, above which a stretch explains nothing."""

_DRIFTS, _DRIFT = 2.25, 3 / 4
"""A run drifts when its slope is so many standard deviations from none; and as much as two runs differ, when its change
is more than this share of the difference. Of adjacent windows of one run that drifts it is all of it."""

_ALIKE = 2.0
"""Standard deviations of the correlation of neighbours in independent steps, above which they are not."""

_MOST_ORDERED = 4000
"""Steps of a series that are paired with those of the other; of a longer one, as many evenly spaced quantiles."""

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
    one's speed for a while, when one stretch of the slower run makes most of the difference, nor when the means say the
    opposite: a median is blind to steps that are often, but not mostly, slow. Pauses that were set aside say nothing.

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
        reason = (
            reason
            or _wandering(a, b, ours, theirs)
            or _explained(ours, theirs, kept, middle)
            or _drifting(ours, theirs, middle)
            or _in_part(ours, theirs, middle)
            or _contradicted(kept, middle)
        )
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


def _explained(ours: list[float], theirs: list[float], kept: tuple[SteadySteps, SteadySteps], middle: float) -> str:
    """How one stretch makes more than half of the difference, in words; empty when none does.

    Whatever disturbs a run slows it, so the faster part of the slower run is the one to win against.
    """
    name, own, other, steady = ("A", ours, theirs, kept[0]) if middle > 0.0 else ("B", theirs, ours, kept[1])
    if not (stretch := steady.stretch) or stretch.chance > _LIKELY:
        return ""
    inside, outside = own[stretch.first : stretch.end], own[: stretch.first] + own[stretch.end :]
    part, slow = (outside, inside) if median(inside) > median(outside) else (inside, outside)
    if len(part) < _PART * len(own):
        return ""
    left = _median_difference(order_statistics(part, _MOST_ORDERED), order_statistics(other, _MOST_ORDERED))
    if left >= abs(middle) / 2.0:
        return ""
    return (
        f"{name} went slower for {len(slow)} of {len(own)} steps, and its other steps take {expm1(abs(left)):.1%} "
        f"{'longer' if left > 0.0 else 'less'} than those of {'B' if name == 'A' else 'A'}"
    )


def _drifting(ours: list[float], theirs: list[float], middle: float) -> str:
    """How a run itself changed by as much as the two differ, in words; empty when neither did.

    A router that learns makes the later of two windows of one run the faster one.
    """
    for name, trend in zip("AB", map(trend_of, (ours, theirs)), strict=True):
        if trend.sigmas > _DRIFTS and abs(trend.change) > _DRIFT * abs(middle):
            became = f"{expm1(abs(trend.change)):.1%} {'slower' if trend.change > 0.0 else 'faster'}"
            return f"{name} itself became {became} from its first step to its last"
    return ""


def _in_part(ours: list[float], theirs: list[float], middle: float) -> str:
    """How the slower run is slower in stretches only, in words; empty when it is not.

    A run that is slower throughout is so in its faster steps as in its slower ones. Steps that are slow now and then
    are a run's own; several in a row, again and again, may be what disturbed it.
    """
    name, own, other = ("A", ours, theirs) if middle > 0.0 else ("B", theirs, ours)
    (first, third), (first_of_other, third_of_other) = _quartiles(own), _quartiles(other)
    quick, slow = first - first_of_other, third - third_of_other
    if quick >= slow / 2.0 or not _resemble(own, (first + third) / 2.0):
        return ""
    return (
        f"the slow steps of {name} come one after another: the slower quarter of its steps begins {expm1(slow):.1%} "
        f"above that of {'B' if name == 'A' else 'A'}, and the faster one ends {max(0.0, expm1(quick)):.1%} above"
    )


def _quartiles(values: list[float]) -> tuple[float, float]:
    """The first and the third one."""
    ordered = sorted(values)
    return ordered[int(1 / 4 * len(ordered))], ordered[int(3 / 4 * len(ordered))]


def _resemble(values: list[float], between: float) -> bool:
    """Whether slow steps, those above the given level, follow slow ones more often than independent ones would."""
    share = sum(value > between for value in values) / len(values)
    slow = [(value > between) - share for value in values]
    power = fsum(score**2 for score in slow)
    alike = fsum(before * after for before, after in pairwise(slow))
    return power > 0.0 and alike / power > _ALIKE / len(values) ** 0.5


def _contradicted(kept: tuple[SteadySteps, SteadySteps], middle: float) -> str:
    """How the mean of the steps that count says the opposite of the medians, in words; empty when it does not."""
    total = _log_mean(kept[0].step_times_s) - _log_mean(kept[1].step_times_s)
    if total * middle >= 0.0 or abs(total) <= TIE_WITHIN:
        return ""
    slower, faster = ("A", "B") if total > 0.0 else ("B", "A")
    return (
        f"by the median {slower} is faster, by the mean of the steps that count {faster} is, "
        f"where {slower} takes {expm1(abs(total)):.1%} longer"
    )


def _log_mean(step_times_s: Sequence[float]) -> float:
    unit = max(step_times_s)  # so that the sum stays in the range of numbers
    return log(unit) + log(fsum(value / unit for value in step_times_s) / len(step_times_s))


def _shift(a: list[float], b: list[float], worth: tuple[float, float]) -> tuple[float, float, float]:
    """Median of all differences a - b, and the ends of its 95 % interval."""
    # Mann-Whitney's U over its number of pairs has variance (1/n + 1/m) / 12 under a pure shift, plus 1 / 12nm.
    deviation = ((1.0 / worth[0] + 1.0 / worth[1] + 1.0 / (worth[0] * worth[1])) / 12.0) ** 0.5
    share = 0.5 - student_quantile(0.975, max(1.0, worth[0] + worth[1] - 2.0)) * deviation
    a, b = order_statistics(a, _MOST_ORDERED), order_statistics(b, _MOST_ORDERED)
    pairs = len(a) * len(b)
    tail = max(0, min(floor(share * pairs), (pairs - 1) // 2))
    return _median_difference(a, b), _nth_difference(a, b, tail), _nth_difference(a, b, pairs - 1 - tail)


def _median_difference(a: Sequence[float], b: Sequence[float]) -> float:
    """Median of all differences of two sorted sequences."""
    pairs = len(a) * len(b)
    return (_nth_difference(a, b, (pairs - 1) // 2) + _nth_difference(a, b, pairs // 2)) / 2.0


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
