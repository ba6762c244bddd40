"""The study: order of the first points, what is never launched, duplicates, resuming, refusing another request."""

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import optuna
import pytest

from autotune.errors import ClusterError, RequestError, StudyError
from autotune.measure.outcome import TrialOutcome, TrialState
from autotune.measure.surroundings import Surroundings
from autotune.request import TuneRequest
from autotune.search.epochs import difference
from autotune.search.proposal import Proposal, require_legal_baseline, require_runnable, violations
from autotune.search.storage import StudyLock, filesystem, open_storage
from autotune.search.study import Study
from autotune_trials.probe import MODULE_PREFIX
from autotune_trials.programs import RecipeSpec
from autotune_trials.spec import GangShape

Requests = Callable[..., TuneRequest]
Complete = Callable[[Proposal], TrialOutcome]


def run(study: Study, complete: Complete, launches: int) -> list[Proposal]:
    """Launch so many trials, each of which completes."""
    launched = []
    for _ in range(launches):
        proposal = study.next()
        assert proposal is not None
        study.tell(complete(proposal))
        launched.append(proposal)
    return launched


def states(study: Study) -> Counter[str]:
    return Counter(outcome.state.value for outcome in study.outcomes())


def optuna_trials(request: TuneRequest) -> list[optuna.trial.FrozenTrial]:
    return optuna.load_study(study_name=request.study, storage=open_storage(request.storage_url)).trials


def test_the_baseline_comes_first_then_one_start_per_dispatcher(
    request_for: Requests, here: Surroundings, complete: Complete
) -> None:
    study = Study(request_for())
    study.enter(here)

    launched = run(study, complete, 3)

    assert launched[0].point["dispatcher"] == "alltoall"
    assert launched[1].point["dispatcher"] == "allgather"
    unavailable = [outcome for outcome in study.outcomes() if outcome.state is TrialState.UNAVAILABLE]
    assert [outcome.reason for outcome in unavailable] == ["deepep: not installed", "hybridep: no GPU"]


def test_an_unavailable_backend_gets_one_trial_and_is_then_masked(
    request_for: Requests, here: Surroundings, complete: Complete
) -> None:
    study = Study(request_for())
    study.enter(here)

    launched = run(study, complete, 20)

    assert {str(proposal.point["dispatcher"]) for proposal in launched} <= {"alltoall", "allgather"}
    assert states(study)["UNAVAILABLE"] == 2


def test_nothing_illegal_and_nothing_twice_is_launched(
    request_for: Requests, here: Surroundings, complete: Complete
) -> None:
    request = request_for()
    study = Study(request)
    study.enter(here)

    launched = run(study, complete, 20)

    assert all(violations(request, proposal.settings, here.stack) == [] for proposal in launched)
    assert len({proposal.digest for proposal in launched}) == len(launched)
    assert states(study)["REFUSED"] > 0
    refused = next(outcome for outcome in study.outcomes() if outcome.state is TrialState.REFUSED)
    assert refused.violation > 0
    assert refused.reason


def test_every_end_reaches_the_sampler_as_it_should(
    request_for: Requests, here: Surroundings, complete: Complete
) -> None:
    request = request_for(memory_limit_bytes=150_000_000)
    study = Study(request)
    study.enter(here)
    first = study.next()
    assert first is not None
    study.tell(complete(first))
    second, third = study.next(), study.next()
    assert second is not None
    assert third is not None
    study.tell(
        TrialOutcome(second.trial, TrialState.INFEASIBLE, second.settings, reason="out of memory", violation=3.0)
    )
    over = replace(complete(third), peak_memory_bytes=150_000_000 + 2**31)
    study.tell(over)

    trials = optuna_trials(request)

    assert trials[first.trial].state is optuna.trial.TrialState.COMPLETE
    assert trials[first.trial].values == [1000.0, 100_000_000.0]
    assert trials[first.trial].constraints["violation"] < 0
    assert trials[second.trial].state is optuna.trial.TrialState.PRUNED
    assert trials[second.trial].constraints["violation"] == 3.0
    assert trials[third.trial].constraints["violation"] == pytest.approx(2.0)
    unavailable = [trial for trial in trials if trial.user_attrs.get("outcome", {}).get("state") == "UNAVAILABLE"]
    assert all(trial.state is optuna.trial.TrialState.PRUNED for trial in unavailable)
    assert all(trial.constraints["violation"] > 0 for trial in unavailable)


