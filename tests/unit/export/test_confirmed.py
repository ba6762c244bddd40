"""Who is run again, and what the policy says of it."""

import json
from dataclasses import replace

import pytest

from autotune.cli.main import main
from autotune.errors import RequestError
from autotune.export.confirmed import confirmation_in, finalists_of, missing_run, sentences
from autotune.export.result import best_of, choose_policy, conclude
from autotune.measure.confirmation import confirmation_folder
from autotune.measure.outcome import TrialOutcome, TrialState
from autotune.measure.surroundings import Surroundings
from autotune.request import load_request, stored_request
from autotune_policies.policy import dump_policy, parse_policy

HERE = Surroundings("0123456789ab", {"megatron_core": "0.16.1", "torch": "2.13.0"}, {})
MIB = 2**20


@pytest.fixture
def request_here(tmp_path):
    return load_request("tiny-moe", "local", home=tmp_path)


@pytest.fixture
def ran(request_here):
    """A completed trial; trials differ in their micro-batch."""

    def make(trial, step_time_s, peak_mib=100, steps=10, **settings):
        times = [step_time_s * (1 + 0.001 * ((7 * step) % 5 - 2)) for step in range(steps)]
        point = {**request_here.space.baseline, **settings}
        return TrialOutcome(
            trial, TrialState.COMPLETE, request_here.settings(point),
            step_time_s=step_time_s, tokens_per_s_per_gpu=512 / step_time_s, peak_memory_bytes=peak_mib * MIB,
            loss=6.0, losses=[6.0] * steps, step_times_s=times, steps_used=steps - 3, gpu_s=36.0, hosts=["one"],
            startup_s=8.0, wall_s=18.0,
        )  # fmt: skip

    return make


def confirm(request, outcomes, run):
    """Make every run that the plan asks for; how often it asked."""
    count = 0
    while (wanted := missing_run(request, outcomes, HERE)) is not None:
        finalists = [outcome.trial for outcome in finalists_of(request, outcomes)]
        folder = confirmation_folder(request, HERE.fingerprint, finalists) / f"{wanted.index:02d}"
        folder.mkdir(parents=True)
        (folder / "outcome.json").write_text(json.dumps(run(wanted).to_dict()))
        count += 1
    return count


def numbers(outcomes):
    return [outcome.trial for outcome in outcomes]


def test_finalists_are_those_that_noise_cannot_tell_from_the_fastest(request_here, ran):
    many = replace(request_here, effort=replace(request_here.effort, confirm=request_here.effort.confirm.model_copy(
        update={"finalists": 5}
    )))  # fmt: skip
    outcomes = [ran(0, 2.0), ran(1, 1.02), ran(2, 1.0), ran(3, 1.03), ran(4, 1.2)]
    assert numbers(finalists_of(many, outcomes)) == [2, 1, 3]
    assert numbers(finalists_of(request_here, outcomes)) == [2, 1]


def test_the_runner_up_is_a_finalist_however_slow(request_here, ran):
    assert numbers(finalists_of(request_here, [ran(0, 9.0), ran(1, 1.0), ran(2, 5.0)])) == [1, 2]


def test_trials_over_the_memory_limit_are_no_finalists(request_here, ran):
    limited = replace(request_here, memory_limit_bytes=200 * MIB)
    assert numbers(finalists_of(limited, [ran(0, 1.0, 300), ran(1, 1.1), ran(2, 1.2)])) == [1, 2]


def test_selected_by_memory_the_leanest_runs_again_beside_the_fastest(request_here, ran):
    lean = replace(request_here, select="memory")
    assert numbers(finalists_of(lean, [ran(0, 1.0, 300), ran(1, 2.0, 200), ran(2, 3.0, 100)])) == [0, 2]


def test_without_repeats_nothing_is_confirmed(tmp_path, ran):
    off = load_request("tiny-moe", "local", home=tmp_path, confirm=0)
    assert finalists_of(off, [ran(0, 1.0)]) == []
    assert missing_run(off, [ran(0, 1.0)], HERE) is None


def test_of_a_tie_the_leanest_wins_even_against_the_front(request_here, ran):
    """In the search trial 1 looked better in both respects; run again, they tie and trial 2 needs less."""
    outcomes = [ran(0, 2.0), ran(1, 1.0, 100, micro_batch_size=2), ran(2, 1.01, 101, micro_batch_size=4)]
    confirm(request_here, outcomes, lambda run: ran(run.trial, 1.0, {1: 120, 2: 110}[run.trial], steps=run.steps))
    found = confirmation_in(request_here, outcomes, HERE)
    assert found.members == (1, 2)

    front, winner = best_of(request_here, outcomes, found)

    assert winner.trial == 2
    assert winner in front
    assert any("tie" in line for line in sentences(found))


