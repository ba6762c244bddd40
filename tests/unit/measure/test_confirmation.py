"""Finalists run again in turns: what is still to be run, and what the runs say."""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.measure.confirmation import (
    NextRun,
    confirmation_folder,
    confirmation_gpu_s,
    confirmation_of,
    in_parity,
    next_run,
    recorded_runs,
    with_confirmed_numbers,
)
from autotune.measure.outcome import TrialOutcome, TrialState
from autotune.request import TuneRequest, load_request
from autotune.space.effort import ConfirmPlan
from autotune_policies.settings import resolve
from autotune_trials.spec import Contract, GangShape

CONTRACT = Contract(128, 8, steps=12, warmup_steps=2)
PLAN = ConfirmPlan(finalists=3, repeats=3, steps=12, most_steps=48)
SETTINGS = resolve({})
MIB = 2**20


def ran(trial: int, step_time_s: float, steps: int, *, spread: float = 0.001, peak: int = 100 * MIB) -> TrialOutcome:
    """A run whose first two steps compile."""
    times = [step_time_s * (1 + spread * ((7 * step) % 5 - 2)) for step in range(steps)]
    times[:2] = [5 * step_time_s, 2 * step_time_s]
    return TrialOutcome(
        trial, TrialState.COMPLETE, SETTINGS,
        step_time_s=step_time_s, tokens_per_s_per_gpu=8.0, peak_memory_bytes=peak,
        step_times_s=times, steps_used=steps - 2, gpu_s=10.0,
    )  # fmt: skip


def runs_of(
    finalists: tuple[int, ...], outcome: Callable[[NextRun], TrialOutcome], plan: ConfirmPlan = PLAN
) -> Iterator[dict[int, TrialOutcome]]:
    """The runs after each launch, made one by one as the plan asks for them."""
    runs: dict[int, TrialOutcome] = {}
    while (run := next_run(plan, finalists, runs)) is not None:
        runs[run.index] = outcome(run)
        yield dict(runs)


def test_finalists_take_turns_and_every_second_round_goes_backwards() -> None:
    asked: list[NextRun] = []

    def outcome(run: NextRun) -> TrialOutcome:
        asked.append(run)
        return ran(run.trial, 1.0, run.steps)

    list(runs_of((7, 3), outcome))

    assert [run.trial for run in asked] == [7, 3, 3, 7, 7, 3]
    assert [run.index for run in asked] == [0, 1, 2, 3, 4, 5]


@settings(deadline=None, max_examples=25)
@given(st.integers(1, 3), st.integers(1, 3), st.data())
def test_whatever_is_there_already_only_the_rest_is_run(width: int, repeats: int, data: st.DataObject) -> None:
    plan, finalists = PLAN.model_copy(update={"repeats": repeats}), tuple(range(width))
    *_, full = runs_of(finalists, lambda run: ran(run.trial, 1.0, run.steps), plan)
    assert sorted(full) == list(range(width * repeats))

    kept = data.draw(st.sets(st.sampled_from(sorted(full))))
    runs = {index: full[index] for index in kept}
    again = []
    while (run := next_run(plan, finalists, runs)) is not None:
        again.append(run.index)
        runs[run.index] = ran(run.trial, 1.0, run.steps)

    assert again == sorted(set(full) - kept)
    assert {index: outcome.trial for index, outcome in runs.items()} == {i: o.trial for i, o in full.items()}


def test_steps_double_while_they_scatter_and_stay_where_they_do_not() -> None:
    def steps(spread: float) -> list[int]:
        *_, runs = runs_of((1, 2), lambda run: ran(run.trial, 1.0, run.steps, spread=spread))
        return [len(runs[index].step_times_s) for index in sorted(runs)]

    assert steps(0.05) == [12, 12, 24, 24, 48, 48]
    quiet = PLAN.model_copy(update={"steps": 30})
    *_, runs = runs_of((1, 2), lambda run: ran(run.trial, 1.0, run.steps, spread=0.0001), quiet)
    assert {len(outcome.step_times_s) for outcome in runs.values()} == {30}


