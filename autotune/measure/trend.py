"""How much a run changed from its first to its last step, and how sure that is."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import fsum
from statistics import median

from autotune.measure.dependence import effective_steps, normal_scores


@dataclass(frozen=True)
class Trend:
    """A straight line through the steps of a run.

    Attributes:
        change: From the first to the last step, in the unit of the values: twice what the medians of its halves differ.
        sigmas: Standard deviations that the slope is away from none, allowing for the dependence of what the line
            leaves; 0.0 where there are fewer than 8 steps, or these all depend on each other.
    """

    change: float
    sigmas: float


def line_through(scores: Sequence[float]) -> list[float]:
    """Where the straight line that fits centred scores best is at each of them."""
    places = [place - (len(scores) - 1) / 2.0 for place in range(len(scores))]
    slope = fsum(score * place for score, place in zip(scores, places, strict=True)) / squares(places)
    return [slope * place for place in places]


def squares(values: Sequence[float]) -> float:
    """Sum of squares."""
    return fsum(value**2 for value in values)


def trend_of(values: Sequence[float]) -> Trend:
    """The trend of a run.

    Args:
        values: Logarithms of its step times, in order.
    """
    count, half = len(values), len(values) // 2
    if count < 8:
        return Trend(0.0, 0.0)
    scores = normal_scores(values)
    line = line_through(scores)
    left = [score - at for score, at in zip(scores, line, strict=True)]
    explained, unexplained = squares(line), squares(left)
    worth = max(0.0, effective_steps(left) - 2.0)
    return Trend(
        change=2.0 * (median(values[half:]) - median(values[:half])),
        sigmas=(explained / unexplained * worth) ** 0.5 if unexplained > 0.0 else 0.0,
    )
