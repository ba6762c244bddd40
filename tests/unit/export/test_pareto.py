import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.errors import RequestError, RunError
from autotune.export.pareto import front, winner
from autotune.measure.outcome import TrialOutcome, TrialState

# Few distinct values, so that ties and equal points are common.
numbers = st.tuples(st.sampled_from([1.0, 2.0, 2.5, 7.0, 1e5]), st.sampled_from([1, 2, 10, 11, 2**37]))
states = st.sampled_from([TrialState.COMPLETE] * 4 + list(TrialState))


def outcome(trial, throughput, memory, state=TrialState.COMPLETE):
    return TrialOutcome(trial, state, {}, tokens_per_s_per_gpu=throughput, peak_memory_bytes=memory)


studies = st.lists(st.tuples(numbers, states), max_size=25).map(
    lambda rows: [outcome(trial, *row[0], row[1]) for trial, row in enumerate(rows)]
)


def numbers_of(one):
    """Both numbers with larger = better."""
    return one.tokens_per_s_per_gpu, -one.peak_memory_bytes


def dominates(one, other):
    mine, others = numbers_of(one), numbers_of(other)
    return mine != others and mine[0] >= others[0] and mine[1] >= others[1]


@given(studies)
def test_the_front_is_exactly_the_undominated_complete_trials(outcomes):
    complete = [one for one in outcomes if one.state is TrialState.COMPLETE]
    undominated = [one for one in complete if not any(dominates(other, one) for other in complete)]
    found = front(outcomes)
    assert sorted(found, key=lambda one: one.trial) == undominated
    for one in complete:
        assert one in found or any(dominates(member, one) for member in found)


@given(studies, st.randoms())
def test_the_order_of_trials_changes_nothing(outcomes, random):
    shuffled = list(outcomes)
    random.shuffle(shuffled)
    found = front(outcomes)
    assert front(shuffled) == found
    if found:
        for select in ("throughput", "memory", "balanced"):
            assert winner(found, select) is winner(tuple(reversed(found)), select)


@given(studies)
def test_the_front_runs_from_fast_to_lean(outcomes):
    found = front(outcomes)
    assert list(found) == sorted(found, key=lambda one: (-one.tokens_per_s_per_gpu, one.trial))
    memories = [one.peak_memory_bytes for one in found]
    assert memories == sorted(memories, reverse=True)


@given(studies.map(front).filter(bool))
def test_winners_are_the_extremes_and_balanced_is_on_the_front(found):
    fastest, leanest = winner(found, "throughput"), winner(found, "memory")
    assert fastest.tokens_per_s_per_gpu == max(one.tokens_per_s_per_gpu for one in found)
    assert leanest.peak_memory_bytes == min(one.peak_memory_bytes for one in found)
    assert winner(found, "balanced") in found


@given(
    st.lists(st.tuples(st.floats(1, 1e6), st.integers(10, 2**40)), min_size=1, max_size=12),
    st.sampled_from([2.0, 1024.0]),
)
def test_balanced_does_not_depend_on_units(rows, unit):
    found = front(outcome(trial, *row) for trial, row in enumerate(rows))
    converted = tuple(replace(one, tokens_per_s_per_gpu=one.tokens_per_s_per_gpu * unit) for one in found)
    mine, other = winner(found, "balanced"), winner(converted, "balanced")
    # Rounding may exchange trials that are equally close.
    assert math.isclose(_distance(found, mine), _distance(converted, other), rel_tol=1e-6, abs_tol=1e-9)


def _distance(found, one):
    def share(value, values):
        low, high = min(map(math.log, values)), max(map(math.log, values))
        return (math.log(value) - low) / (high - low) if high > low else 0.0

    slow = share(1 / one.tokens_per_s_per_gpu, [1 / each.tokens_per_s_per_gpu for each in found])
    large = share(one.peak_memory_bytes, [each.peak_memory_bytes for each in found])
    return math.hypot(slow, large)


def test_balanced_takes_the_knee():
    found = front([outcome(0, 100.0, 1000), outcome(1, 90.0, 200), outcome(2, 20.0, 100)])
    assert [winner(found, select).trial for select in ("throughput", "memory", "balanced")] == [0, 2, 1]


def test_balanced_of_two_is_the_faster():
    assert winner(front([outcome(0, 1.0, 10), outcome(1, 2.0, 20)]), "balanced").trial == 1


def test_equal_trials_are_all_kept_and_the_earliest_wins():
    found = front([outcome(trial, 5.0, 50) for trial in (2, 0, 1)])
    assert [one.trial for one in found] == [0, 1, 2]
    assert [winner(found, select).trial for select in ("throughput", "memory", "balanced")] == [0, 0, 0]


def test_nothing_completed_has_no_winner():
    assert front([outcome(0, None, None, TrialState.LOST)]) == ()
    with pytest.raises(RunError, match="no trial completed"):
        winner(())


def test_an_unknown_selection_is_refused_with_the_closest():
    with pytest.raises(RequestError, match="'ballanced'") as caught:
        winner((outcome(0, 1.0, 1),), "ballanced")
    assert caught.value.hint == "did you mean balanced?"
