"""Pairs of windows of one recorded run of which one was disturbed on purpose."""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from autotune.measure.compare import compare_series

WINDOW = 40

Steps = list[float]
Disturb = Callable[[random.Random, Steps], tuple[Steps, set[int]]]
"""Source of chance and a window in; the disturbed window and the places that were disturbed out."""


def slowed(steps: int, factor: float, *, at_end: bool = False) -> Disturb:
    """So many steps on end take this many times as long, within the window or up to its end."""

    def disturb(source: random.Random, window: Steps) -> tuple[Steps, set[int]]:
        first = len(window) - steps if at_end else source.randrange(2, len(window) - steps - 1)
        where = set(range(first, first + steps))
        return [value * factor if place in where else value for place, value in enumerate(window)], where

    return disturb


def slowed_again(stretches: int, steps: int, factor: float) -> Disturb:
    """The same for several stretches, one in each equal part of the window."""

    def disturb(source: random.Random, window: Steps) -> tuple[Steps, set[int]]:
        part = len(window) // stretches
        firsts = (part * index + source.randrange(part - steps + 1) for index in range(stretches))
        where = {place for first in firsts for place in range(first, first + steps)}
        return [value * factor if place in where else value for place, value in enumerate(window)], where

    return disturb


def paused(pauses: int, factor: float) -> Disturb:
    """So many single steps take this many times as long, none of them beside another."""

    def disturb(source: random.Random, window: Steps) -> tuple[Steps, set[int]]:
        where = {2 * place + 2 for place in source.sample(range(len(window) // 2 - 2), pauses)}
        return [value * factor if place in where else value for place, value in enumerate(window)], where

    return disturb


DISTURBANCES: dict[str, Disturb] = {
    "nothing": lambda _source, window: (window, set()),
    **{
        f"{steps} steps {factor - 1.0:.0%} slower{', at the end' * at_end}": slowed(steps, factor, at_end=at_end)
        for at_end in (False, True)
        for factor in (1.05, 1.1, 1.5)
        for steps in (8, 12, 20)
    },
    "2 times 10 steps 5% longer": slowed_again(2, 10, 1.05),
    "2 times 10 steps 10% longer": slowed_again(2, 10, 1.1),
    "3 times 6 steps 10% longer": slowed_again(3, 6, 1.1),
    "3 times 6 steps 50% longer": slowed_again(3, 6, 1.5),
    "1 pause of 1.5 steps": paused(1, 1.5),
    "3 pauses of 3 steps": paused(3, 3.0),
}
"""What may happen to a run, by name."""


@dataclass(frozen=True)
class Recognition:
    """Shares of the pairs: with a disturbance that was seen, and with a winner though the runs are equal."""

    seen: float
    won: float


def recognition(times: Steps, disturb: Disturb) -> Recognition:
    """Compare adjacent windows of a run, one of each two disturbed, in turn the first and the second.

    A disturbance is seen when one of its steps is set aside, the run is called unsteady, or a reason is given.
    """
    seen, won, pairs = 0, 0, 0
    source = random.Random(5)
    for index, (a, b) in enumerate(adjacent_windows(times)):
        clean, (dirty, where) = (a, disturb(source, b)) if index % 2 else (b, disturb(source, a))
        found = compare_series(clean, dirty)
        pairs += 1
        won += found.verdict != "tie"
        seen += bool(found.reason) or not where.isdisjoint(set(range(WINDOW)) - set(found.b.places))
    return Recognition(seen / pairs, won / pairs)


def adjacent_windows(times: Steps) -> Iterator[tuple[Steps, Steps]]:
    """Windows of 40 steps and the next 40, each pair overlapping the pair before by half."""
    for first in range(0, len(times) - 2 * WINDOW + 1, WINDOW):
        yield times[first : first + WINDOW], times[first + WINDOW : first + 2 * WINDOW]
