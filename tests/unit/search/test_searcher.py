"""The study as Ray Tune sees it."""

import json
import pickle
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from autotune.measure.outcome import TrialOutcome, TrialState
from autotune.measure.surroundings import Surroundings
from autotune.request import TuneRequest
from autotune.scheduling.environment import prepare
from autotune.search.proposal import Proposal
from autotune.search.study import Study
from autotune.space.effort import ConfirmPlan, Effort
from autotune_trials.spec import spec_from

prepare()
pytestmark = pytest.mark.service

Requests = Callable[..., TuneRequest]


class Run:
    """A searcher driven by hand, and what it told its listeners."""

    def __init__(
        self,
        request: TuneRequest,
        here: Surroundings,
        clock: Callable[[], float] = lambda: 0.0,
        stop_at_s: float | None = None,
        hosts: tuple[str, ...] = (),
    ) -> None:
        from autotune.search.searcher import StudySearcher

        self.study = Study(request)
        self.study.enter(here, hosts)
        self.launched: list[Proposal] = []
        self.ended: list[TrialOutcome] = []
        self.searcher = StudySearcher(
            self.study, request, here,
            on_launch=self.launched.append, on_end=self.ended.append, clock=clock, stop_at_s=stop_at_s,
        )  # fmt: skip

    def finish(self, trial_id: str, complete: Callable[[Proposal], TrialOutcome], index: int) -> None:
        outcome = complete(self.launched[index])
        self.searcher.on_trial_complete(trial_id, {"outcome": json.dumps(outcome.to_dict()), "done": True})


def finished(config: Any) -> bool:
    from ray.tune.search import Searcher

    return bool(config == Searcher.FINISHED)


def test_a_suggestion_is_a_complete_trial_with_its_folder(
    request_for: Requests, here: Surroundings, complete: Callable[[Proposal], TrialOutcome]
) -> None:
    request = request_for(trials=1)
    run = Run(request, here)

    config = run.searcher.suggest("a")

    spec = spec_from(config["spec"])
    assert spec == request.spec(run.launched[0].trial, run.launched[0].point)
    assert config["trial_dir"] == str(request.trial_folder(spec.trial))
    assert request.trial_folder(spec.trial).is_dir()
    assert config["fingerprint"] == here.fingerprint
    assert json.loads(json.dumps(config)) == config


def test_the_budget_counts_launched_trials(
    request_for: Requests, here: Surroundings, complete: Callable[[Proposal], TrialOutcome]
) -> None:
    run = Run(request_for(trials=3), here)
    run.searcher.suggest("a")
    run.finish("a", complete, 0)
    assert run.searcher.suggest("b") is not None
    assert run.searcher.suggest("c") is not None
    assert run.searcher.suggest("d") is None  # one of the two may still be lost

    run.finish("b", complete, 1)
    run.finish("c", complete, 2)

    assert finished(run.searcher.suggest("d"))
    assert [outcome.state for outcome in run.ended].count(TrialState.COMPLETE) == 3


def test_nothing_is_launched_beside_the_baseline(
    request_for: Requests, here: Surroundings, complete: Callable[[Proposal], TrialOutcome]
) -> None:
    run = Run(request_for(trials=5), here)
    run.searcher.suggest("a")
    assert run.searcher.suggest("b") is None
    assert not run.searcher.exhausted

    run.searcher.on_trial_complete("a", error=True)  # lost, so it is the next one again
    run.searcher.suggest("c")
    assert run.launched[1].digest == run.launched[0].digest
    assert run.searcher.suggest("d") is None

    run.finish("c", complete, 1)
    assert run.searcher.suggest("d") is not None


def test_a_worker_that_dies_is_a_lost_trial_and_is_launched_again(
    request_for: Requests, here: Surroundings, complete: Callable[[Proposal], TrialOutcome]
) -> None:
    run = Run(request_for(trials=1), here)
    run.searcher.suggest("a")

    run.searcher.on_trial_complete("a", error=True)

    assert run.ended[-1].state is TrialState.LOST
    assert run.study.launched() == 0
    assert run.searcher.suggest("b") is not None


