"""Which steps of a run show its steady speed; the others are set aside, each with a reason.

    warm_up     leading steps that are slower than nearly all that follows: compilation, first allocations, autotuning
    pause       rare single steps off the level around them: checkpoint, evaluation, a stalled disk
    disturbed   a stretch on another level that ends again: a neighbour on the network, throttled clocks
    unsettled   a stretch that scatters several times more than the rest

What comes back all the time is the run's speed: steps that are often or regularly slow stay, and so do both levels of a
run that jumps to and fro. A change for good stays too, as nothing says which side of it is the run. So does a slow
trend: routers drift while they learn, and a run that drifts is its own truth; its steps count for few
(``effective_steps``). A run of which too much would have to go is ``unsteady``, and so is one with a stretch that is
surely on another level, but hides so well behind the scatter that nothing says which steps are in it. Everything is
judged on logarithms, so the unit does not matter.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import expm1, isfinite, log
from statistics import median
from typing import Literal, NamedTuple, get_args

from autotune.measure.changes import SHORTEST, SIGMAS, SMALLEST, changes, window_medians
from autotune.measure.dependence import logarithms, noise
from autotune.measure.stretches import Stretch, likeliest_stretch

Reason = Literal["warm_up", "pause", "disturbed", "unsettled"]

REASONS: tuple[Reason, ...] = get_args(Reason)

FEWEST_STEPS = 4
"""With three steps on each side, no distribution-free interval reaches 95 %."""

_PAUSE = 0.03
"""A single step less than this off its surroundings is never set aside (about 3 %); a median bears such steps."""

_NEIGHBOURS = 7
"""Steps whose median is the level around the one in their middle."""

_APART = 4.0
"""How many times further off than the next step a pause must be."""

_HARDLY_ANY = 1 / 100
"""Share of steps that may go wherever they are: it moves a median by a small part of what chance does."""

_SCATTER = 3.0
"""How many times more a stretch must scatter to be set aside."""

_SCATTER_STEPS = 10
"""Steps from which on a scatter is known well enough to call it another one."""

_SCATTER_GAIN = 7.0
"""Gain in log likelihood from which a change in scatter is believed; the best of many cuts gains some by chance."""

_MOST_OFF = 0.4
"""Share of the steps after warm-up beyond which what is off is the run itself."""

_RARE = 1 / 8
"""Share of steps up to which they are the exception; also the shortest period of pauses is one over this."""

_BY_CHANCE = 0.03
"""Share of runs on one level that may be called unsteady for a stretch that chance made."""

_RESOLUTION = 1e-6
"""Scatter below a millionth is none."""

_ABOUT_EQUAL = 0.8
"""A level held this share as long as another is held about equally long."""


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
        stretch: The stretch of the steps that count that differs most from the rest of them; None when they are few,
            alike, or not all on the run's steady speed.
    """

    step_times_s: tuple[float, ...]
    places: tuple[int, ...]
    set_aside: tuple[SetAside, ...]
    off_level: int = 0
    unsteady: str = ""
    stretch: Stretch | None = None

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
        reason, judged = {}, judged._replace(stretch=None)  # no steady part: all counts, as wide as it scatters
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
        stretch=judged.stretch,
    )


class _Judged(NamedTuple):
    reason: dict[int, Reason]
    off_level: int = 0
    unsteady: str = ""
    stretch: Stretch | None = None


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
    stretch = None if unsteady else likeliest_stretch(left()[1])
    steps = stretch.end - stretch.first if stretch else 0
    few = min(steps, count - steps) <= _RARE * count  # too few to move a median
    if stretch and stretch.chance < _BY_CHANCE and not (stretch.trend or few) and abs(stretch.apart) > SMALLEST:
        off_level += min(steps, count - steps)
        unsteady = (
            f"{steps} of {count} steps after warm-up, one after the other, took {abs(expm1(stretch.apart)):.1%} "
            f"{'longer' if stretch.apart > 0.0 else 'less'} than the rest"
        )
    return _Judged({}, off_level, unsteady) if unsteady else _Judged(reason, off_level, stretch=stretch)


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
    bound = max(_PAUSE, SIGMAS * noise(values[len(values) // 4 :]).level)
    later = sorted(values[len(values) // 2 :])
    for place in range(len(values) // 2):
        following = values[place + 1 : place + 16]
        level, here = median(following), values[place : place + 3]
        if abs(here[0] - level) <= bound and abs(median(here) - level) <= bound:
            return place
        slower = len(later) - bisect_left(later, here[0] - _PAUSE / 2)
        if here[0] < level - bound or slower > _RARE * len(later):
            return place  # a level that comes back, or one that the run leaves for a slower one, is no warm-up
    return len(values) // 2


def _pauses(values: Sequence[float]) -> list[int]:
    """Steps far off the median of their neighbours on both sides, and hardly any or much further off than all others.

    A tail has steps at all distances. To cut a part of the steps off that matters would favour the run whose tail
    happened to be the rarer one.
    """
    bound = max(_PAUSE, SIGMAS * noise(values).step)
    medians = window_medians(values, _NEIGHBOURS)
    last = max(0, len(values) - _NEIGHBOURS)  # at the ends, the window of the place next to them that has a full one
    off = [
        abs(value - medians[max(0, min(place - _NEIGHBOURS // 2, last)) + _NEIGHBOURS - 1])
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
    scatter = noise(values)
    edges = changes(values, scatter)
    if not edges:
        return [], 0
    stretches = [range(*at) for at in pairwise([0, *edges, len(values)])]
    level = [median(values[at.start : at.stop]) for at in stretches]
    near = max(SMALLEST / 2, 2.0 * scatter.of_median(SHORTEST))
    by_level = sorted(zip(level, map(len, stretches), strict=True))
    levels, steps = [other for other, _ in by_level], [0, *accumulate(length for _, length in by_level)]
    # Steps of all stretches on about the level of each.
    held = [steps[bisect_right(levels, at + near)] - steps[bisect_left(levels, at - near)] for at in level]
    # Of levels held about equally long the fastest counts: disturbance only ever slows.
    enough = _ABOUT_EQUAL * max(held)
    usual = min(at for at, length in zip(level, held, strict=True) if length >= enough)
    off = [(at, here) for at, here in zip(stretches, level, strict=True) if abs(here - usual) > near]
    places_off = {place for at, _ in off for place in at}
    rest = sorted(value for place, value in enumerate(values) if place not in places_off)
    off = [(at, here) for at, here in off if _distinct(values[at.start : at.stop], here, rest, usual)]
    passing = [place for at, here in off if at.stop < len(values) and here > usual for place in at]
    return passing, sum(len(at) for at, _ in off) - len(passing)


def _distinct(stretch: Sequence[float], level: float, rest: Sequence[float], usual: float) -> bool:
    """Whether hardly a step of the sorted rest is on the stretch's level, and the reverse; else it jumps to and fro."""
    slower, halfway = level > usual, (level + usual) / 2.0
    strays = sum((value > halfway) != slower for value in stretch)
    below = bisect_right(rest, halfway)
    visits = len(rest) - below if slower else below
    return strays <= _RARE * len(stretch) and visits <= _RARE * len(rest)


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
