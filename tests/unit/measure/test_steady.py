"""What is set aside, and what is not: planted disturbance in recorded and invented runs."""

import math
import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.measure.steady import REASONS, SteadySteps, steady_steps

WINDOW = 40
Series = list[float]


def quiet(seed: int, count: int = WINDOW, sigma: float = 0.005) -> Series:
    source = random.Random(seed)
    return [math.exp(source.gauss(0.0, sigma)) for _ in range(count)]


def places(steady: SteadySteps, reason: str) -> tuple[int, ...]:
    return next((part.places for part in steady.set_aside if part.reason == reason), ())


def slowed(times: Series, where: range, factor: float) -> Series:
    return [value * factor if place in where else value for place, value in enumerate(times)]


def test_quiet_runs_are_kept_whole() -> None:
    assert sum(len(steady_steps(quiet(seed)).places) for seed in range(50)) >= 0.995 * 50 * WINDOW


@pytest.mark.parametrize("seed", range(5))
def test_compilation_and_first_steps_are_warm_up(seed: int) -> None:
    times = quiet(seed)
    times[0] *= 40.0
    times[1] *= 3.0
    times[2] *= 1.2
    assert places(steady_steps(times), "warm_up") == (0, 1, 2)


@pytest.mark.parametrize("length", [5, 12, 18])
def test_a_slow_first_stretch_is_warm_up(length: int) -> None:
    assert places(steady_steps(slowed(quiet(3), range(length), 1.2)), "warm_up") == tuple(range(length))


@pytest.mark.parametrize("every", [8, 10, 20])
@pytest.mark.parametrize("factor", [1.1, 1.5, 10.0])
def test_rare_pauses_are_set_aside(every: int, factor: float) -> None:
    where = tuple(range(every - 1, WINDOW, every))
    times = [value * factor if place in where else value for place, value in enumerate(quiet(11))]
    assert places(steady_steps(times), "pause") == where


@pytest.mark.parametrize("every", [2, 3, 4, 7])
@pytest.mark.parametrize("factor", [1.1, 2.0])
def test_what_is_slow_every_few_steps_is_the_speed(every: int, factor: float) -> None:
    times = [value * factor if place % every == every - 1 else value for place, value in enumerate(quiet(11))]
    found = steady_steps(times)
    assert found.places == tuple(range(WINDOW))
    assert found.unsteady == ""


