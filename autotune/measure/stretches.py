"""The stretch of a run that differs most from the rest of it, seen or not behind the scatter of single steps.

A neighbour on the network or a throttled clock slows many steps by little. No single step shows that, and so none can
be set aside for it; together they do, as a stretch of which nearly all steps are among the slower ones.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import sub
from statistics import NormalDist, fmean

from autotune.measure.changes import SHORTEST
from autotune.measure.dependence import effective_steps, normal_scores
from autotune.measure.trend import line_through, squares

_FINENESS = 8
"""Stretches that are looked at differ by about one over this of their length."""


@dataclass(frozen=True)
class Stretch:
    """Neighbouring steps, and how they differ from the rest.

    Attributes:
        first: Place of the first of them.
        end: Place after the last.
        apart: How much higher their mean is than that of the rest, in the unit of the values.
        chance: Share of runs on one level in which some stretch differs so much, at most 1; simulated runs of 20 to 400
            steps with correlations of neighbours from 0 to 0.9 had one below 0.03 in 0.3 to 4.2 %.
        trend: Whether a straight line explains as much as the stretch does.
    """

    first: int
    end: int
    apart: float
    chance: float
    trend: bool


def likeliest_stretch(values: Sequence[float]) -> Stretch | None:
    """The stretch of at least 4 steps that chance makes least often; the rest of the run has at least 4 steps too.

    Normal scores of the ranks stand in for the values, so that single slow steps do not matter. The sum of the scores
    of a stretch has a known deviation when every order of the steps is equally likely. What remains when stretch and
    rest are each moved to their own mean shows how much neighbours depend on each other, and widens that deviation;
    dependence that is looked for in the whole series would be the very stretch. The largest of all stretches is judged
    as the largest of as many independent ones as there are steps.

    Args:
        values: Logarithms of step times, in order.

    Returns:
        The stretch, or None when there are fewer than 8 steps or all are equal.
    """
    count, scores = len(values), normal_scores(values)
    power = sum(score * score for score in scores)
    if count < 2 * SHORTEST or power == 0.0:
        return None
    squared, first, end = _furthest(scores)
    inside, outside = fmean(scores[first:end]), fmean(scores[:first] + scores[end:])
    left = [score - (inside if first <= place < end else outside) for place, score in enumerate(scores)]
    deviations = (squared * (count - 1) / power * effective_steps(left) / count) ** 0.5
    return Stretch(
        first=first,
        end=end,
        apart=fmean(values[first:end]) - fmean([*values[:first], *values[end:]]),
        chance=min(1.0, 2.0 * count * NormalDist().cdf(-deviations)),
        trend=squared <= squares(line_through(scores)),
    )


def _furthest(scores: Sequence[float]) -> tuple[float, int, int]:
    """Sum of squares that the best stretch explains, of centred scores, and where it is."""
    count, steps = len(scores), SHORTEST
    sums = [0.0, *accumulate(scores)]
    found = (-1.0, 0, 0)
    while steps <= count - SHORTEST:
        apart = max(1, steps // _FINENESS)
        totals = list(map(sub, sums[steps::apart], sums[: count - steps + 1 : apart]))
        total = max(max(totals), -min(totals))
        squared = total**2 * count / (steps * (count - steps))
        if squared > found[0]:
            first = apart * totals.index(total if total in totals else -total)
            found = (squared, first, first + steps)
        steps += apart
    return found