def test_a_lost_trial_runs_again_a_bounded_number_of_times(request_for: Requests, here: Surroundings) -> None:
    study = Study(request_for())
    study.enter(here)
    seen = []
    for _ in range(12):
        proposal = study.next()
        assert proposal is not None
        seen.append(proposal.digest)
        study.tell(TrialOutcome(proposal.trial, TrialState.LOST, proposal.settings, reason="node died"))

    assert Counter(Counter(seen).values())[2] >= 4
    assert max(Counter(seen).values()) == 2
    assert seen[0] == seen[1], "the baseline comes again before what is compared with it"
    assert study.launched() == sum(count == 2 for count in Counter(seen).values())

    second = Study(request_for())
    second.enter(here)
    assert second.launched() == study.launched()
    again = second.next()
    assert again is not None
    assert seen.count(again.digest) < 2, "what was given up is not proposed again"


def test_a_first_sighting_is_one_after_a_resume_too(
    request_for: Requests, here: Surroundings, complete: Complete
) -> None:
    request = request_for()
    first = Study(request)
    first.enter(here, ("one", "two"))
    run(first, complete, 1)
    crashed = first.next()
    assert crashed is not None
    folder = request.trial_folder(crashed.trial)
    folder.mkdir(parents=True)
    end = TrialOutcome(crashed.trial, TrialState.LOST, crashed.settings, hosts=["one"], blamed_host="one")
    end = end.because("crash", TrialState.INFEASIBLE, "crashed by SIGSEGV", 1.5)
    (folder / "outcome.json").write_text(json.dumps(end.to_dict()), encoding="utf-8")

    second = Study(request)
    second.enter(here, ("one", "two"))

    settled = second.outcomes()[crashed.trial]
    assert (settled.state, settled.runs_again) == (TrialState.LOST, True)
    assert settled.reason.startswith("seen for the first time, runs again on other nodes")
    again = second.next()
    while again is not None and again.digest != crashed.digest:
        second.tell(complete(again))
        again = second.next()
    assert again is not None
    second.tell(replace(end, trial=again.trial, hosts=["two"], blamed_host="two"))
    counted = next(outcome for outcome in second.outcomes() if outcome.trial == again.trial)
    assert (counted.state, counted.notes) == (TrialState.INFEASIBLE, [f"seen before in trial {crashed.trial} (one)"])


def test_what_the_sampler_and_the_front_learn_was_compared_with_the_baseline(
    request_for: Requests, here: Surroundings, complete: Complete
) -> None:
    """The baseline's end comes before any other trial, so no record of one has to be taken back."""
    request = request_for()
    study = Study(request)
    study.enter(here)
    baseline = study.next()
    assert baseline is not None
    assert study.next() is None
    study.tell(TrialOutcome(baseline.trial, TrialState.LOST, baseline.settings, reason="node died"))
    again = study.next()
    assert again is not None
    assert again.digest == baseline.digest
    study.tell(replace(complete(again), losses=[6.0] * 10, grad_norms=[1.0] * 10))
    wrong = study.next()
    assert wrong is not None
    study.tell(replace(complete(wrong), losses=[9.0] * 10, grad_norms=[1.0] * 10))

    assert study.outcomes()[-1].cause == "out_of_parity"
    recorded = optuna_trials(request)[wrong.trial]
    assert recorded.state is optuna.trial.TrialState.PRUNED
    assert recorded.constraints["violation"] > 0


def test_a_new_epoch_begins_with_the_baseline_whatever_was_still_queued(
    request_for: Requests, here: Surroundings, complete: Complete
) -> None:
    request = request_for()
    first = Study(request)
    first.enter(here)
    baseline = run(first, complete, 1)[0]  # the other starts are still queued

    second = Study(request)
    second.enter(replace(here, fingerprint="stack-b"))
    proposal = second.next()

    assert proposal is not None
    assert proposal.digest == baseline.digest


def test_telling_twice_changes_nothing(request_for: Requests, here: Surroundings, complete: Complete) -> None:
    study = Study(request_for())
    study.enter(here)
    proposal = study.next()
    assert proposal is not None
    study.tell(complete(proposal))

    study.tell(TrialOutcome(proposal.trial, TrialState.INFEASIBLE, proposal.settings, violation=1.0))

    assert study.outcomes()[proposal.trial].state is TrialState.COMPLETE


def test_a_new_driver_repeats_nothing_and_takes_up_what_was_running(
    request_for: Requests, here: Surroundings, complete: Complete
) -> None:
    request = request_for()
    first = Study(request)
    first.enter(here)
    done = {proposal.digest for proposal in run(first, complete, 4)}
    recorded, lost = first.next(), first.next()
    assert recorded is not None
    assert lost is not None
    folder = request.trial_folder(recorded.trial)
    folder.mkdir(parents=True)
    outcome = replace(complete(recorded), step_times_s=[1.0] * 7)
    (folder / "outcome.json").write_text(json.dumps(outcome.to_dict()), encoding="utf-8")

    second = Study(request)
    second.enter(here)
    again = second.next()

    assert again is not None
    assert again.digest == lost.digest
    assert second.launched() == 5
    later = run(second, complete, 6)
    assert not {proposal.digest for proposal in later} & (done | {recorded.digest})