def lost(proposal: Proposal, host: str = "one", cause: str = "lost") -> TrialOutcome:
    """An end of the gang's own word that says nothing of the settings, or may not."""
    outcome = TrialOutcome(proposal.trial, TrialState.LOST, proposal.settings, hosts=[host], blamed_host=host)
    state = TrialState.LOST if cause in ("lost", "sick_node") else TrialState.INFEASIBLE
    return outcome.because(cause, state, f"{cause} on {host}", 1.5)


def test_different_points_that_are_lost_in_a_row_end_the_run_and_the_hosts_are_said(
    request_for: Requests, here: Surroundings
) -> None:
    run = Run(request_for(trials=20), here)
    launches = 0
    while run.searcher.problem is None:
        assert not finished(run.searcher.suggest(str(launches)))
        run.finish(str(launches), partial(lost, host=f"host-{launches % 2}"), launches)
        launches += 1
        assert launches < 20

    assert len({proposal.digest for proposal in run.launched}) == 3
    assert "3 different points in a row were lost (on host-0, host-1), the last one" in run.searcher.problem.message
    assert finished(run.searcher.suggest("end"))


def test_points_that_one_sick_node_took_do_not_end_the_run(request_for: Requests, here: Surroundings) -> None:
    run = Run(request_for(trials=20), here)
    for index in range(6):
        run.searcher.suggest(str(index))
        run.finish(str(index), partial(lost, cause="sick_node"), index)

    assert len({proposal.digest for proposal in run.launched}) >= 3
    assert run.searcher.problem is None


def test_one_point_that_is_always_lost_is_given_up_and_the_study_goes_on(
    request_for: Requests, here: Surroundings, complete: Callable[[Proposal], TrialOutcome]
) -> None:
    run = Run(request_for(trials=8), here)
    launches, bad = 0, ""
    while not finished(config := run.searcher.suggest(str(launches))):
        assert config is not None
        bad = bad or run.launched[0].digest
        is_bad = run.launched[launches].digest == bad
        run.finish(str(launches), lost if is_bad else complete, launches)
        launches += 1

    assert run.searcher.problem is None
    assert [proposal.digest for proposal in run.launched].count(bad) == 2
    assert run.study.launched() == 8
    aside = [outcome for outcome in run.study.outcomes() if outcome.state is TrialState.LOST]
    assert [outcome.runs_again for outcome in aside] == [True, False]
    assert aside[1].notes == [f"given up, no run of it was undisturbed (trials {aside[0].trial}, {aside[1].trial})"]


def test_a_program_that_always_talks_of_broken_hardware_does_not_end_the_study(
    request_for: Requests, here: Surroundings
) -> None:
    request = request_for(trials=6)
    run = Run(request, here, hosts=("one", "two"))
    launches = 0
    while not finished(config := run.searcher.suggest(str(launches))):
        assert config is not None
        host = next(host for host in ("one", "two") if host not in config["avoid_hosts"])
        run.finish(str(launches), partial(lost, host=host, cause="gpu_fault"), launches)
        launches += 1
        assert launches < 30

    assert run.searcher.problem is None
    states = [outcome.state for outcome in run.study.outcomes() if outcome.state.launched]
    assert (states.count(TrialState.INFEASIBLE), states.count(TrialState.LOST)) == (6, 6)


def test_a_failure_outside_the_gang_ends_the_run_with_its_traceback(request_for: Requests, here: Surroundings) -> None:
    run = Run(request_for(trials=20), here)
    run.searcher.suggest("a")

    run.searcher.on_trial_complete("a", {"failure": "Traceback ...\nClusterError: the trial folder cannot be seen"})

    assert run.searcher.problem is not None
    assert "Traceback" in run.searcher.problem.message
    assert run.ended[-1].reason == "ClusterError: the trial folder cannot be seen"
    assert finished(run.searcher.suggest("b"))


def test_nothing_is_launched_after_the_deadline(
    request_for: Requests, here: Surroundings, complete: Callable[[Proposal], TrialOutcome]
) -> None:
    now = [0.0]
    run = Run(request_for(trials=20), here, clock=lambda: now[0], stop_at_s=60.0)
    run.searcher.suggest("a")
    now[0] = 61.0
    run.finish("a", complete, 0)

    assert finished(run.searcher.suggest("b"))


