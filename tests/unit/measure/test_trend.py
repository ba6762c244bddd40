"""How much a run changed from its first to its last step."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.measure.compare import compare_series
from autotune.measure.trend import Trend, trend_of
from tests.support.step_series import autoregression


def wandering(seed: int, count: int, memory: float, sigma: float = 0.01) -> list[float]:
    return autoregression(random.Random(seed), count, memory, sigma)


def learning(seed: int, noise: float, change: float, count: int = 80) -> list[float]:
    """A run that gets faster by so much in every 40 steps."""
    source = random.Random(seed)
    return [math.exp(-change * step / 40 + source.gauss(0.0, noise)) for step in range(count)]


def test_a_line_is_found_with_its_change() -> None:
    trend = trend_of([value - 0.05 * place / 99 for place, value in enumerate(wandering(1, 100, 0.0, 0.005))])
    assert trend.change == pytest.approx(-0.05, rel=0.15)
    assert trend.sigmas > 10.0


@pytest.mark.parametrize(("memory", "most"), [(0.0, 8), (0.6, 12), (0.9, 12)])
def test_noise_with_memory_is_rarely_a_trend(memory: float, most: int) -> None:
    assert sum(trend_of(wandering(seed, 40, memory)).sigmas > 2.25 for seed in range(100)) <= most


@given(st.lists(st.floats(-5.0, 5.0), max_size=7))
def test_few_steps_have_none(values: list[float]) -> None:
    assert trend_of(values) == Trend(0.0, 0.0)


def test_equal_steps_have_none() -> None:
    assert trend_of([1.0] * 40) == Trend(0.0, 0.0)


@pytest.mark.parametrize(("noise", "change", "most"), [(0.003, 0.0115, 3), (0.01, 0.03, 6)])
def test_windows_of_a_run_that_learns_are_a_tie(noise: float, change: float, most: int) -> None:
    runs = [learning(seed, noise, change) for seed in range(40)]
    found = [compare_series(run[:40], run[40:]) for run in runs]
    assert sum(one.verdict != "tie" for one in found) <= most
    assert any("itself became" in one.reason for one in found)


def test_a_difference_larger_than_the_trend_is_seen() -> None:
    a, b = learning(1, 0.003, 0.01, 40), [1.05 * value for value in learning(2, 0.003, 0.01, 40)]
    assert compare_series(a, b).verdict == "a_faster"
