"""What the next trial costs, whether it may start, and whether searching on pays."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.measure.ledger import TrialCost, cost_of, expected_gain, pays_back, predict_cost, refusal

seconds = st.floats(0.0, 1e5)
costs = st.builds(TrialCost, seconds, seconds, seconds)


def test_the_cost_of_a_trial_with_its_parts() -> None:
    # 50 steps of 20 s on 16 GPUs, after 60 s of start and a first step that compiles for 150 s.
    cost = cost_of(60.0, [170.0, *[20.0] * 49], warmup_steps=2, wall_s=1220.0)
    assert cost == TrialCost(start_s=70.0, compile_s=150.0, steps_s=1000.0)
    assert cost.wall_s == 1220.0
    assert cost.gpu_hours(16) == pytest.approx(5.42, abs=0.01)


def test_a_trial_that_died_before_its_first_step_still_cost() -> None:
    assert cost_of(30.0, [], warmup_steps=2, wall_s=45.0) == TrialCost(start_s=45.0, compile_s=0.0, steps_s=0.0)


@given(st.lists(st.floats(0.001, 100.0), max_size=30), st.integers(0, 5), st.floats(0.0, 1e4))
def test_parts_add_up_to_the_wall_time(times: list[float], warmup: int, wall_s: float) -> None:
    cost = cost_of(0.0, times, warmup, wall_s)
    assert min(cost.start_s, cost.compile_s, cost.steps_s) >= 0.0
    assert cost.wall_s == pytest.approx(wall_s)


def test_repeats_start_again_but_compile_once() -> None:
    past = [TrialCost(10.0, 100.0, 50.0)]
    assert predict_cost(past, repeats=3) == TrialCost(30.0, 100.0, 150.0)


def test_before_any_trial_the_first_guess_counts_and_then_never_again() -> None:
    guess = TrialCost(1.0, 2.0, 3.0)
    assert predict_cost([]) is None
    assert predict_cost([], first=guess) == guess
    assert predict_cost([TrialCost(9.0, 9.0, 9.0)], first=guess) == TrialCost(9.0, 9.0, 9.0)


@given(st.lists(costs, min_size=1, max_size=20), st.integers(1, 5), st.floats(0.0, 1.0))
def test_a_prediction_lies_within_the_past_and_grows_with_caution(
    past: list[TrialCost], repeats: int, quantile: float
) -> None:
    found, dearest = (
        predict_cost(past, repeats=repeats, quantile=quantile),
        predict_cost(past, repeats=repeats, quantile=1),
    )
    assert found is not None
    assert dearest is not None
    assert min(cost.start_s for cost in past) * repeats <= found.start_s <= dearest.start_s
    assert found.wall_s <= dearest.wall_s
    assert dearest.steps_s == repeats * max(cost.steps_s for cost in past)


def test_four_of_five_trials_cost_no_more_than_predicted() -> None:
    source = random.Random(1)
    past = [TrialCost(source.lognormvariate(3.0, 1.0), 0.0, 0.0) for _ in range(200)]
    found = predict_cost(past)
    assert found is not None
    assert sum(cost.start_s <= found.start_s for cost in past) == 160


@given(st.lists(st.tuples(costs, st.integers(1, 64)), max_size=20), st.floats(0.1, 1e4))
def test_a_budget_is_never_exceeded_when_trials_cost_what_was_predicted(
    trials: list[tuple[TrialCost, int]], budget: float
) -> None:
    spent = 0.0
    for cost, gpus in trials:
        if refusal(cost, gpus, spent_gpu_hours=spent, budget_gpu_hours=budget) is None:
            spent += cost.gpu_hours(gpus)
    assert spent <= budget * (1 + 1e-9)


@given(costs, st.integers(1, 64), st.floats(0.0, 1e6))
def test_no_launch_that_cannot_finish(cost: TrialCost, gpus: int, remaining_s: float) -> None:
    allowed = refusal(cost, gpus, remaining_s=remaining_s) is None
    assert allowed == (remaining_s > 0.0 and cost.wall_s <= remaining_s)


def test_refusals_say_what_is_left_and_what_is_needed() -> None:
    cost = TrialCost(100.0, 500.0, 3000.0)
    assert refusal(cost, 256, spent_gpu_hours=800.0, budget_gpu_hours=1000.0) == (
        "the budget has 200 of 1000 GPU-hours left; the next trial needs about 256"
    )
    assert refusal(cost, 256, remaining_s=1800.4) == ("1800 s of wall time are left; the next trial needs about 3600 s")
    assert refusal(cost, 256) is None
    assert refusal(None, 8, spent_gpu_hours=1.0, budget_gpu_hours=1.0) is not None
    assert refusal(None, 8, budget_gpu_hours=1.0, remaining_s=1.0) is None


@pytest.mark.parametrize("count", [8, 20, 60])
def test_the_expected_gain_is_about_what_one_more_trial_saves(count: int) -> None:
    """Over many studies of trials evenly between 1 and 2 s, where the saving has a formula."""
    source = random.Random(count)
    promised, saved = 0.0, 0.0
    for _ in range(2000):
        times = [1.0 + source.random() for _ in range(count)]
        promised += expected_gain(times)
        saved += (min(times) - 1.0) ** 2 / 2.0 / min(times)
    assert 0.95 * saved <= promised <= 1.35 * saved


@given(st.lists(st.floats(0.1, 10.0), min_size=2, max_size=30), st.sampled_from([0.25, 1024.0]))
def test_the_gain_is_a_share_blind_to_unit_and_order(times: list[float], unit: float) -> None:
    gain = expected_gain(times)
    assert 0.0 <= gain <= 1.0
    assert expected_gain([unit * value for value in reversed(times)]) == pytest.approx(gain)


def test_equal_trials_promise_nothing_and_one_alone_everything() -> None:
    assert expected_gain([2.0] * 9) == 0.0
    assert expected_gain([]) == expected_gain([2.0]) == 1.0
    with pytest.raises(ValueError, match="positive"):
        expected_gain([1.0, 0.0])


@given(st.floats(0.0, 1.0), st.floats(0.1, 100.0), st.integers(1, 1024), st.integers(0, 10**6), st.floats(0.0, 1e4))
def test_paying_back_is_monotone(gain: float, step_time_s: float, gpus: int, steps: int, cost: float) -> None:
    if pays_back(gain, step_time_s, gpus, steps, cost):
        assert pays_back(gain, step_time_s, gpus, 2 * steps, cost)
        assert pays_back(gain, step_time_s, 2 * gpus, steps, cost)
        assert pays_back(gain, step_time_s, gpus, steps, cost / 2)
    if cost > 0.0:
        assert not pays_back(0.0, step_time_s, gpus, steps, cost)


def test_one_percent_of_a_long_training_pays_for_a_trial() -> None:
    # 256 GPUs, 10.7 s a step: 50 steps cost 38 GPU-hours, and 1 % pays that back within 5,000 steps.
    assert pays_back(0.01, 10.7, 256, 5_100, 38.0)
    assert not pays_back(0.01, 10.7, 256, 4_900, 38.0)


@pytest.mark.parametrize(("repeats", "quantile"), [(0, 0.8), (1, -0.1), (1, 1.1), (1, float("nan"))])
def test_what_is_no_prediction_is_refused(repeats: int, quantile: float) -> None:
    with pytest.raises(ValueError, match="must be at least 1"):
        predict_cost([TrialCost(1.0, 1.0, 1.0)], repeats=repeats, quantile=quantile)
