"""Invented step times whose truth is known: processes that real runs have shown in part."""

import math
import random
from collections.abc import Callable

Process = Callable[[random.Random, int], list[float]]


def white(sigma: float) -> Process:
    """Independent steps, log-normal."""
    return lambda source, count: [math.exp(source.gauss(0.0, sigma)) for _ in range(count)]


def autoregression(source: random.Random, count: int, memory: float, sigma: float = 1.0) -> list[float]:
    """First-order autoregression around 0; ``memory`` is the correlation of neighbours."""
    state, values = source.gauss(0.0, sigma), []
    for _ in range(count):
        values.append(state)
        state = memory * state + source.gauss(0.0, sigma * math.sqrt(1.0 - memory**2))
    return values


def wandering(memory: float, sigma: float) -> Process:
    """Times whose logarithms are an autoregression."""
    return lambda source, count: [math.exp(state) for state in autoregression(source, count, memory, sigma)]


def two_levels(stay: float, apart: float, sigma: float = 0.003) -> Process:
    """Jumps between two levels; on either for ``stay`` steps in the mean."""

    def steps(source: random.Random, count: int) -> list[float]:
        slow, times = source.random() < 0.5, []
        for _ in range(count):
            times.append((1.0 + apart * slow) * math.exp(source.gauss(0.0, sigma)))
            slow ^= source.random() < 1.0 / stay
        return times

    return steps


def many_levels(stay: float, levels: tuple[float, ...] = (), sigma: float = 0.003) -> Process:
    """Jumps to another of these levels, or to any up to 30 % slower; on each for ``stay`` steps in the mean."""

    def steps(source: random.Random, count: int) -> list[float]:
        def other(than: float) -> float:
            return source.choice([level for level in levels if level != than]) if levels else source.uniform(1.0, 1.3)

        level, times = other(0.0), []
        for _ in range(count):
            times.append(level * math.exp(source.gauss(0.0, sigma)))
            if source.random() < 1.0 / stay:
                level = other(level)
        return times

    return steps


def tailed(alpha: float, scale: float | None = None) -> Process:
    """Pareto's tail on the slow side: the whole time, or a part of it on top of a constant."""
    if scale is None:
        return lambda source, count: [source.paretovariate(alpha) for _ in range(count)]
    return lambda source, count: [1.0 + scale * source.paretovariate(alpha) for _ in range(count)]


def drifting(total: float, sigma: float) -> Process:
    """A trend to the faster or the slower side, which either is by chance."""

    def steps(source: random.Random, count: int) -> list[float]:
        slope = total * source.choice((-1, 1))
        return [math.exp(slope * (place / count - 0.5) + source.gauss(0.0, sigma)) for place in range(count)]

    return steps


PROCESSES: dict[str, Process] = {
    "independent, 1 %": white(0.01),
    "independent, 3 %": white(0.03),
    "correlation 0.5, 2 %": wandering(0.5, 0.02),
    "correlation 0.9, 2 %": wandering(0.9, 0.02),
    **{
        f"two levels {apart:.0%} apart, stays of {stay}": two_levels(stay, apart)
        for stay in (3, 5, 8, 12, 20)
        for apart in (0.05, 0.15, 0.3)
    },
    "two levels 10% apart, stays of 5, 1 % noise": two_levels(5, 0.1, 0.01),
    "two levels 10% apart, stays of 12, 1 % noise": two_levels(12, 0.1, 0.01),
    "Pareto 1.2": tailed(1.2),
    "Pareto 1.5": tailed(1.5),
    "1 + 0.02 Pareto 1.2": tailed(1.2, 0.02),
    "1 + 0.1 Pareto 1.2": tailed(1.2, 0.1),
    "1 + 0.1 Pareto 1.5": tailed(1.5, 0.1),
    "drift of 5 %": drifting(0.05, 0.005),
    "drift of 10 %": drifting(0.1, 0.005),
}
"""What two runs of one configuration may look like, by name."""

FEW_STAYS: dict[str, Process] = {
    **{f"three levels 10% apart, stays of {stay}": many_levels(stay, (1.0, 1.1, 1.2)) for stay in (5, 12, 20)},
    **{f"any level up to 30% slower, stays of {stay}": many_levels(stay) for stay in (5, 12, 20)},
}
"""Processes whose levels do not come back within a run, so that no run shows that they are not its own."""