def test_the_policy_has_the_repeats_the_interval_and_the_tie(request_here, ran):
    outcomes = [ran(0, 2.0), ran(1, 1.0, 100, micro_batch_size=2), ran(2, 1.01, 90, micro_batch_size=4)]
    confirm(request_here, outcomes, lambda run: ran(run.trial, 1.1, {1: 100, 2: 90}[run.trial], steps=run.steps))

    policy = choose_policy(request_here, outcomes, HERE)

    assert parse_policy(dump_policy(policy)).evidence == policy.evidence
    step_time = policy.evidence["step_time_s"]
    assert policy.evidence["trial"] == 2
    assert step_time["median"] == pytest.approx(1.1, rel=0.01)
    assert step_time["repeats"] == 2
    assert step_time["ci95"][0] < 1.1 < step_time["ci95"][1]
    assert policy.evidence["confirmation"]["tie_set"] == [1, 2]
    assert "only finalists were run again" in policy.evidence["note"]
    first = policy.alternatives[0]
    assert (first["trial"], first["tie"]) == (1, True)
    assert first["ratio_ci95"][0] <= first["ratio_to_fastest"] <= first["ratio_ci95"][1]


def test_a_finalist_that_fails_again_is_not_the_winner(request_here, ran):
    outcomes = [ran(0, 2.0), ran(1, 1.0, micro_batch_size=2)]

    def run(wanted):
        if wanted.trial == 1:
            return TrialOutcome(1, TrialState.INFEASIBLE, outcomes[1].settings, reason="out of device memory")
        return ran(0, 2.0, steps=wanted.steps)

    assert confirm(request_here, outcomes, run) == 3
    policy = choose_policy(request_here, outcomes, HERE)
    assert policy.evidence["trial"] == 0
    assert policy.evidence["confirmation"]["dropped"] == {"1": "INFEASIBLE: out of device memory"}
    assert all(entry["trial"] != 1 for entry in policy.alternatives)


def test_another_set_of_finalists_begins_anew(request_here, ran):
    outcomes = [ran(0, 2.0), ran(1, 1.0, micro_batch_size=2)]
    assert confirm(request_here, outcomes, lambda run: ran(run.trial, 1.0, steps=run.steps)) == 4
    assert confirm(request_here, outcomes, lambda run: ran(run.trial, 1.0, steps=run.steps)) == 0
    more = [*outcomes, ran(2, 0.5, micro_batch_size=4)]
    assert confirmation_in(request_here, more, HERE) is None
    assert missing_run(request_here, more, HERE).index == 0
    assert confirmation_in(request_here, outcomes, replace(HERE, fingerprint="another")) is None


def test_the_summary_has_the_confirmed_numbers_and_why_it_stopped(request_here, ran):
    outcomes = [ran(0, 2.0), ran(1, 1.0, micro_batch_size=2)]
    confirm(request_here, outcomes, lambda run: ran(run.trial, {0: 2.0, 1: 1.2}[run.trial], steps=run.steps))
    result = conclude(request_here, outcomes, HERE, wall_s=1.0, spent_gpu_hours=0.5, stopped="the budget is used")
    summary = json.loads(json.dumps(result.summary))
    assert summary["best"]["step_time_s"] == pytest.approx(1.2, rel=0.01)
    assert summary["pareto"][0]["step_time_s"] == 1.0
    assert summary["confirmation"]["chosen"] == 1
    assert (summary["gpu_hours"], summary["stopped"]) == (0.5, "the budget is used")


def test_limits_come_back_from_the_stored_request(tmp_path):
    asked = load_request(
        "tiny-moe", "local", home=tmp_path, study="one", budget_gpu_hours=2.5, pays_back_after=1000, confirm=4
    )
    asked.folder.mkdir()
    (asked.folder / "request.yaml").write_text(asked.to_yaml())
    assert stored_request("one", tmp_path).effort == asked.effort


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"budget_gpu_hours": 0.0}, "budget-gpu-hours must be above 0, but got 0.0"),
        ({"budget_gpu_hours": float("nan")}, "budget-gpu-hours must be above 0"),
        ({"pays_back_after": 0}, "pays-back-after must be at least 1 step, but got 0"),
        ({"confirm": -1}, "confirm must be from 0 to 100 repeats, but got -1"),
    ],
)
def test_limits_out_of_range_are_refused(tmp_path, wrong, says):
    with pytest.raises(RequestError, match=says):
        load_request("tiny-moe", "local", home=tmp_path, **wrong)


def test_start_refuses_them_in_one_line(tmp_path, capsys):
    words = ["start", "--model", "tiny-moe", "--cluster", "local", "--home", str(tmp_path), "--confirm", "101"]
    assert main(words) == 2
    assert "error: confirm must be from 0 to 100 repeats" in capsys.readouterr().err


