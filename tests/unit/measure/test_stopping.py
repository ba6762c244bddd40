"""When measuring may stop, and that stopping by it is honest."""

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.measure.stopping import dependent_interval, enough


def steps(seed: int, count: int, sigma: float) -> list[float]:
    source = random.Random(seed)
    return [math.exp(source.gauss(0.0, sigma)) for _ in range(count)]


@pytest.mark.parametrize("sigma", [0.003, 0.01])
def test_an_interval_that_decided_when_to_stop_still_holds_the_truth(sigma: float) -> None:
    covered, stopped = 0, []
    for seed in range(40):
        series = steps(seed, 200, sigma)
        count = 20
        while not enough(series[:count]):
            count += 4
        interval = dependent_interval(series[:count])
        assert interval is not None
        covered += interval.low_s <= 1.0 <= interval.high_s
        stopped.append(count)
    assert covered >= 35  # 38 expected of 95 %
    assert max(stopped) < 200


def test_more_scatter_asks_for_more_steps() -> None:
    assert enough(steps(1, 24, 0.002))
    assert not enough(steps(1, 24, 0.03))
    assert enough(steps(1, 24, 0.03), target_half_width=0.05)


def test_warm_up_does_not_count_towards_the_fewest_steps() -> None:
    series = steps(2, 22, 0.001)
    assert enough(series)
    assert not enough([40.0, 8.0, 3.0, *series[3:]])


def test_a_run_without_a_steady_part_is_measured_to_the_limit() -> None:
    series = [value * (1.2 if place >= 20 else 1.0) for place, value in enumerate(steps(1, 50, 0.001))]
    assert enough(series[:20], target_half_width=0.5)
    assert not enough(series, target_half_width=0.5)
    assert enough(series, target_half_width=0.5, max_steps=50)


@given(st.lists(st.floats(0.1, 10.0), max_size=60), st.integers(4, 30), st.integers(0, 30))
@settings(max_examples=40, deadline=None)
def test_limits_bind_whatever_was_measured(series: list[float], fewest: int, more: int) -> None:
    if len(series) < fewest:
        assert not enough(series, min_steps=fewest, max_steps=fewest + more)
    if len(series) >= fewest + more:
        assert enough(series, min_steps=fewest, max_steps=fewest + more)


@given(st.lists(st.floats(0.1, 10.0), min_size=8, max_size=60), st.floats(0.001, 0.2))
@settings(max_examples=40, deadline=None)
def test_a_wider_target_never_needs_more(series: list[float], target: float) -> None:
    if enough(series, target_half_width=target, min_steps=8, max_steps=1000):
        assert enough(series, target_half_width=2 * target, min_steps=8, max_steps=1000)


def test_dependent_steps_have_a_wider_interval() -> None:
    source = random.Random(4)
    state, wandering = 0.0, []
    for _ in range(60):
        state = 0.9 * state + source.gauss(0.0, 0.004)
        wandering.append(math.exp(state))
    shuffled = source.sample(wandering, len(wandering))
    dependent, independent = dependent_interval(wandering), dependent_interval(shuffled)
    assert independent is not None
    if dependent is not None:
        assert dependent.high_s / dependent.low_s > 1.5 * (independent.high_s / independent.low_s - 1.0) + 1.0


@pytest.mark.parametrize("limits", [(0.0, 20, 30), (math.nan, 20, 30), (0.01, 3, 30), (0.01, 20, 19)])
def test_limits_that_contradict_are_refused(limits: tuple[float, int, int]) -> None:
    target, fewest, most = limits
    with pytest.raises(ValueError, match="must be above 0"):
        enough([1.0] * 50, target_half_width=target, min_steps=fewest, max_steps=most)


def test_too_few_steps_have_no_interval() -> None:
    assert dependent_interval([]) is None
    assert dependent_interval([1.0] * 5) is None
