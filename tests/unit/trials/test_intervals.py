"""Sets of intervals, held against counting instants one by one."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from autotune_trials.native.intervals import exposed_s, length, shares, union, without

INTERVALS = st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), max_size=6)


def instants(intervals: list[tuple[float, float]]) -> set[int]:
    return {at for start, end in intervals for at in range(int(start), int(end))}


@given(INTERVALS)
def test_a_union_has_the_same_instants_in_disjoint_intervals_in_order(intervals: list[tuple[float, float]]) -> None:
    found = union(intervals)

    assert instants(found) == instants(intervals)
    assert length(intervals) == len(instants(intervals))
    assert all(before[1] < after[0] for before, after in pairwise(found))
    assert all(start < end for start, end in found)


@given(INTERVALS, INTERVALS)
def test_exposed_is_what_nothing_hides(
    communication: list[tuple[float, float]], compute: list[tuple[float, float]]
) -> None:
    assert instants(without(communication, compute)) == instants(communication) - instants(compute)
    assert exposed_s(communication, compute) == len(instants(communication) - instants(compute))


@given(INTERVALS)
def test_communication_beside_no_computation_is_exposed_and_beside_itself_is_not(
    communication: list[tuple[float, float]],
) -> None:
    assert exposed_s(communication, []) == length(communication)
    assert exposed_s(communication, communication) == 0


@given(INTERVALS, INTERVALS, INTERVALS)
def test_every_instant_of_the_windows_counts_once(
    windows: list[tuple[float, float]], first: list[tuple[float, float]], second: list[tuple[float, float]]
) -> None:
    found = shares(windows, {"first": first, "second": second}, "rest")

    assert found["first"] == len(instants(windows) & instants(first))
    assert found["second"] == len((instants(windows) & instants(second)) - instants(first))
    assert sum(found.values()) == len(instants(windows))