def test_a_clear_winner_stands_alone() -> None:
    *_, runs = runs_of((1, 2), lambda run: ran(run.trial, 1.0 if run.trial == 1 else 1.2, run.steps))
    found = confirmation_of(PLAN, (1, 2), runs)
    assert (found.members, found.chosen, found.repeats, found.missing) == ((1,), 1, 3, False)


def test_of_a_tie_the_leanest_is_chosen() -> None:
    def outcome(run: NextRun) -> TrialOutcome:
        return ran(run.trial, 1.0 + 0.002 * run.trial, run.steps, peak=(300 - 100 * run.trial) * MIB)

    *_, runs = runs_of((0, 1, 2), outcome)
    found = confirmation_of(PLAN, (0, 1, 2), runs)
    assert found.members == (0, 1, 2)
    assert found.chosen == 2


def test_compiling_steps_do_not_count_and_the_interval_holds_the_level() -> None:
    *_, runs = runs_of((1, 2), lambda run: ran(run.trial, 1.0, run.steps))
    found = confirmation_of(PLAN, (1, 2), runs)
    low, high = found.ci95(1)
    assert found.step_time_s(1) == pytest.approx(1.0, rel=0.002)
    assert low < 1.0 < high < 1.05


def test_a_finalist_that_fails_again_is_dropped_and_not_run_any_more() -> None:
    def outcome(run: NextRun) -> TrialOutcome:
        if run.trial == 2:
            return TrialOutcome(2, TrialState.INFEASIBLE, SETTINGS, reason="out of memory")
        return ran(run.trial, 1.0, run.steps)

    *_, runs = runs_of((1, 2), outcome)
    assert [runs[index].trial for index in sorted(runs)] == [1, 2, 1, 1]
    found = confirmation_of(PLAN, (1, 2), runs)
    assert found.dropped == {2: "INFEASIBLE: out of memory"}
    assert (found.members, found.repeats) == ((1,), 3)


def test_a_finalist_over_the_memory_limit_is_dropped() -> None:
    *_, runs = runs_of((1, 2), lambda run: ran(run.trial, 1.0, run.steps, peak=run.trial * 100 * MIB))
    found = confirmation_of(PLAN, (1, 2), runs, limit_bytes=150 * MIB)
    assert list(found.dropped) == [2]
    assert found.chosen == 1


def test_runs_that_say_nothing_are_repeated_up_to_twice_as_often() -> None:
    def disturbed(run: NextRun) -> TrialOutcome:
        return ran(run.trial, 3.0 if run.index == 2 else 1.0 + 0.01 * run.trial, run.steps)

    def hopeless(run: NextRun) -> TrialOutcome:
        return ran(run.trial, (1.0, 4.0, 2.0, 9.0)[run.index % 4], run.steps)

    twice = PLAN.model_copy(update={"repeats": 2})
    counts = [len(list(runs_of((1, 2), outcome, twice))) for outcome in (disturbed, hopeless)]
    assert counts[0] > 4
    assert counts[1] == 8


