"""Which steps of a run show its steady speed; the others are set aside, each with a reason.

    warm_up     leading steps that are slower or faster than what follows: compilation, first allocations, autotuning
    pause       single steps off the level around them: checkpoint, evaluation, garbage collection, a stalled disk
    disturbed   a stretch on another level than most steps: a neighbour on the network, throttled clocks
    unsettled   a stretch that scatters several times more than the rest

A slow trend is none of these. Routers drift while they learn, and a run that drifts is its own truth: its steps stay,
and count for few (``effective_steps``). Everything is judged on logarithms, so the unit does not matter.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import isfinite, log
from statistics import median
from typing import Literal, get_args

from autotune.measure.dependence import Noise, logarithms, noise

Reason = Literal["warm_up", "pause", "disturbed", "unsettled"]

REASONS: tuple[Reason, ...] = get_args(Reason)

FEWEST_STEPS = 4
"""With three steps on each side, no distribution-free interval reaches 95 %."""

_PAUSE = 0.03
"""A single step less than this off its surroundings is never set aside (about 3 %); a median bears such steps."""

_SHIFT = 0.03
"""A stretch less than this off the rest is never set aside: it shows as dependence, and widens the interval."""

_SIGMAS = 5.0
"""Beyond the smallest difference, how many standard deviations a step or a stretch must be off."""

_SCATTER = 3.0
"""How many times more a stretch must scatter to be set aside."""

_SUDDEN = 4.0
"""Standard deviations of single steps that a jump between two steps and the next two is beyond doubt from."""

_SCATTER_STEPS = 10
"""Steps from which on a scatter is known well enough to call it another one."""

_SCATTER_GAIN = 7.0
"""Gain in log likelihood from which a change in scatter is believed; the best of many cuts gains some by chance."""

_MOST_UNSETTLED = 2 / 3
"""Share of the steps beyond which the scattering stretch is the run itself."""

_RESOLUTION = 1e-6
"""Scatter below a millionth is none."""

_WINDOWS = (7, 15, 30)
"""Steps on either side of a change of level; the short one sees a burst of four, the long one a change in noise."""

_SHORTEST = 4
"""Steps of the shortest stretch; fewer are single steps."""

_ABOUT_EQUAL = 0.8
"""A level held this share as long as another is held about equally long."""

_EDGE = 3
"""A change of level shows within this many steps on either side; a trend does not."""


@dataclass(frozen=True)
class SetAside:
    """Steps that are not counted, and why.

    Attributes:
        reason: See the module's list.
        places: Places in the series, from 0, ascending.
    """

    reason: Reason
    places: tuple[int, ...]


@dataclass(frozen=True)
class SteadySteps:
    """The part of a series that counts.

    Attributes:
        step_times_s: The steps that count, in order.
        places: Their places in the series, from 0.
        set_aside: The others by reason; every place of the series is in exactly one of both.
    """

    step_times_s: tuple[float, ...]
    places: tuple[int, ...]
    set_aside: tuple[SetAside, ...]


def steady_steps(step_times_s: Sequence[float]) -> SteadySteps:
    """The steps that show the steady speed of a run, in order, and what was set aside.

    Args:
        step_times_s: Step times in seconds, in the order of the run; of any constant unit in fact.

    Raises:
        ValueError: fewer than 4 steps, or a step time that is not positive and finite.
    """
    if len(step_times_s) < FEWEST_STEPS:
        raise ValueError(f"{len(step_times_s)} steps are too few, at least {FEWEST_STEPS} are needed")
    for place, value in enumerate(step_times_s):
        if not (isfinite(value) and value > 0.0):
            raise ValueError(f"step_times_s[{place}] = {value!r} must be positive and finite")
    values = logarithms(step_times_s)
    reason: dict[int, Reason] = dict.fromkeys(range(_warm_up(values)), "warm_up")

    judges: tuple[tuple[Reason, Callable[[Sequence[float]], list[int]]], ...] = (
        ("unsettled", _unsettled),
        ("pause", _pauses),
        ("disturbed", _disturbed),
        ("pause", _pauses),  # again, now that the scatter is that of the steady part
    )
    for name, judge in judges:
        left = [place for place in range(len(values)) if place not in reason]
        if len(left) < FEWEST_STEPS:
            break
        reason.update((left[index], name) for index in judge([values[place] for place in left]))
    _name_leading(reason)
    if len(values) - len(reason) < max(FEWEST_STEPS, len(values) // 4):
        reason.clear()  # no steady part: all of it counts, as wide as it scatters
    places = tuple(place for place in range(len(values)) if place not in reason)
    return SteadySteps(
        step_times_s=tuple(step_times_s[place] for place in places),
        places=places,
        set_aside=tuple(
            SetAside(name, found)
            for name in REASONS
            if (found := tuple(sorted(place for place, why in reason.items() if why == name)))
        ),
    )


def _name_leading(reason: dict[int, Reason]) -> None:
    """What is set aside before the first steady step is warm-up, whatever found it."""
    place = 0
    while place in reason:
        reason[place] = "warm_up"
        place += 1


def _warm_up(values: Sequence[float]) -> int:
    """Leading steps, at most half, that are off the level of the steps that follow each of them."""
    bound = max(_PAUSE, _SIGMAS * noise(values[len(values) // 4 :]).level)
    for place in range(len(values) // 2):
        level = median(values[place + 1 : place + 16])
        here = values[place : place + 3]
        if abs(here[0] - level) <= bound and abs(median(here) - level) <= bound:
            return place
    return len(values) // 2


def _pauses(values: Sequence[float]) -> list[int]:
    """Steps far off the median of their neighbours on both sides."""
    bound = max(_PAUSE, _SIGMAS * noise(values).step)
    return [
        place
        for place, value in enumerate(values)
        if abs(value - median(values[max(0, min(place - 3, len(values) - 7)) : max(place + 4, 7)])) > bound
    ]


def _disturbed(values: Sequence[float]) -> list[int]:
    """Steps of the stretches that are not on the level of most steps."""
    edges = _changes(values)
    if not edges:
        return []
    stretches = list(zip([0, *edges], [*edges, len(values)], strict=True))
    level = [median(values[first:end]) for first, end in stretches]
    near = max(_SHIFT / 2, 2.0 * noise(values).of_median(_SHORTEST))

    def held(index: int) -> int:
        """Steps of all stretches on about the level of this one."""
        return sum(
            end - first
            for (first, end), other in zip(stretches, level, strict=True)
            if abs(other - level[index]) <= near
        )

    # Of levels held about equally long the fastest counts: disturbance only ever slows.
    longest = max(held(index) for index in range(len(level)))
    usual = min(level[index] for index in range(len(level)) if held(index) >= _ABOUT_EQUAL * longest)
    return [
        place
        for (first, end), other in zip(stretches, level, strict=True)
        if abs(other - usual) > near
        for place in range(first, end)
    ]


def _changes(values: Sequence[float]) -> list[int]:
    """Places before which the level changes at once; short windows first, so that bursts are seen whole."""
    scatter = noise(values)
    found: list[int] = []
    for width in _WINDOWS:
        # Noise with memory wanders from level to level; a jump that no step of that wandering makes is believed sooner.
        surely = max(_SHIFT, _SIGMAS * 2**0.5 * scatter.of_median(width))
        at_least = max(_SHIFT, _SIGMAS * 2**0.5 * Noise(scatter.step, scatter.step, 0.0).of_median(width))
        jumps = {
            place: abs(jump)
            for place in range(_SHORTEST, len(values) - _SHORTEST + 1)
            if abs(jump := _jump(values, place, width)) > at_least
        }
        while jumps:
            peak = max(jumps, key=lambda place: (jumps[place], -place))
            edge = _edge(values, peak, width)
            sudden = abs(_jump(values, edge, 2)) > _SUDDEN * scatter.step
            here = abs(_jump(values, edge, _EDGE)) > jumps[peak] / 2
            if here and (sudden or jumps[peak] > surely) and all(abs(edge - other) >= _SHORTEST for other in found):
                found.append(edge)
            jumps = {place: jump for place, jump in jumps.items() if abs(place - peak) > width}
    return sorted(place for place in found if _SHORTEST <= place <= len(values) - _SHORTEST)


def _jump(values: Sequence[float], place: int, width: int) -> float:
    return median(values[place : place + width]) - median(values[max(0, place - width) : place])


def _edge(values: Sequence[float], near: int, width: int) -> int:
    """The place within a window's reach that parts two levels best (least absolute deviations)."""
    first, end = max(0, near - width), min(len(values), near + width)

    def misfit(place: int) -> float:
        parts = values[first:place], values[place:end]
        return sum(abs(value - middle) for part in parts for middle in [median(part)] for value in part)

    return min(range(max(first + 1, near - width // 2), min(end, near + width // 2 + 1)), key=misfit)


def _unsettled(values: Sequence[float]) -> list[int]:
    """The part before or after the likeliest change in scatter, if it scatters several times more than the rest."""
    changes = [abs(after - before) for before, after in pairwise(values)]
    count = len(changes)
    if count < 2 * _SCATTER_STEPS:
        return []
    most = _SCATTER**2 * median(changes)  # so that single pauses do not decide
    sums = [0.0, *accumulate(min(change, most) for change in changes)]

    def misfit(cut: int) -> float:
        """Negative log likelihood of two scales (Laplace), short of a constant."""
        before, after = sums[cut] / cut, (sums[-1] - sums[cut]) / max(1, count - cut)
        return cut * log(before + _RESOLUTION) + (count - cut) * log(after + _RESOLUTION)

    cut = min(range(_SCATTER_STEPS, count - _SCATTER_STEPS + 1), key=misfit)
    alike = misfit(count)
    before, after = median(changes[:cut]), median(changes[cut:])
    if alike - misfit(cut) < _SCATTER_GAIN or max(before, after) <= max(_SCATTER * min(before, after), _PAUSE / 3):
        return []
    noisy = range(cut + 1, len(values)) if after > before else range(cut)
    return list(noisy) if len(noisy) <= len(values) * _MOST_UNSETTLED else []
