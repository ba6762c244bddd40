"""A gain is said of one setting only where a pair differs in nothing else."""

from dataclasses import replace

import pytest

from autotune.measure.matched import fastest_pairs, matched_pairs, only_difference
from autotune.measure.outcome import TrialOutcome, TrialState
from autotune_policies.settings import resolve

STEPS = [1.0 + 0.002 * (index % 3) for index in range(40)]


def ran(trial: int, scale: float, hosts: tuple[str, ...] = ("one",), **settings: object) -> TrialOutcome:
    times = [step * scale for step in STEPS]
    return TrialOutcome(
        trial, TrialState.COMPLETE, resolve(settings),
        step_time_s=scale, step_times_s=times, steps_used=len(times), hosts=list(hosts),
    )  # fmt: skip


BASE = {"dispatcher": "alltoall", "expert_parallel": 8}
DEEPEP = {"dispatcher": "deepep", "expert_parallel": 8, "num_sms": 20}


def test_a_pair_that_differs_in_the_dispatcher_and_what_belongs_to_it() -> None:
    [pair] = matched_pairs([ran(0, 1.0, **BASE), ran(4, 0.8, **DEEPEP)])
    assert (pair.trials, pair.values, pair.comparison.verdict) == ((0, 4), ("alltoall", "deepep"), "b_faster")
    assert "deepep is faster than alltoall" in pair.sentence()
    assert pair.to_dict()["step_time_ratio"] == pytest.approx(1.25, rel=0.01)


@pytest.mark.parametrize(
    "other",
    [
        {"micro_batch_size": 2},
        {"expert_parallel": 4},
        {"pipeline_parallel": 2},
        {"cuda_graph_impl": "transformer_engine", "cuda_graph_modules": ["attn"]},
        {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1},
    ],
)
def test_any_other_difference_makes_no_pair(other: dict[str, object]) -> None:
    assert matched_pairs([ran(0, 1.0, **BASE), ran(4, 0.8, **{**DEEPEP, **other})]) == []


def test_dropping_tokens_is_other_work() -> None:
    capacity = {"dispatcher": "hybridep", "expert_parallel": 8, "num_sms": 16, "rank_capacity_factor": 1.5}
    assert matched_pairs([ran(0, 1.0, **BASE), ran(4, 0.5, **capacity)]) == []


def test_trials_that_did_not_complete_make_no_pair() -> None:
    failed = TrialOutcome(4, TrialState.FALLBACK, resolve(DEEPEP), reason="built alltoall", step_times_s=STEPS)
    assert matched_pairs([ran(0, 1.0, **BASE), failed]) == []


def test_on_different_nodes_a_small_difference_is_a_tie() -> None:
    here, there = ran(4, 0.97, **DEEPEP), ran(4, 0.97, ("two",), **DEEPEP)
    assert [pair.comparison.verdict for pair in matched_pairs([ran(0, 1.0, **BASE), here])] == ["b_faster"]
    [pair] = matched_pairs([ran(0, 1.0, **BASE), there])
    assert pair.comparison.verdict == "tie"
    why = "two runs of one configuration on different nodes may differ by 4%"
    assert pair.to_dict()["reason"] == why
    assert pair.sentence().endswith(f": {why}.")


def test_a_difference_of_less_than_the_margin_is_a_tie_and_says_so() -> None:
    [pair] = matched_pairs([ran(0, 1.0, **BASE), ran(4, 0.995, **DEEPEP)])
    assert pair.comparison.verdict == "tie"
    assert not pair.comparison.ci95[0] <= 1.0 <= pair.comparison.ci95[1]
    assert "on the same nodes may differ by 1%" in pair.sentence()
    [equal] = matched_pairs([ran(0, 1.0, **BASE), ran(4, 1.0, **DEEPEP)])
    assert equal.reason == ""
    assert equal.sentence().endswith("which differ in nothing else).")


def test_what_compare_objects_to_is_said_with_the_pair() -> None:
    """The second takes 5 % less by the median, but every fourth of its steps takes twice as long."""
    often_slow = ran(4, 0.95, **DEEPEP)
    times = [value * (2 if step % 4 == 3 else 1) for step, value in enumerate(often_slow.step_times_s)]
    [pair] = matched_pairs([ran(0, 1.0, **BASE), replace(often_slow, step_times_s=times)])
    assert pair.comparison.verdict == "tie"
    reason = pair.to_dict()["reason"]
    assert reason.startswith("by the median B is faster, by the mean of the steps that count A is")
    assert reason.endswith("(A is trial 0, B is trial 4)")
    assert pair.sentence().endswith(f"which differ in nothing else): {reason}.")


@pytest.mark.parametrize(
    ("one", "other", "only"),
    [
        (BASE, DEEPEP, "dispatcher"),
        (BASE, {**BASE, "micro_batch_size": 2}, "micro_batch_size"),
        (BASE, {**DEEPEP, "micro_batch_size": 2}, None),
        (BASE, {**BASE, "dispatcher": "hybridep", "num_sms": 16, "rank_capacity_factor": 1.5}, None),
        (BASE, BASE, None),
    ],
)
def test_the_only_difference_of_two_configurations(
    one: dict[str, object], other: dict[str, object], only: str | None
) -> None:
    assert only_difference(resolve(one), resolve(other)) == only
    assert only_difference(resolve(other), resolve(one)) == only


def test_of_the_same_two_values_the_fastest_pair_speaks() -> None:
    slow = [ran(0, 1.0, **BASE), ran(1, 0.9, **DEEPEP)]
    fast = [ran(2, 0.6, **BASE, micro_batch_size=2), ran(3, 0.5, **DEEPEP, micro_batch_size=2)]
    assert [pair.trials for pair in fastest_pairs([*slow, *fast])] == [(2, 3)]
