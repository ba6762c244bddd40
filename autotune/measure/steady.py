"""Which steps of a run show its steady speed; the others are set aside, each with a reason.

    warm_up     leading steps that are slower than nearly all that follows: compilation, first allocations, autotuning
    pause       rare single steps off the level around them: checkpoint, evaluation, a stalled disk
    disturbed   a stretch on another level that ends again: a neighbour on the network, throttled clocks
    unsettled   a stretch that scatters several times more than the rest

What comes back all the time is the run's speed: steps that are often or regularly slow stay, and so do both levels of a
run that jumps to and fro. A change for good stays too, as nothing says which side of it is the run. So does a slow
trend: routers drift while they learn, and a run that drifts is its own truth; its steps count for few
(``effective_steps``). A run of which too much would have to go is ``unsteady``. Everything is judged on logarithms, so
the unit does not matter.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import isfinite, log
from statistics import median
from typing import Literal, NamedTuple, get_args

from autotune.measure.dependence import Noise, logarithms, noise

Reason = Literal["warm_up", "pause", "disturbed", "unsettled"]

REASONS: tuple[Reason, ...] = get_args(Reason)

FEWEST_STEPS = 4
"""With three steps on each side, no distribution-free interval reaches 95 %."""

_PAUSE = 0.03
"""A single step less than this off its surroundings is never set aside (about 3 %); a median bears such steps."""

_APART = 4.0
"""How many times further off than the next step a pause must be."""

_HARDLY_ANY = 1 / 100
"""Share of steps that may go wherever they are: it moves a median by a small part of what chance does."""

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

_MOST_OFF = 0.4
"""Share of the steps after warm-up beyond which what is off is the run itself."""

_RARE = 1 / 8
"""Share of steps up to which they are the exception; also the shortest period of pauses is one over this."""

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
        off_level: Steps after warm-up in stretches on another level than most, set aside or not.
        unsteady: Why no part of the run is its steady speed, in words; then all steps after warm-up count. Empty when
            there is one.
    """

    step_times_s: tuple[float, ...]
    places: tuple[int, ...]
    set_aside: tuple[SetAside, ...]
    off_level: int = 0
    unsteady: str = ""

    @property
    def steps(self) -> int:
        """All steps of the series."""
        return len(self.places) + sum(len(part.places) for part in self.set_aside)


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
    leading = _warm_up(values)
    judged = _after_warm_up(values[leading:], len(values) // 2 - leading)
    reason: dict[int, Reason] = dict.fromkeys(range(leading), "warm_up")
    reason.update((leading + place, why) for place, why in judged.reason.items())
    _name_leading(reason)
    if len(values) - len(reason) < max(FEWEST_STEPS, len(values) // 4):
        reason = {}  # no steady part: all of it counts, as wide as it scatters
    places = tuple(place for place in range(len(values)) if place not in reason)
    return SteadySteps(
        step_times_s=tuple(step_times_s[place] for place in places),
        places=places,
        set_aside=tuple(
            SetAside(name, found)
            for name in REASONS
            if (found := tuple(sorted(place for place, why in reason.items() if why == name)))
        ),
        off_level=judged.off_level,
        unsteady=judged.unsteady,
    )


class _Judged(NamedTuple):
    reason: dict[int, Reason]
    off_level: int = 0
    unsteady: str = ""


def _after_warm_up(values: Sequence[float], most_leading: int) -> _Judged:
    """Places to set aside with their reasons, or why there is no steady part; then no place is."""
    count = len(values)
    reason: dict[int, Reason] = {}

    def left() -> tuple[list[int], list[float]]:
        at = [place for place in range(count) if place not in reason]
        return at, [values[place] for place in at]

    def set_pauses_aside() -> None:
        at, those = left()
        known = [place for place, why in reason.items() if why == "pause"]
        pauses = sorted([*known, *(at[index] for index in _pauses(those))])
        if _rare(pauses, count):
            reason.update(dict.fromkeys(pauses, "pause"))

    at, those = left()
    reason.update((at[index], "unsettled") for index in _unsettled(those))
    set_pauses_aside()
    at, those = left()
    passing, undecided = _off_level(those)
    reason.update((at[index], "disturbed") for index in passing)
    set_pauses_aside()  # again, now that the scatter is that of the steady part
    start = next(place for place in range(count + 1) if place not in reason)  # a slow first stretch is warm-up
    off_level = undecided + sum(why == "disturbed" for place, why in reason.items() if place > start)
    unsteady = ""
    if undecided > _RARE * count:
        unsteady = f"{undecided} of {count} steps after warm-up are on another level, and nothing says which one counts"
    elif start > most_leading:
        unsteady = f"the first {start} of {count} steps after warm-up are unlike the rest"
    elif len(reason) - start > _MOST_OFF * (count - start):
        unsteady = f"{len(reason) - start} of {count} steps after warm-up are slower or scatter more than the rest"
    return _Judged({} if unsteady else reason, off_level, unsteady)


def _rare(places: Sequence[int], count: int) -> bool:
    """Whether these are exceptions among so many steps: few of them, and no short period."""
    gaps = {after - before for before, after in pairwise(places)}
    periodic = len(places) >= 3 and len(gaps) == 1 and 1 < min(gaps) < 1 / _RARE
    return len(places) <= _RARE * count and not periodic


def _name_leading(reason: dict[int, Reason]) -> None:
    """What is set aside before the first steady step is warm-up, whatever found it."""
    place = 0
    while place in reason:
        reason[place] = "warm_up"
        place += 1


def _warm_up(values: Sequence[float]) -> int:
    """Leading steps, at most half, that are slower than the steps that follow each of them and than nearly all."""
    bound = max(_PAUSE, _SIGMAS * noise(values[len(values) // 4 :]).level)
    for place in range(len(values) // 2):
        following = values[place + 1 : place + 16]
        level, here = median(following), values[place : place + 3]
        if abs(here[0] - level) <= bound and abs(median(here) - level) <= bound:
            return place
        slower = sum(value >= here[0] - _PAUSE / 2 for value in values[len(values) // 2 :])
        if here[0] < level - bound or slower > _RARE * (len(values) - len(values) // 2):
            return place  # a level that comes back, or one that the run leaves for a slower one, is no warm-up
    return len(values) // 2


def _pauses(values: Sequence[float]) -> list[int]:
    """Steps far off the median of their neighbours on both sides, and hardly any or much further off than all others.

    A tail has steps at all distances. To cut a part of the steps off that matters would favour the run whose tail
    happened to be the rarer one.
    """
    bound = max(_PAUSE, _SIGMAS * noise(values).step)
    off = [
        abs(value - median(values[max(0, min(place - 3, len(values) - 7)) : max(place + 4, 7)]))
        for place, value in enumerate(values)
    ]
    order = sorted(range(len(values)), key=off.__getitem__, reverse=True)
    far = sum(distance > bound for distance in off)
    if far > _HARDLY_ANY * len(values):
        steps = enumerate(pairwise(order[: far + 1]), start=1)
        far = max((rank for rank, (step, next_step) in steps if off[step] >= _APART * off[next_step]), default=0)
    return order[:far]


def _off_level(values: Sequence[float]) -> tuple[list[int], int]:
    """Steps of slow stretches that the run came out of, and the number of all other steps on another level than most.

    Disturbance only ever slows, and it ends: after a change for good, and with a stretch that is faster than most,
    nothing says which of the levels is the run.
    """
    edges = _changes(values)
    if not edges:
        return [], 0
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
    off = [range(*at) for at, other in zip(stretches, level, strict=True) if abs(other - usual) > near]
    places_off = {place for stretch in off for place in stretch}
    rest = [value for place, value in enumerate(values) if place not in places_off]
    off = [stretch for stretch in off if _distinct([values[place] for place in stretch], rest, usual)]
    passing = [
        stretch for stretch in off if stretch.stop < len(values) and median(values[place] for place in stretch) > usual
    ]
    return [place for stretch in passing for place in stretch], sum(len(at) for at in off if at not in passing)


def _distinct(stretch: Sequence[float], rest: Sequence[float], usual: float) -> bool:
    """Whether hardly a step of the rest is on the stretch's level, and the reverse; else the run jumps to and fro."""
    level = median(stretch)
    slower, halfway = level > usual, (level + usual) / 2.0
    strays = sum((value > halfway) != slower for value in stretch)
    visits = sum((value > halfway) == slower for value in rest)
    return strays <= _RARE * len(stretch) and visits <= _RARE * len(rest)


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
    return list(noisy)