def test_a_confirmation_that_was_made_is_not_lost_when_none_is_asked_for(request_here, ran):
    outcomes = [ran(0, 2.0), ran(1, 1.0, micro_batch_size=2)]
    confirm(request_here, outcomes, lambda run: ran(run.trial, 1.0, steps=run.steps))
    before = confirmation_in(request_here, outcomes, HERE)
    none = request_here.effort.confirm.model_copy(update={"repeats": 0})
    off = replace(request_here, effort=replace(request_here.effort, confirm=none))
    assert confirmation_in(off, outcomes, HERE) == before
    assert missing_run(off, outcomes, HERE) is None
    assert before.repeats > 0


@pytest.mark.parametrize(
    ("peaks", "says"),
    [
        ({1: 100, 2: 100}, "is taken: none needs less memory, nor as little with a shorter mean step."),
        ({1: 120, 2: 110}, "trial 2 needs the least memory of them."),
    ],
)
def test_the_least_memory_is_only_said_of_one(request_here, ran, peaks, says):
    outcomes = [ran(0, 2.0), ran(1, 1.0, micro_batch_size=2), ran(2, 1.01, micro_batch_size=4)]
    confirm(request_here, outcomes, lambda run: ran(run.trial, 1.0, peaks[run.trial], steps=run.steps))
    assert sentences(confirmation_in(request_here, outcomes, HERE))[0].endswith(says)


def often_slow(outcome):
    """The same trial, but every fourth step takes twice as long: the median is blind to it."""
    times = [value * (2 if step % 4 == 3 else 1) for step, value in enumerate(outcome.step_times_s)]
    return replace(outcome, step_times_s=times)


def test_start_does_not_call_a_trial_the_fastest_that_compare_objects_to(request_here, ran):
    """Trial 1 takes 0.95 s and every fourth step twice that; trial 2 takes 1 s, so training is faster with it."""
    outcomes = [
        ran(0, 2.0),
        often_slow(ran(1, 0.95, 90, steps=40, micro_batch_size=2)),
        ran(2, 1.0, 100, steps=40, micro_batch_size=4),
    ]

    def run(wanted):
        made = ran(wanted.trial, {1: 0.95, 2: 1.0}[wanted.trial], {1: 90, 2: 100}[wanted.trial], steps=40)
        return often_slow(made) if wanted.trial == 1 else made

    confirm(request_here, outcomes, run)
    found = confirmation_in(request_here, outcomes, HERE)
    policy = choose_policy(request_here, outcomes, HERE)
    said = policy.evidence["confirmation"]

    assert (found.members, found.chosen) == ((1, 2), 2)
    assert best_of(request_here, outcomes, found)[1].trial == 2
    assert (policy.evidence["trial"], said["tie_set"], said["chosen"]) == (2, [1, 2], 2)
    assert said["finalists"][0]["mean_step_time_s"] > 1.15 * said["finalists"][1]["mean_step_time_s"]
    [objection] = said["objections"]
    assert (objection["faster"], objection["slower"]) == (1, 2)
    assert objection["reason"].endswith("(A is trial 1, B is trial 2)")
    lines = sentences(found)
    assert lines[0].endswith("trial 2 is taken, since the mean step of the leaner ones is over 4 % longer.")
    assert lines[1].startswith("Trial 2 is not beaten by trial 1: by the median")
    assert parse_policy(dump_policy(policy)).evidence == policy.evidence


def test_who_leads_by_the_mean_is_a_finalist_though_medians_fill_the_places(request_here, ran):
    spiky = [often_slow(ran(trial, 0.95 + 0.001 * trial, steps=40)) for trial in (1, 2, 3)]
    flat = [ran(4, 1.0, steps=40), ran(5, 1.001, steps=40)]
    assert numbers(finalists_of(request_here, [ran(0, 2.0, steps=40), *spiky, *flat])) == [1, 4]
    assert numbers(finalists_of(request_here, [ran(0, 2.0, steps=40), *flat, ran(6, 1.002, steps=40)])) == [4, 5]


def test_the_policy_has_the_gpu_hours_of_runs_that_say_nothing_too(request_here, ran):
    outcomes = [ran(0, 2.0), ran(1, 1.0, micro_batch_size=2)]
    made = confirm(request_here, outcomes, lambda run: ran(run.trial, 1.0, steps=run.steps))
    lost = confirmation_folder(request_here, HERE.fingerprint, (1, 0)) / "02.1"
    lost.mkdir()
    outcome = TrialOutcome(0, TrialState.LOST, outcomes[0].settings, reason="node died", gpu_s=36.0)
    (lost / "outcome.json").write_text(json.dumps(outcome.to_dict()))
    policy = choose_policy(request_here, outcomes, HERE)
    assert policy.evidence["gpu_hours"] == pytest.approx((len(outcomes) + made + 1) * 0.01)
