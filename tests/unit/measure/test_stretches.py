"""The stretch that differs most, and how often chance makes one."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.measure.stretches import likeliest_stretch
from tests.support.step_series import autoregression


def scattered(seed: int, count: int = 40, memory: float = 0.0) -> list[float]:
    return autoregression(random.Random(seed), count, memory)


@pytest.mark.parametrize("where", [range(12, 24), range(28, 40), range(8)])
@pytest.mark.parametrize("apart", [3.0, -3.0])
def test_a_stretch_behind_the_scatter_is_found(where: range, apart: float) -> None:
    found = [
        likeliest_stretch([value + apart * (place in where) for place, value in enumerate(scattered(seed))])
        for seed in range(40)
    ]
    sure = [stretch for stretch in found if stretch and stretch.chance < 0.03]
    assert len(sure) >= 28
    overlap = [len(set(where) & set(range(stretch.first, stretch.end))) for stretch in sure]
    assert sum(shared >= len(where) - 2 for shared in overlap) >= 0.8 * len(sure)
    assert all((stretch.apart * apart > 0.0) == (shared > 4) for stretch, shared in zip(sure, overlap, strict=True))


@pytest.mark.parametrize("memory", [0.0, 0.5, 0.8, 0.9])
@pytest.mark.parametrize("count", [20, 40, 100])
def test_chance_makes_a_stretch_as_often_as_it_says(count: int, memory: float) -> None:
    chances = []
    for seed in range(120):
        stretch = likeliest_stretch(scattered(seed, count, memory))
        assert stretch is not None
        chances.append(stretch.chance)
    assert sum(chance < 0.03 for chance in chances) <= 9  # 3.6 expected; more than 9 once in 200
    assert sum(chance < 0.2 for chance in chances) <= 36


def test_a_slow_trend_is_no_stretch() -> None:
    for seed in range(20):
        values = [0.3 * value + 0.1 * place for place, value in enumerate(scattered(seed))]
        stretch = likeliest_stretch(values)
        assert stretch is not None
        assert stretch.trend
        stretch = likeliest_stretch([value + 9.0 * (12 <= place < 24) for place, value in enumerate(scattered(seed))])
        assert stretch is not None
        assert not stretch.trend
        assert abs(stretch.first - 12) + abs(stretch.end - 24) <= 2


@pytest.mark.parametrize("values", [[], [1.0] * 7, [1.0, 2.0, 3.0] * 2, [2.0] * 40])
def test_few_or_equal_steps_have_no_stretch(values: list[float]) -> None:
    assert likeliest_stretch(values) is None


@given(st.lists(st.floats(-1.0, 1.0), min_size=8, max_size=60, unique=True))
def test_stretch_and_rest_are_at_least_four_steps_and_the_unit_does_not_matter(values: list[float]) -> None:
    found = likeliest_stretch(values)
    assert found is not None
    assert 0 <= found.first <= found.end - 4
    assert len(values) - (found.end - found.first) >= 4
    assert 0.0 <= found.chance <= 1.0
    doubled = likeliest_stretch([2.0 * value for value in values])
    assert doubled is not None
    assert (doubled.first, doubled.end, doubled.chance) == (found.first, found.end, found.chance)
    assert doubled.apart == pytest.approx(2.0 * found.apart)