def test_a_half_written_outcome_counts_as_not_finished(
    request_for: Requests, here: Surroundings, complete: Complete
) -> None:
    request = request_for()
    first = Study(request)
    first.enter(here)
    running = first.next()
    assert running is not None
    folder = request.trial_folder(running.trial)
    folder.mkdir(parents=True)
    (folder / "outcome.json").write_text('{"trial": 0, "state": "COMP', encoding="utf-8")

    second = Study(request)
    second.enter(here)

    assert running.digest in {proposal.digest for proposal in run(second, complete, 3)}


def test_a_changed_stack_opens_a_new_epoch(request_for: Requests, here: Surroundings, complete: Complete) -> None:
    request = request_for()
    first = Study(request)
    first.enter(here)
    baseline = run(first, complete, 3)[0]

    second = Study(request)
    second.enter(replace(here, fingerprint="stack-b", unavailable={}))
    launched = run(second, complete, 2)

    assert launched[0].digest == baseline.digest
    assert len(second.outcomes()) == 2
    assert second.launched() == 2


def test_the_sampler_learns_nothing_across_epochs(
    request_for: Requests, here: Surroundings, complete: Complete, tmp_path: Path
) -> None:
    changed = replace(here, fingerprint="stack-b")
    request = request_for()
    first = Study(request)
    first.enter(here)
    run(first, complete, 18)
    second = Study(request)
    second.enter(changed)
    fresh_request = request_for(home=tmp_path / "fresh")
    fresh_request.folder.mkdir(parents=True)
    fresh = Study(fresh_request)
    fresh.enter(changed)

    launched = [proposal.digest for proposal in run(second, complete, 6)]

    assert launched == [proposal.digest for proposal in run(fresh, complete, 6)]


def test_epochs_are_told_with_what_changed_and_the_account_holds_them_all(
    request_for: Requests, here: Surroundings, complete: Complete
) -> None:
    request = request_for()
    first = Study(request)
    first.enter(here)
    run(first, lambda proposal: replace(complete(proposal), gpu_s=36.0), 3)
    second = Study(request)
    second.enter(replace(here, fingerprint="stack-b", stack={**here.stack, "torch": "2.14.0"}))
    run(second, lambda proposal: replace(complete(proposal), gpu_s=36.0), 1)

    before, after = second.epochs()

    assert (before.fingerprint, after.fingerprint) == (here.fingerprint, "stack-b")
    assert before.counts["COMPLETE"] == 3
    assert after.counts == {"COMPLETE": 1}
    assert difference(before, after) == "torch 2.13.0 -> 2.14.0"
    assert second.account().spent_gpu_hours == pytest.approx(0.04)


def test_a_finished_study_can_be_read_without_entering(
    request_for: Requests, here: Surroundings, complete: Complete
) -> None:
    request = request_for()
    study = Study(request)
    study.enter(here)
    run(study, complete, 3)

    reader = Study(request)

    assert reader.outcomes() == study.outcomes()
    assert reader.surroundings == here


def test_another_request_under_the_same_name_names_the_field(request_for: Requests) -> None:
    request = request_for()
    Study(request)

    with pytest.raises(StudyError, match=r"holds contract\.seq_length=128, but this request has 256") as caught:
        Study(replace(request, contract=replace(request.contract, seq_length=256)))

    assert "--study" in str(caught.value.hint)


def test_a_study_from_before_a_field_of_the_shape_existed_is_opened_again(request_for: Requests) -> None:
    request = request_for()
    storage = optuna.load_study(study_name=request.study, storage=_stored(request))
    identity = storage.user_attrs["identity"]
    del identity["model"]["gated_linear_unit"]
    storage.set_user_attr("identity", identity)

    Study(request)


def _stored(request: TuneRequest) -> str:
    """The storage of a study that was opened once."""
    Study(request)
    return request.storage_url


def test_an_exhausted_space_ends_the_search(request_for: Requests, here: Surroundings, complete: Complete) -> None:
    request = request_for()
    parameters = tuple(
        replace(parameter, choices=parameter.choices[:2]) if parameter.name != "dispatcher" else parameter
        for parameter in request.space.parameters
        if parameter.name in ("dispatcher", "num_sms", "expert_parallel", "micro_batch_size")
    )
    small = replace(
        request.space, parameters=parameters, seeds=(),
        baseline={"dispatcher": "alltoall", "expert_parallel": 2, "micro_batch_size": 1},
    )  # fmt: skip
    study = Study(replace(request, space=small))
    study.enter(here)

    count = 0
    while (proposal := study.next()) is not None:
        study.tell(complete(proposal))
        count += 1
        assert count <= 8

    assert count == 2 * 2 * 2  # two available dispatchers, two values of each further parameter


