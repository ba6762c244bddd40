"""How much a series is worth, its scatter, and Student's quantiles."""

import math
import random
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.measure.dependence import effective_steps, noise, order_statistics, robust_sigma, student_quantile
from tests.support.step_series import autoregression


def autoregressive(seed: int, count: int, memory: float) -> list[float]:
    return autoregression(random.Random(seed), count, memory)


@pytest.mark.parametrize("count", [2000, 7001])
@pytest.mark.parametrize("memory", [0.0, 0.3, 0.6, 0.9])
def test_the_worth_of_an_autoregression(memory: float, count: int) -> None:
    """Its exact worth is n (1 - r) / (1 + r)."""
    found = sorted(effective_steps(autoregressive(seed, count, memory)) for seed in range(9))[4]
    assert found == pytest.approx(count * (1 - memory) / (1 + memory), rel=0.35)


def test_what_a_long_series_repeats_within_a_batch_is_no_dependence() -> None:
    assert effective_steps([float(place % 2) for place in range(9000)]) == 9000.0


def test_order_statistics_are_spread_evenly() -> None:
    values = [float(place * 7919 % 100) for place in range(100)]
    assert order_statistics(values, 100) == order_statistics(values, 200) == sorted(values)
    assert order_statistics(values, 4) == [12.0, 37.0, 62.0, 87.0]


@pytest.mark.parametrize("memory", [0.0, 0.3, 0.6, 0.9])
def test_scatter_and_memory_of_an_autoregression(memory: float) -> None:
    found = noise(autoregressive(3, 4000, memory))
    assert found.memory == pytest.approx(memory, abs=0.12)
    assert found.level == pytest.approx(1.0, rel=0.25)
    assert found.step == pytest.approx(math.sqrt(1.0 - memory), rel=0.1)


def test_a_change_of_level_is_not_scatter() -> None:
    values = autoregressive(5, 60, 0.0)
    shifted = [value + 20.0 * (place >= 30) for place, value in enumerate(values)]
    assert noise(shifted).level < 2.0 * noise(values).level < robust_sigma(shifted)


def test_a_trend_is_worth_few_steps() -> None:
    assert effective_steps([float(place) for place in range(100)]) < 6.0
    assert effective_steps(list(accumulate(autoregressive(1, 200, 0.0)))) < 20.0


@given(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=60))
def test_worth_is_from_one_to_the_number_and_blind_to_the_unit(values: list[float]) -> None:
    worth = effective_steps(values)
    assert 1.0 <= worth <= len(values)
    assert effective_steps([8.0 * value for value in values]) == pytest.approx(worth)
    assert effective_steps([-value for value in values]) == pytest.approx(worth)


def test_constant_steps_are_worth_their_number() -> None:
    assert effective_steps([3.0] * 12) == 12.0
    assert noise([3.0] * 12).of_median(5) == 0.0


@pytest.mark.parametrize(
    ("degrees", "expected"),
    [(1, 12.7062), (2, 4.3027), (3, 3.1824), (4, 2.7764), (8, 2.3060), (30, 2.0423), (1e6, 1.9600)],
)
def test_quantiles_of_students_t(degrees: float, expected: float) -> None:
    """The tabulated values at 97.5 %."""
    assert student_quantile(0.975, degrees) == pytest.approx(expected, rel=0.002)
    assert student_quantile(0.025, degrees) == pytest.approx(-expected, rel=0.002)
