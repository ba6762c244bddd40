"""Conditions of applies_to."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune_policies.applicability import compare, describe


def holds(condition: Any, fact: object, field: str = "num_gpus") -> bool:
    result = compare({field: condition, "stack": {}}, {field: fact})
    assert result.unchecked == ()
    return not result.mismatches


@settings(deadline=None)
@given(low=st.integers(1, 50), high=st.integers(1, 50), step=st.integers(1, 5), fact=st.integers(1, 60))
def test_a_range_of_whole_numbers_means_what_it_says(low: int, high: int, step: int, fact: int) -> None:
    expected = low <= fact <= high and fact % step == 0
    assert holds({"min": low, "max": high, "multiple_of": step}, fact) == expected
    assert holds({"min": low}, fact) == (fact >= low)
    assert holds({"max": high}, fact) == (fact <= high)
    assert holds({"multiple_of": step}, fact) == (fact % step == 0)


@pytest.mark.parametrize("condition", [8, {"exact": 8}])
def test_an_exact_number_is_exact(condition: Any) -> None:
    assert holds(condition, 8)
    assert not holds(condition, 16)


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("0.15.9", False), ("0.16", True), ("0.16.0", True), ("0.16.1", True), ("0.16.1+local", True),
        ("0.17", False), ("0.17.0", False), ("0.17.0rc1", False), ("0.9", False), ("1.16", False), ("unknown", False),
    ],
)  # fmt: skip
def test_versions_are_compared_as_numbers(version: str, expected: bool) -> None:
    result = compare({"stack": {"x": {"min": "0.16", "below": "0.17"}}}, {"stack.x": version})
    assert (not result.mismatches) == expected


def test_an_exact_version_is_the_whole_text() -> None:
    assert compare({"stack": {"x": "1.2.1"}}, {"stack.x": "1.2.1+abc"}).mismatches == (
        "stack.x is 1.2.1+abc, but the policy holds for 1.2.1",
    )


def test_every_difference_is_named_with_both_values_and_the_unknown_listed() -> None:
    conditions = {"model": "a", "num_gpus": {"min": 8, "multiple_of": 4}, "cluster": "c", "stack": {"torch": "2.6"}}
    result = compare(conditions, {"model": "b", "num_gpus": 6})
    assert result.mismatches == (
        "model is b, but the policy holds for a",
        "num_gpus is 6, but the policy holds for at least 8, a multiple of 4",
    )
    assert result.unchecked == ("cluster", "stack.torch")


def test_conditions_in_words() -> None:
    assert describe({"min": "0.16", "below": "0.17"}) == "at least 0.16, below 0.17"
    assert describe({"exact": 3}) == describe(3) == "3"
