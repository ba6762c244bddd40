"""What the next trial costs, and when it is not launched any more."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.measure.account import account_of, remaining_s
from autotune.measure.outcome import TrialOutcome, TrialState
from autotune.request import TuneRequest, load_request
from autotune.space.effort import Effort
from autotune_policies.settings import resolve

REQUEST = load_request("tiny-moe", "local")  # 2 ranks, 10 steps of which 3 warm up
SETTINGS = resolve({})


def asked(**effort: object) -> TuneRequest:
    return replace(REQUEST, effort=replace(Effort(confirm=REQUEST.effort.confirm), **effort))


def ran(trial: int, step_time_s: float) -> TrialOutcome:
    """A trial of 20 s: 10 s until its first step, 10 steps."""
    return TrialOutcome(
        trial, TrialState.COMPLETE, SETTINGS,
        step_time_s=step_time_s, step_times_s=[step_time_s] * 10, steps_used=7,
        startup_s=10.0, wall_s=10.0 + 10 * step_time_s, gpu_s=40.0,
    )  # fmt: skip


def trials(*step_times_s: float) -> Sequence[TrialOutcome]:
    return [ran(index, step_time_s) for index, step_time_s in enumerate(step_times_s)]


def test_before_the_first_trial_nothing_is_known_and_nothing_refused() -> None:
    account = account_of(asked(budget_gpu_hours=0.001), [], 0.0)
    assert account.next_trial is None
    assert account.refusal() is None


def test_the_next_trial_costs_what_the_ones_before_did() -> None:
    account = account_of(asked(), trials(1.0, 1.0), 0.1)
    assert account.next_trial is not None
    assert account.next_trial.wall_s == pytest.approx(20.0)
    assert account.next_trial.gpu_hours(2) == pytest.approx(40 / 3600)


def test_no_trial_is_launched_that_the_budget_cannot_pay() -> None:
    # A trial takes 40 GPU-seconds, confirming 2 finalists twice 160.
    tight = account_of(asked(budget_gpu_hours=0.05), trials(1.0, 1.0), spent_gpu_hours=80 / 3600)
    said = tight.refusal()
    assert said is None  # 100 s are left, half of them kept for confirming
    assert tight.refusal(running=1) is not None
    used = account_of(asked(budget_gpu_hours=0.05), trials(1.0, 1.0), spent_gpu_hours=130 / 3600)
    assert "GPU-hours left" in str(used.refusal())
    assert used.refusal_of_run(10, 10) is None  # but a confirming run still fits
    assert used.refusal_of_run(50, 10) is not None


def test_without_confirmation_nothing_is_kept_for_it() -> None:
    plan = REQUEST.effort.confirm.model_copy(update={"repeats": 0})
    account = account_of(asked(budget_gpu_hours=0.05, confirm=plan), trials(1.0, 1.0), spent_gpu_hours=130 / 3600)
    assert account.confirmation_s == 0.0
    assert account.refusal() is None


@pytest.mark.parametrize(("left_s", "launched"), [(1000.0, True), (50.0, True), (39.0, False), (0.0, False)])
def test_no_trial_is_launched_that_the_allocation_would_cut_off(left_s: float, launched: bool) -> None:
    assert (account_of(asked(), trials(1.0, 1.0), 0.0).refusal(remaining_s=left_s) is None) == launched


def test_it_stops_when_the_gain_does_not_pay_for_the_search() -> None:
    known = trials(1.0, 1.01, 1.02, 1.03)
    few, many = asked(pays_back_after_steps=100), asked(pays_back_after_steps=1_000_000)
    assert "does not pay" in str(account_of(few, known, 0.0).refusal())
    assert account_of(many, known, 0.0).refusal() is None
    assert account_of(few, known[:3], 0.0).refusal() is None  # too few to judge


@given(st.floats(0.001, 10), st.floats(0, 10), st.integers(0, 4), st.lists(st.floats(0.1, 5), min_size=1, max_size=6))
def test_what_may_be_launched_stays_within_the_budget(
    budget: float, spent: float, running: int, step_times_s: list[float]
) -> None:
    account = account_of(asked(budget_gpu_hours=budget), trials(*step_times_s), spent)
    assert account.next_trial is not None
    if account.refusal(running=running) is None:
        assert spent + (running + 1) * account.next_trial.gpu_hours(2) <= budget * (1 + 1e-9)


def test_the_earlier_of_deadline_and_allocation_counts() -> None:
    assert remaining_s(100.0, None, {}) is None
    assert remaining_s(100.0, 160.0, {}) == 60.0
    assert remaining_s(100.0, 160.0, {"SLURM_JOB_END_TIME": "130"}) == 30.0
    assert remaining_s(100.0, None, {"SLURM_JOB_END_TIME": "unknown"}) is None