def test_the_same_seed_proposes_the_same_points(
    request_for: Requests, here: Surroundings, complete: Complete, tmp_path: Path
) -> None:
    def proposals(home: str) -> list[str]:
        study = Study(request_for(home=tmp_path / home, storage=f"sqlite:///{tmp_path / home}.db"))
        study.enter(here)
        return [proposal.digest for proposal in run(study, complete, 8)]

    assert proposals("one") == proposals("two")


def test_a_second_driver_is_kept_out(tmp_path: Path) -> None:
    with StudyLock(tmp_path / "study"), pytest.raises(StudyError, match="already being run by process"):
        StudyLock(tmp_path / "study").__enter__()

    with StudyLock(tmp_path / "study"):
        pass


def test_a_network_file_system_is_refused_for_sqlite(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("autotune.search.storage.filesystem", lambda _: "nfs4")

    with pytest.raises(StudyError, match="is on nfs4") as caught:
        open_storage(f"sqlite:///{tmp_path}/study.db")

    assert "--storage" in str(caught.value.hint)


def test_the_file_system_of_a_path_is_found() -> None:
    assert filesystem(Path("/proc/self")) == "proc"


def test_a_storage_that_cannot_be_opened_is_one_line_without_the_password(tmp_path: Path) -> None:
    with pytest.raises(StudyError) as caught:
        open_storage("sqlite:////nowhere/at/all/study.db")

    assert "\n" not in caught.value.message

    with pytest.raises(StudyError) as caught:
        open_storage("postgresql://user:secret@localhost:1/db")

    assert "secret" not in caught.value.message


def test_a_point_that_is_known_is_answered_from_the_record(
    request_for: Requests, here: Surroundings, complete: Complete
) -> None:
    request = request_for()
    twice = replace(request, space=replace(request.space, seeds=(dict(request.space.baseline),)))
    study = Study(twice)
    study.enter(here)
    baseline, other = run(study, complete, 2)

    trials = optuna_trials(twice)
    answered = [trial for trial in trials if "duplicate_of" in trial.user_attrs]

    assert other.digest != baseline.digest
    assert [trial.user_attrs["duplicate_of"] for trial in answered] == [baseline.trial]
    assert answered[0].values == trials[baseline.trial].values
    assert len([outcome for outcome in study.outcomes() if outcome.state is TrialState.COMPLETE]) == 2


def test_a_baseline_that_was_lost_is_launched_first_again(
    request_for: Requests, here: Surroundings, complete: Complete
) -> None:
    request = request_for()
    first = Study(request)
    first.enter(here)
    baseline = first.next()
    assert baseline is not None

    second = Study(request)
    second.enter(here)
    launched = run(second, complete, 3)

    assert launched[0].digest == baseline.digest
    assert launched[1].point["dispatcher"] == "allgather"
    assert states(second)["UNAVAILABLE"] == 2


def test_a_reader_makes_no_study(request_for: Requests) -> None:
    request = request_for()

    with pytest.raises(StudyError, match=r"database .* is gone"):
        Study(request, create=False)

    assert not (request.folder / "study.db").exists()


def test_another_environment_of_the_ranks_is_another_study(request_for: Requests) -> None:
    request = request_for()
    Study(request)
    other = replace(request, cluster=request.cluster.model_copy(update={"env": {"OMP_NUM_THREADS": "2"}}))

    with pytest.raises(StudyError, match=r"holds env\.OMP_NUM_THREADS='1', but this request has '2'"):
        Study(other)


def test_a_baseline_that_cannot_run_is_refused(request_for: Requests) -> None:
    request = request_for()

    require_legal_baseline(request)
    with pytest.raises(RequestError, match="the baseline cannot run on 3 GPUs: MC002") as caught:
        require_legal_baseline(replace(request, gang=GangShape(1, 3, "cpu")))

    assert "--gpus" in str(caught.value.hint)


def test_a_folder_that_cannot_be_used_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(StudyError, match="cannot be used: Not a directory"):
        StudyLock(tmp_path / "file" / "study").__enter__()


def test_machines_that_can_run_no_trial_or_no_baseline_are_refused(request_for: Requests, here: Surroundings) -> None:
    request = request_for()
    require_runnable(request, here)
    with pytest.raises(ClusterError, match="the baseline's dispatcher alltoall cannot run here: no torch"):
        require_runnable(request, replace(here, unavailable={"alltoall": "no torch"}))
    recipe = replace(request, recipe=RecipeSpec("my_recipes:tiny"))
    with pytest.raises(ClusterError, match="the recipe cannot run here: my_recipes cannot be imported: not there"):
        require_runnable(recipe, replace(here, unavailable={f"{MODULE_PREFIX}my_recipes": "not there"}))
