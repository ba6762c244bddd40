"""Where the level of a series of step times changes at once."""

from bisect import bisect_left, insort
from collections.abc import Sequence
from statistics import median

from autotune.measure.dependence import Noise

SMALLEST = 0.03
"""A level less than this off another one is not told apart (about 3 %): it shows as dependence, which widens the
interval."""

SIGMAS = 5.0
"""Beyond the smallest difference, how many standard deviations a step or a level must be off."""

SHORTEST = 4
"""Steps of the shortest stretch on a level; fewer are single steps."""

_SUDDEN = 4.0
"""Standard deviations of single steps that a jump between two steps and the next two is beyond doubt from."""

_WINDOWS = (7, 15, 30)
"""Steps on either side of a change of level; the short one sees a burst of four, the long one a change in noise."""

_EDGE = 3
"""A change of level shows within this many steps on either side; a trend does not."""


def window_medians(values: Sequence[float], width: int) -> list[float]:
    """Medians of so many neighbours, by the place of the first of them plus ``width - 1``.

    At both ends there are those of fewer values: at 0 that of the first alone, at the last that of the last alone.
    """
    window: list[float] = []
    medians = []
    for end in range(1, len(values) + width if values else 1):
        if end <= len(values):
            insort(window, values[end - 1])
        if end > width:
            del window[bisect_left(window, values[end - width - 1])]
        half = len(window) // 2
        medians.append(window[half] if len(window) % 2 else (window[half - 1] + window[half]) / 2.0)
    return medians


def changes(values: Sequence[float], scatter: Noise) -> list[int]:
    """Places before which the level changes at once; short windows first, so that bursts are seen whole.

    Args:
        values: Logarithms of step times, in order.
        scatter: How they scatter.
    """
    count = len(values)
    found: set[int] = set()
    for width in _WINDOWS:
        # Noise with memory wanders from level to level; a jump that no step of that wandering makes is believed sooner.
        surely = max(SMALLEST, SIGMAS * 2**0.5 * scatter.of_median(width))
        at_least = max(SMALLEST, SIGMAS * 2**0.5 * Noise(scatter.step, scatter.step, 0.0).of_median(width))
        medians = window_medians(values, width)
        jumps = {
            place: jump
            for place in range(SHORTEST, count - SHORTEST + 1)
            if (jump := abs(medians[place + width - 1] - medians[place - 1])) > at_least
        }
        for peak in sorted(jumps, key=lambda place: (-jumps[place], place)):
            if peak not in jumps:
                continue  # beside a higher one
            edge = _edge(values, peak, width)
            sudden = _jump(values, edge, 2) > _SUDDEN * scatter.step
            here = _jump(values, edge, _EDGE) > jumps[peak] / 2
            alone = found.isdisjoint(range(edge - SHORTEST + 1, edge + SHORTEST))
            if here and alone and (sudden or jumps[peak] > surely):
                found.add(edge)
            for place in range(peak - width, peak + width + 1):
                jumps.pop(place, None)
    return sorted(place for place in found if SHORTEST <= place <= count - SHORTEST)


def _jump(values: Sequence[float], place: int, width: int) -> float:
    return abs(median(values[place : place + width]) - median(values[max(0, place - width) : place]))


def _edge(values: Sequence[float], near: int, width: int) -> int:
    """The place within a window's reach that parts two levels best (least absolute deviations)."""
    first, end = max(0, near - width), min(len(values), near + width)

    def misfit(place: int) -> float:
        off = _off_median(values[first:place]) + _off_median(values[place:end])
        return round(off, 11)  # of equal places the first, whatever the rounding of the sums

    return min(range(max(first + 1, near - width // 2), min(end, near + width // 2 + 1)), key=misfit)


def _off_median(values: Sequence[float]) -> float:
    """Sum of the distances from the median."""
    ordered, half = sorted(values), len(values) // 2
    return sum(ordered[len(ordered) - half :]) - sum(ordered[:half])
