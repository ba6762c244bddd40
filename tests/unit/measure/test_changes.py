"""Changes of level, and the medians they are found by."""

import math
import random
from itertools import pairwise
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.measure.changes import changes, window_medians
from autotune.measure.dependence import noise


@given(st.lists(st.floats(-5.0, 5.0), max_size=40), st.integers(1, 12))
def test_window_medians_are_the_medians_of_the_windows(values: list[float], width: int) -> None:
    expected = [median(values[max(0, end - width) : end]) for end in range(1, len(values) + width if values else 0)]
    assert window_medians(values, width) == expected


@pytest.mark.parametrize("edges", [(20,), (12, 20), (10, 16, 34, 44)])
def test_a_change_is_found_at_its_place(edges: tuple[int, ...]) -> None:
    source = random.Random(1)
    levels = [sum(place >= edge for edge in edges) % 2 for place in range(60)]
    values = [0.2 * level + source.gauss(0.0, 0.004) for level in levels]
    assert changes(values, noise(values)) == list(edges)


def test_of_equal_places_the_first_is_the_edge() -> None:
    values = [0.0] * 10 + [0.5] + [1.0] * 10  # the step between is as far from the one level as from the other
    assert changes(values, noise(values)) == [10]


def test_neither_scatter_nor_a_trend_is_a_change() -> None:
    source = random.Random(2)
    scatter = [source.gauss(0.0, 0.02) for _ in range(200)]
    trend = [place / 400 + source.gauss(0.0, 0.002) for place in range(200)]
    assert changes(scatter, noise(scatter)) == []
    assert changes(trend, noise(trend)) == []


@given(st.lists(st.floats(0.5, 2.0), min_size=4, max_size=60))
def test_changes_are_ascending_and_leave_four_steps_on_either_side(times: list[float]) -> None:
    values = [math.log(value) for value in times]
    found = changes(values, noise(values))
    places = [0, *found, len(values)]
    assert all(after - before >= 4 for before, after in pairwise(places))
