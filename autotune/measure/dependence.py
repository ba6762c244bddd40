"""How many independent steps a series of step times is worth.

Neighbouring steps resemble each other: clocks, neighbours on the network and the router's load change slowly. The
median of 40 such steps is less certain than that of 40 independent ones, and an interval that ignores this finds
winners where there are none.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from math import cos, fsum, inf, log, pi, sqrt
from operator import mul
from statistics import NormalDist, fmean, median

_MAD_TO_SIGMA = 1.4826
"""Standard deviation over median absolute deviation, of a normal distribution."""

_MEDIAN_SPREAD = 1.2533
"""Standard deviation of a median over that of a mean (normal values)."""

_MEMORIES = tuple(step / 20 for step in range(20))
"""Correlations of neighbours that are told apart."""

_STRONGEST = 0.99
"""A series of a stronger correlation of neighbours is worth a step or two in any case."""

_CAUTION = 0.9
"""Standard deviations that the correlation of neighbours may be above what the series shows."""

_MOST_LAGS = 500
"""Lags looked at; a longer memory shows in these already, as a series that is worth very little."""

_MOST_BATCHES = 2000
"""Steps whose correlations are looked at; those of a longer series are averaged in batches, so many of them."""


def robust_sigma(values: Sequence[float]) -> float:
    """Spread of values as a standard deviation, from the median absolute deviation; in the unit of the values."""
    middle = median(values)
    return _MAD_TO_SIGMA * median(abs(value - middle) for value in values)


@dataclass(frozen=True)
class Noise:
    """How a series scatters around a level that changes only now and then.

    Attributes:
        step: Standard deviation of what is new in each step; blind to drift and to changes of level.
        level: Standard deviation around the level.
        memory: Correlation of neighbouring steps, from 0.0 to 0.95.
    """

    step: float
    level: float
    memory: float

    def of_median(self, steps: int) -> float:
        """Standard deviation of the median of so many consecutive steps (normal values)."""
        worth = steps * (1.0 - self.memory) / (1.0 + self.memory)
        return self.level * min(1.0, _MEDIAN_SPREAD / sqrt(max(1.0, worth)))


def noise(values: Sequence[float]) -> Noise:
    """Scatter and memory of a series from its differences at lag 1 and lag 4.

    In a first-order autoregression their variances are in the ratio 1 + r + r^2 + r^3, r the correlation of neighbours.
    A change of level spoils only four differences of lag 4, which a median absolute deviation bears; a trend reads as
    memory, which it is for everybody who looks for changes of level.
    """
    near, far = _lagged_sigma(values, 1), _lagged_sigma(values, 4)
    step = min(near, robust_sigma(values))  # every third step slow spoils two of three differences
    if step == 0.0:
        return Noise(0.0, 0.0, 0.0)
    ratio = (far / near) ** 2
    memory = max(r for r in _MEMORIES if r == 0.0 or 1.0 + r + r**2 + r**3 <= ratio)
    return Noise(step, step / (1.0 - memory) ** 0.5, memory)


def effective_steps(values: Sequence[float]) -> float:
    """Independent steps that say as much about the level as these, from 1.0 to their number.

    The number over the integrated autocorrelation time. Ranks stand in for the values, so that single slow steps and
    the unit do not matter. Sums of two neighbouring autocorrelations are added up while they stay positive and fall
    (Geyer 1992, "Practical Markov chain Monte Carlo", Statistical Science 7(4): initial monotone sequence). Drift
    is not taken out first: two runs that drift cannot be told apart by where their windows happen to lie. Of more than
    2000 steps, the means of batches are looked at.
    """
    count = len(values)
    if count < 4:
        return float(count)
    scores = normal_scores(values)
    power = fsum(score * score for score in scores)
    size = -(-count // _MOST_BATCHES)
    means = [fmean(scores[first : first + size]) for first in range(0, count - size + 1, size)]
    rest = fsum(mean * mean for mean in means) / len(means)
    if rest == 0.0:
        return float(count)
    # The mean of all has the variance of a batch's mean over the number that the batches are worth.
    return max(1.0, min(float(count), power / count / rest * len(means) / _correlation_time(means)))


def _correlation_time(scores: Sequence[float]) -> float:
    """Steps that one independent step takes, at least 1.0, of centred scores."""
    count = len(scores)
    power: float = sum(map(mul, scores, scores))

    def correlation(lag: int) -> float:
        product: float = sum(map(mul, scores, islice(scores, lag, None)))
        return product / power

    time, ceiling = -1.0, inf
    for lag in range(0, min(count // 2, _MOST_LAGS), 2):
        pair = correlation(lag) + correlation(lag + 1)
        if pair <= 0.0:
            break
        ceiling = min(ceiling, pair)
        time += 2.0 * ceiling
    first = (count * correlation(1) + 1.0) / (count - 3.0)
    first = min(_STRONGEST, first + _CAUTION * sqrt(max(0.0, 1.0 - first**2) / count))
    return max(1.0, time, (1.0 + first) / (1.0 - first))


def student_quantile(probability: float, degrees: float) -> float:
    """Quantile of Student's t by its expansion around the normal one (Abramowitz and Stegun 26.7.5).

    Within 0.2 % of the exact value from 4 degrees of freedom on at the usual 97.5 %; exact for 1 and 2.
    """
    z = NormalDist().inv_cdf(probability)
    if degrees <= 1.0:
        return -cos(pi * probability) / sqrt(1.0 - cos(pi * probability) ** 2)
    if degrees <= 2.0:
        return (2.0 * probability - 1.0) * sqrt(0.5 / (probability * (1.0 - probability)))
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + sum(term / degrees**power for power, term in enumerate(terms, start=1))


def _lagged_sigma(values: Sequence[float], lag: int) -> float:
    if len(values) <= lag:
        return 0.0
    return robust_sigma([after - before for before, after in zip(values, values[lag:], strict=False)]) / 2**0.5


def logarithms(step_times_s: Sequence[float]) -> list[float]:
    """Natural logarithms: differences of these are ratios of times, whatever the unit.

    Rounded to 12 places, so that steps that differ by the rounding of a unit are equal.
    """
    return [round(log(value), 12) for value in step_times_s]


def order_statistics(values: Sequence[float], most: int) -> list[float]:
    """The values in ascending order, or, of more than ``most``, so many evenly spaced ones of them."""
    ordered, count = sorted(values), len(values)
    return ordered if count <= most else [ordered[(2 * index + 1) * count // (2 * most)] for index in range(most)]


def normal_scores(values: Sequence[float]) -> list[float]:
    """Ranks as normal quantiles, centred; equal values share their middle rank."""
    count = len(values)
    order = sorted(range(count), key=values.__getitem__)
    inverse = NormalDist().inv_cdf
    scores = [0.0] * count
    first = 0
    while first < count:
        last = first
        while last + 1 < count and values[order[last + 1]] == values[order[first]]:
            last += 1
        score = inverse(((first + last) / 2 + 0.5) / count)
        for place in order[first : last + 1]:
            scores[place] = score
        first = last + 1
    return scores
