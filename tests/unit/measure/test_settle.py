"""A crash counts when it was seen elsewhere too; a wrong loss never counts as a measurement."""

import json
from dataclasses import replace

import pytest

from autotune.measure.outcome import TrialOutcome, TrialState
from autotune.measure.settle import MOST_RUNS, Reference, against_baseline, given_up, hosts_to_avoid, in_doubt_lost
from autotune_trials.spec import Contract

SETTINGS = {"dispatcher": "deepep"}
BASELINE = {"dispatcher": "alltoall"}
REFERENCE = Reference(BASELINE, Contract(seq_length=8, global_batch_size=2, precision="bf16"), "bridge", "cpu")
LOSSES = [6.0, 5.9, 5.8, 5.7, 5.6]


def ended(trial, cause="crash", host="one", state=TrialState.INFEASIBLE, **fields):
    outcome = TrialOutcome(trial, TrialState.LOST, SETTINGS, hosts=[host], blamed_host=host, **fields)
    return outcome.because(cause, state, f"{cause} on {host}", 1.5)


@pytest.mark.parametrize("cause", ["crash", "hang", "dispatcher_timeout", "import_crash", "gpu_fault"])
def test_a_first_sighting_runs_again_elsewhere_and_the_second_counts(cause):
    first = in_doubt_lost(ended(1, cause), [], ["one", "two"])
    assert (first.state, first.violation) == (TrialState.LOST, 0)
    assert first.reason.startswith("seen for the first time, runs again on other nodes: ")
    assert hosts_to_avoid([first], SETTINGS) == ["one"]
    assert hosts_to_avoid([first], BASELINE) == []
    second = in_doubt_lost(ended(2, cause, "two"), [first], ["one", "two"])
    assert (second.state, second.violation) == (TrialState.INFEASIBLE, 1.5)
    assert second.notes == ["seen before in trial 1 (one)"]


def test_without_another_node_the_first_sighting_counts_and_says_so():
    outcome = in_doubt_lost(ended(1), [], ["one"])
    assert outcome.state is TrialState.INFEASIBLE
    assert outcome.notes == ["seen on these nodes only; there are no others to run it on"]


def test_memory_and_rejection_need_no_second_sighting():
    for cause in ("device_memory", "rejected", "not_a_number", "missing_package"):
        outcome = ended(1, cause)
        assert in_doubt_lost(outcome, [], ["one", "two"]) is outcome


def complete(trial, settings, losses):
    return TrialOutcome(
        trial, TrialState.COMPLETE, settings, step_time_s=0.1, tokens_per_s_per_gpu=9.0, peak_memory_bytes=5,
        loss=losses[-1], losses=losses, grad_norms=[1.0] * len(losses), steps_used=2,
    )  # fmt: skip


def test_a_corrupted_loss_is_never_ranked():
    baseline = complete(0, BASELINE, LOSSES)
    wrong = complete(1, SETTINGS, [loss * 1.5 for loss in LOSSES])
    outcome = against_baseline(wrong, [baseline, wrong], REFERENCE)
    assert (outcome.state, outcome.cause, outcome.violation) == (TrialState.INFEASIBLE, "out_of_parity", 1.0)
    assert outcome.tokens_per_s_per_gpu is None
    json.dumps(outcome.to_dict())


def test_a_sound_run_and_the_baseline_itself_stay_complete():
    baseline = complete(0, BASELINE, LOSSES)
    sound = complete(1, SETTINGS, [loss * 1.004 for loss in LOSSES])
    assert against_baseline(sound, [baseline], REFERENCE) is sound
    assert against_baseline(baseline, [baseline], REFERENCE) is baseline
    assert against_baseline(sound, [], REFERENCE) is sound


def test_runs_that_begin_alike_are_held_to_a_tighter_tolerance():
    baseline = complete(0, BASELINE, LOSSES)
    near = complete(1, SETTINGS, [loss * 1.004 for loss in LOSSES])
    outcome = against_baseline(near, [baseline], replace(REFERENCE, program="native"))
    assert (outcome.state, outcome.cause) == (TrialState.INFEASIBLE, "out_of_parity")


@pytest.mark.parametrize(("state", "cause"), [(TrialState.LOST, "lost"), (TrialState.CONTAMINATED, "disturbed")])
def test_what_says_nothing_again_and_again_is_given_up(state, cause):
    ends = [ended(trial, cause, state=state) for trial in range(MOST_RUNS[state])]
    others = [replace(ended(9, cause, state=state), settings=BASELINE)]
    *first, last = [given_up(outcome, [*others, *ends[:trial]]) for trial, outcome in enumerate(ends)]
    assert all(outcome.runs_again for outcome in first)
    assert (last.state, last.runs_again, last.retry) == (state, False, "never")
    trials = ", ".join(map(str, range(MOST_RUNS[state])))
    assert last.notes == [f"given up, no run of it was undisturbed (trials {trials})"]


def test_runs_that_somebody_stopped_are_not_counted():
    stopped = [ended(trial, "cancelled", state=TrialState.LOST) for trial in range(5)]
    assert all(given_up(outcome, stopped) is outcome for outcome in stopped)
    lost = ended(7, "lost", state=TrialState.LOST)
    assert given_up(lost, stopped) is lost