def test_what_looks_slower_is_not_chosen_for_its_memory_however_wide_the_tie() -> None:
    def outcome(run: NextRun) -> TrialOutcome:
        slow = (1.1, 1.6)[run.index // 2 % 2]
        return ran(run.trial, 1.0 if run.trial == 1 else slow, run.steps, peak=(300 - 100 * run.trial) * MIB)

    *_, runs = runs_of((1, 2), outcome, PLAN.model_copy(update={"repeats": 2}))
    found = confirmation_of(PLAN.model_copy(update={"repeats": 2}), (1, 2), runs)
    assert found.members == (1, 2)
    assert found.chosen == 1


def test_a_round_that_is_not_complete_does_not_count() -> None:
    *_, runs = runs_of((1, 2), lambda run: ran(run.trial, 1.0, run.steps))
    three = {index: runs[index] for index in (0, 1, 2)}
    found = confirmation_of(PLAN, (1, 2), three)
    assert found.repeats == 1
    assert found.missing
    assert {trial: len(of) for trial, of in found.runs.items()} == {1: 1, 2: 1}
    nothing = confirmation_of(PLAN, (1, 2), {0: runs[0]})
    assert nothing.tied is None
    assert nothing.chosen is None


def test_the_winner_gets_the_numbers_of_its_repeated_runs() -> None:
    *_, runs = runs_of((1, 2), lambda run: ran(run.trial, 1.1, run.steps, peak=130 * MIB))
    found = confirmation_of(PLAN, (1, 2), runs)
    confirmed = with_confirmed_numbers(ran(1, 1.0, 12), found, CONTRACT, GangShape(1, 4))
    assert confirmed.step_time_s == pytest.approx(1.1, rel=0.002)
    assert confirmed.tokens_per_s_per_gpu == pytest.approx(128 * 8 / 1.1 / 4, rel=0.002)
    assert confirmed.peak_memory_bytes == 130 * MIB


@pytest.fixture
def request_here(tmp_path) -> TuneRequest:
    return load_request("tiny-moe", "local", home=tmp_path)


def test_records_are_read_back_and_lost_runs_are_not(request_here: TuneRequest) -> None:
    folder = confirmation_folder(request_here, "0123456789ab", (4, 12))
    assert folder.name == "0004-0012"
    lost = TrialOutcome(12, TrialState.LOST, SETTINGS, reason="node died", gpu_s=3.0)
    outcomes = {"00": ran(4, 1.0, 12), "01": ran(12, 1.0, 12), "01.1": replace(lost, gpu_s=4.0), "02": lost}
    for name, outcome in outcomes.items():
        (folder / name).mkdir(parents=True)
        (folder / name / "outcome.json").write_text(json.dumps(outcome.to_dict()))
    (folder / "03").mkdir()
    (folder / "03" / "outcome.json").write_text("{ cut off")

    assert recorded_runs(folder) == {0: outcomes["00"], 1: outcomes["01"]}
    assert confirmation_gpu_s(request_here) == 27.0
    again = confirmation_folder(request_here, "another stack", (4,)) / "00"
    again.mkdir(parents=True)
    (again / "outcome.json").write_text(json.dumps(lost.to_dict()))
    assert confirmation_gpu_s(request_here) == 30.0


def trained(trial: int, losses: list[float], **settings: object) -> TrialOutcome:
    """A complete run that trained to these losses."""
    return replace(
        ran(trial, 1.0, len(losses)), settings=resolve(settings), losses=losses, grad_norms=[1.0] * len(losses)
    )


def test_a_finalist_that_trains_to_other_numbers_when_it_is_run_again_is_out(request_here: TuneRequest) -> None:
    baseline = trained(0, [6.0] * 12)
    sound, wrong = (trained(3, [loss] * 24, dispatcher="allgather") for loss in (6.0, 6.5))
    assert in_parity(request_here, sound, [], baseline) is sound
    judged = in_parity(request_here, wrong, [sound], baseline)
    assert (judged.state, judged.cause) == (TrialState.INFEASIBLE, "out_of_parity")

    runs = {0: sound, 1: trained(0, [6.0] * 24), 2: judged}
    found = confirmation_of(PLAN, (3, 0), runs)
    assert found.dropped[3].startswith("INFEASIBLE: out of parity: loss is +")
    assert 3 not in found.members
    following = next_run(PLAN, (3, 0), runs)
    assert following is not None
    assert following.trial == 0, "a finalist that failed once is not run again"


def test_a_longer_run_of_a_recipe_is_compared_only_with_one_as_long(request_here: TuneRequest) -> None:
    """Its learning rate may depend on the number of steps."""
    recipe = replace(request_here, program="bridge")
    baseline, longer = trained(0, [6.0] * 12), trained(0, [6.0] * 24)
    other = trained(3, [6.5] * 24, dispatcher="allgather")
    assert in_parity(recipe, other, [], baseline) is other
    assert in_parity(recipe, other, [longer], baseline).cause == "out_of_parity"
    assert in_parity(request_here, other, [longer], None) is other
