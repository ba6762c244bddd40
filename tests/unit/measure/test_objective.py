from math import comb

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.measure.objective import (
    measured_steps,
    median_interval,
    median_step_time_s,
    peak_memory_bytes,
    tokens_per_s_per_gpu,
)
from autotune.measure.run import RankExit
from autotune_trials.events import StepRecord
from autotune_trials.spec import Contract

times = st.lists(st.floats(min_value=1e-6, max_value=1e4), min_size=1, max_size=60)


def records(step_times_s):
    return [StepRecord(step, time, 1.0, 1.0, 64) for step, time in enumerate(step_times_s, start=1)]


def test_warm_up_steps_are_not_measured():
    contract = Contract(seq_length=8, global_batch_size=8, steps=5, warmup_steps=3)
    assert [record.step for record in measured_steps(records([9, 9, 9, 1, 2]), contract)] == [4, 5]


def test_one_disturbed_step_does_not_move_the_step_time():
    assert median_step_time_s(records([1.0, 1.0, 100.0])) == 1.0


def test_no_steps_have_no_median():
    with pytest.raises(ValueError, match="at least one step"):
        median_step_time_s([])


@given(times)
def test_half_of_the_steps_lie_on_either_side_of_the_median(step_times_s):
    median = median_step_time_s(records(step_times_s))
    assert sum(time <= median for time in step_times_s) * 2 >= len(step_times_s)
    assert sum(time >= median for time in step_times_s) * 2 >= len(step_times_s)


@given(times, st.randoms())
def test_interval_ignores_order_and_holds_the_median(step_times_s, random):
    shuffled = list(step_times_s)
    random.shuffle(shuffled)
    interval = median_interval(step_times_s)
    assert interval == median_interval(shuffled)
    if interval is None:
        assert len(step_times_s) < 6
    else:
        assert interval.low_s <= median_step_time_s(records(step_times_s)) <= interval.high_s
        assert interval.low_s in step_times_s
        assert interval.high_s in step_times_s
        assert 0.95 <= interval.coverage < 1


# Ranks of the order statistics in published tables of the sign test's interval for the median, 95 %.
@pytest.mark.parametrize(
    ("count", "low", "high"), [(6, 1, 6), (8, 1, 8), (9, 2, 8), (10, 2, 9), (20, 6, 15), (30, 10, 21)]
)
def test_interval_uses_the_known_order_statistics(count, low, high):
    interval = median_interval([float(time) for time in range(1, count + 1)])
    assert interval is not None
    assert (interval.low_s, interval.high_s) == (low, high)
    assert interval.coverage == pytest.approx(sum(comb(count, k) for k in range(low, high)) / 2**count)


def test_five_steps_cannot_give_95_percent():
    assert median_interval([1.0, 2.0, 3.0, 4.0, 5.0]) is None
    assert median_interval([1.0, 2.0, 3.0, 4.0, 5.0], confidence=0.9) is not None


def test_throughput_is_per_rank():
    assert tokens_per_s_per_gpu(1000, 0.5, 4) == 500.0


@pytest.mark.parametrize(("step_time_s", "world_size"), [(0.0, 1), (-1.0, 1), (float("nan"), 1), (1.0, 0)])
def test_throughput_of_nonsense_is_refused(step_time_s, world_size):
    with pytest.raises(ValueError, match="must be > 0"):
        tokens_per_s_per_gpu(1000, step_time_s, world_size)


def test_peak_memory_is_the_largest_ranks():
    ranks = [RankExit(rank, 0, 0, peak_memory_bytes=peak) for rank, peak in enumerate([5, 9, 7])]
    assert peak_memory_bytes(ranks) == 9


def test_peak_memory_is_unknown_when_one_ranks_is():
    assert peak_memory_bytes([RankExit(0, 0, 0, peak_memory_bytes=5), RankExit(1, 0, 0)]) is None
    assert peak_memory_bytes([]) is None
