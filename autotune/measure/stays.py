"""Whether a run went to and fro between its own speed and another's.

A run that jumps between two levels and stays on each for a while shows by chance mostly the one or mostly the other.
Its steps are many, but its stays are few, and these are what is independent. So a difference between two runs is not
believed when one of them was at the other's speed for a while.
"""

from collections.abc import Sequence
from dataclasses import dataclass

_NEAR = 0.25
"""A step is at a level when it is off by less than this share of the distance between the two levels."""

_SHORTEST = 4
"""Steps of the shortest stay that speaks for itself."""

_CUT_OFF = 2
"""A stay at an end of the series is counted this many times as long: it began or went on out of sight."""

_BY_CHANCE = 0.05
"""Independent steps that make a stay of this length more often explain it."""

_SURE = 3.0
"""Standard deviations that the shares of both runs must be apart by."""


@dataclass(frozen=True)
class Stays:
    """The stays of one run at a level that is not its own.

    Attributes:
        steps: Steps of the whole run.
        lengths: Steps of each stay, in order.
        telling: Steps of the longest stay that independent steps do not explain; 0 when there is none.
    """

    steps: int
    lengths: tuple[int, ...]
    telling: int = 0

    @property
    def share(self) -> float:
        """Part of the run that these stays are."""
        return sum(self.lengths) / self.steps

    @property
    def variance(self) -> float:
        """Variance of the share: that of a compound Poisson process, and of one more stay that was not seen."""
        return (sum(length**2 for length in self.lengths) + max(self.lengths, default=0) ** 2) / self.steps**2


def stays_at(values: Sequence[float], own: float, other: float) -> Stays:
    """When a run was at another level than its own.

    Args:
        values: Logarithms of all its step times, set aside or not: what is set aside as disturbance of one run may be
            the usual state of another.
        own: Level of the run, as a logarithm.
        other: The other level.
    """
    count, near = len(values), _NEAR * abs(other - own)
    lengths, ends, length = [], [], 0
    for place in range(count + 1):
        if place < count and abs(values[place] - other) < near:
            length += 1
        elif length:
            lengths.append(length)
            ends.append(place in (length, count))
            length = 0
    share = sum(lengths) / count
    telling = [
        length
        for length, at_end in zip(lengths, ends, strict=True)
        if length * (_CUT_OFF if at_end else 1) >= _SHORTEST
        and (2 if at_end else count * (1.0 - share)) * share**length < _BY_CHANCE
    ]
    return Stays(count, tuple(lengths), max(telling, default=0))


def may_be_chance(a: Stays, b: Stays) -> str:
    """Why the difference between two runs may be where each happened to stay, in words; empty when it is not.

    Args:
        a: Stays of A at the level of B.
        b: Stays of B at the level of A.
    """
    for name, other, stays in (("A", "B", a), ("B", "A", b)):
        if stays.telling:
            steps = f"{stays.telling} step{'s' * (stays.telling != 1)}"
            return f"{name} itself was at the speed of {other} for {steps} on end, and may go there again"
    if max((*a.lengths, *b.lengths), default=0) <= 1:
        return ""  # one step at a time, as two kinds of steps in turns: steps, then, are what is independent
    if 1.0 - a.share - b.share <= _SURE * (a.variance + b.variance) ** 0.5:
        return (
            f"A was at the speed of B in {len(a.lengths)} and B at that of A in {len(b.lengths)} stays "
            f"({a.share:.0%} and {b.share:.0%} of the steps), so the difference may be chance"
        )
    return ""