@pytest.mark.parametrize("count", [40, 100])
@pytest.mark.parametrize("slow", [0.3, 0.5, 0.7])
def test_both_levels_of_a_run_that_jumps_to_and_fro_are_kept(slow: float, count: int) -> None:
    whole = 0
    for seed in range(20):
        source = random.Random(seed)
        times = [value * (1.1 if source.random() < slow else 1.0) for value in quiet(seed, count, 0.003)]
        kept = set(steady_steps(times).places)
        whole += set(range(count // 4, count)) <= kept
        assert len(kept) >= 0.5 * count
    assert whole >= 19


@pytest.mark.parametrize("factor", [1 / 1.2, 1.06, 1.2, 3.0])
@pytest.mark.parametrize("first", [12, 20, 27, 30, 34])
def test_a_change_for_good_is_no_disturbance(first: int, factor: float) -> None:
    found = steady_steps(slowed(quiet(8), range(first, WINDOW), factor))
    if factor < 1.0 and first <= WINDOW // 2:
        assert places(found, "warm_up") == tuple(range(first))  # a slow first stretch, at most half
        return
    assert found.places == tuple(range(WINDOW))
    assert "nothing says which one counts" in found.unsteady
    assert found.off_level >= min(first, WINDOW - first)


def test_a_faster_stretch_leaves_no_steady_part() -> None:
    found = steady_steps(slowed(quiet(8), range(14, 24), 0.9))
    assert found.places == tuple(range(WINDOW))
    assert found.unsteady.startswith("10 of 40 steps after warm-up are on another level")


@pytest.mark.parametrize("where", [range(8, 28), range(10, 27)])
def test_too_much_to_set_aside_leaves_no_steady_part(where: range) -> None:
    found = steady_steps(slowed(quiet(5), where, 1.3))
    assert found.places == tuple(range(WINDOW))
    assert found.unsteady
    assert found.off_level >= len(where)


@pytest.mark.parametrize("factor", [1.06, 1.15, 1.5, 4.0])
@pytest.mark.parametrize("where", [range(10, 15), range(12, 24), range(20, 34), range(5, 20), range(29, 36)])
def test_a_throttled_stretch_is_set_aside(where: range, factor: float) -> None:
    found = steady_steps(slowed(quiet(5), where, factor))
    assert set(where) <= set(range(WINDOW)) - set(found.places)
    assert len(found.places) >= WINDOW - len(where) - 1


def test_a_stretch_that_starts_to_scatter_is_set_aside() -> None:
    source = random.Random(2)
    times = [math.exp(source.gauss(0.0, 0.004 if place < 26 else 0.05)) for place in range(WINDOW)]
    found = steady_steps(times)
    assert "unsettled" in {part.reason for part in found.set_aside}
    assert sum(place >= 26 for place in found.places) <= 3
    assert sum(place < 26 for place in found.places) >= 24


def test_drift_is_no_warm_up() -> None:
    times = [value * (1.1 - 0.001 * place) for place, value in enumerate(quiet(9, 100))]
    assert len(steady_steps(times).places) == 100


def test_noise_with_memory_is_not_taken_for_disturbance() -> None:
    kept = 0
    for seed in range(40):
        source = random.Random(seed)
        state, times = source.gauss(0.0, 0.02), []
        for _ in range(WINDOW):
            times.append(math.exp(state))
            state = 0.6 * state + 0.8 * source.gauss(0.0, 0.02)
        kept += len(steady_steps(times).places)
    assert kept >= 0.95 * 40 * WINDOW


def test_steps_without_a_steady_part_all_count() -> None:
    times = [2.0**place for place in range(12)]
    assert steady_steps(times).places == tuple(range(12))


PLANTED: dict[str, tuple[Callable[[Series], Series], range]] = {
    "pause": (lambda times: slowed(times, range(17, 18), 5.0), range(17, 18)),
    "throttled": (lambda times: slowed(times, range(22, 34), 1.3), range(22, 34)),
    "late": (lambda times: slowed(times, range(24, 40), 1.3), range(0)),  # which half is right, nothing says
    "compile": (lambda times: slowed(times, range(2), 8.0), range(2)),
}


@pytest.mark.parametrize("kind", PLANTED)
def test_planted_disturbance_in_recorded_runs_is_recognised(kind: str, traces: dict[str, Series]) -> None:
    disturb, where = PLANTED[kind]
    seen, windows = 0, 0
    for times in traces.values():
        for first in range(0, len(times) - WINDOW + 1, 2 * WINDOW):
            found = steady_steps(disturb(times[first : first + WINDOW]))
            windows += 1
            seen += not set(where) & set(found.places) if where else bool(found.unsteady)
    assert windows >= 100
    assert seen >= 0.95 * windows


def test_pauses_that_were_recorded_are_recognised(traces: dict[str, Series]) -> None:
    """Steps of more than 1.5 times their surroundings, in the three long runs."""
    dirty = 0
    for times in traces.values():
        if len(times) < 100:
            continue
        pauses = {
            place
            for place in range(10, len(times) - 10)
            if times[place] > 1.5 * sorted(times[place - 10 : place + 11])[10]
        }
        dirty += bool(pauses)
        assert not pauses & set(steady_steps(times).places)
    assert dirty == 3


@given(st.lists(st.floats(1e-3, 1e3), min_size=4, max_size=60))
@settings(max_examples=60, deadline=None)
def test_every_step_is_kept_or_set_aside_once(times: Series) -> None:
    found = steady_steps(times)
    everything = [*found.places, *(place for part in found.set_aside for place in part.places)]
    assert sorted(everything) == list(range(len(times)))
    assert found.step_times_s == tuple(times[place] for place in found.places)
    assert [part.reason for part in found.set_aside] == [name for name in REASONS if places(found, name)]
    assert len(found.places) >= max(4, len(times) // 4)