def costing(gpu_s: float, complete: Callable[[Proposal], TrialOutcome]) -> Callable[[Proposal], TrialOutcome]:
    """Trials on two ranks that take half of it as wall time."""
    return lambda proposal: replace(complete(proposal), gpu_s=gpu_s, wall_s=gpu_s / 2, startup_s=gpu_s / 2)


def test_nothing_is_launched_that_the_budget_cannot_pay(
    request_for: Requests, here: Surroundings, complete: Callable[[Proposal], TrialOutcome]
) -> None:
    plan = ConfirmPlan(repeats=0)
    run = Run(request_for(trials=20, effort=Effort(budget_gpu_hours=0.0251, confirm=plan)), here)
    launches = 0
    while not finished(run.searcher.suggest(str(launches))):
        run.finish(str(launches), costing(36.0, complete), launches)
        launches += 1

    assert launches == 2
    assert run.study.account().spent_gpu_hours == pytest.approx(0.02)
    assert "the next trial needs about 0.01" in str(run.searcher.stopped)


def test_a_trial_that_runs_is_counted_before_another_is_launched(
    request_for: Requests, here: Surroundings, complete: Callable[[Proposal], TrialOutcome]
) -> None:
    effort = Effort(budget_gpu_hours=0.0251, confirm=ConfirmPlan(repeats=0))
    run = Run(request_for(trials=20, effort=effort), here)
    run.searcher.suggest("a")
    run.finish("a", costing(36.0, complete), 0)

    assert run.searcher.suggest("b") is not None
    assert run.searcher.suggest("c") is None  # not yet: "b" may turn out cheaper
    assert len(run.launched) == 2


def test_nothing_is_launched_that_the_allocation_would_cut_off(
    request_for: Requests,
    here: Surroundings,
    complete: Callable[[Proposal], TrialOutcome],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SLURM_JOB_END_TIME", "1000")
    now = [900.0]
    run = Run(request_for(trials=20, effort=Effort(confirm=ConfirmPlan(repeats=0))), here, clock=lambda: now[0])
    run.searcher.suggest("a")
    run.finish("a", costing(60.0, complete), 0)
    now[0] = 975.0

    assert finished(run.searcher.suggest("b"))
    assert run.searcher.stopped == "25 s of wall time are left; the next trial needs about 30 s"


def test_an_unknown_trial_changes_nothing(request_for: Requests, here: Surroundings) -> None:
    run = Run(request_for(), here)

    run.searcher.on_trial_complete("never-suggested", {"outcome": "{}"})

    assert run.ended == []


def test_tune_may_pickle_it(request_for: Requests, here: Surroundings) -> None:
    run = Run(request_for(), here)

    assert pickle.loads(pickle.dumps(run.searcher)) is not None


def test_a_trials_record_says_what_the_study_made_of_it(
    request_for: Requests, here: Surroundings, complete: Callable[[Proposal], TrialOutcome]
) -> None:
    request = request_for(trials=2)
    run = Run(request, here)

    def trained(loss: float) -> Callable[[Proposal], TrialOutcome]:
        return lambda proposal: replace(complete(proposal), losses=[loss] * 10, grad_norms=[1.0] * 10)

    records = []
    for index, loss in enumerate((6.0, 9.5)):
        run.searcher.suggest(str(index))
        judged = trained(loss)(run.launched[index])
        records.append(request.trial_folder(judged.trial) / "outcome.json")
        records[-1].write_text(json.dumps(judged.to_dict()))
        run.finish(str(index), trained(loss), index)

    assert [json.loads(record.read_text())["state"] for record in records] == ["COMPLETE", "INFEASIBLE"]
    for record, outcome in zip(records, run.study.outcomes()[-2:], strict=True):
        assert TrialOutcome.from_dict(json.loads(record.read_text())) == outcome

    # A driver that died between the two writes them when it comes back.
    settled = records[1].read_text()
    records[1].write_text("{}")
    Run(request, here)
    assert records[1].read_text() == settled
