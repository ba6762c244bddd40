"""On which nodes finalists are run again."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autotune.errors import RunError
from autotune.measure.disturbance import Sick
from autotune.measure.outcome import TrialOutcome, TrialState
from autotune.request import TuneRequest, load_request
from autotune.scheduling.environment import prepare
from autotune.scheduling.quarantine import put_in_quarantine
from autotune_policies.settings import resolve
from autotune_trials.spec import TrialSpec

prepare()
pytestmark = pytest.mark.service

HOSTS = {"id-a": "one", "id-b": "two", "id-c": "three"}


@pytest.fixture
def asked(tmp_path: Path) -> TuneRequest:
    return load_request("tiny-moe", "local", home=tmp_path)


def test_other_nodes_are_taken_where_there_are_enough(asked: TuneRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    from autotune.scheduling import trainable
    from autotune.scheduling.confirm import _config

    share = {"Alive": True, "Resources": {"rank": 8.0}}
    nodes = [{"NodeID": node, "NodeManagerHostname": host, **share} for node, host in HOSTS.items()]
    monkeypatch.setattr(trainable.ray, "nodes", lambda: nodes)

    def kept_off(*hosts: str) -> list[str]:
        finalist = TrialOutcome(0, TrialState.COMPLETE, resolve({}), hosts=list(hosts))
        spec = asked.spec(0, asked.space.baseline)
        config = _config(spec, asked.folder / "confirm" / "a" / "0000", [finalist])
        return trainable._kept_off(config, spec)

    assert kept_off("two") == ["id-b"]
    assert kept_off("one", "two", "three") == []  # none is left, so wherever there is room


def test_a_longer_run_gets_more_time_and_is_the_trial_otherwise(asked: TuneRequest) -> None:
    from autotune.measure.confirmation import NextRun
    from autotune.scheduling.confirm import _spec

    settings = asked.settings(asked.space.baseline)
    trial, again = asked.spec(3, settings), _spec(asked, settings, NextRun(index=1, trial=3, steps=30))
    assert again.contract.steps == 3 * trial.contract.steps
    assert again.deadline_s == 3 * trial.deadline_s
    assert (again.settings, again.env, again.trial) == (trial.settings, trial.env, trial.trial)


@pytest.mark.parametrize(
    ("ends", "made"),
    [
        (["COMPLETE"], 1),
        (["LOST", "CONTAMINATED", "COMPLETE"], 3),
        (["crash", "COMPLETE"], 2),
        (["crash", "crash"], 2),
        (["INFEASIBLE"], 1),
    ],
)
def test_what_says_nothing_of_the_settings_runs_again(
    asked: TuneRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: list[str], made: int
) -> None:
    from autotune.scheduling import remeasure

    seen = []

    def execute(gang: object, spec: TrialSpec, folder: Path) -> TrialOutcome:
        end = ends[len(seen)]
        crash = end == "crash"
        state = TrialState.INFEASIBLE if crash else TrialState(end)
        seen.append(TrialOutcome(spec.trial, state, spec.settings, retry="elsewhere" if crash else "never"))
        return seen[-1]

    monkeypatch.setattr(remeasure, "execute", execute)
    spec = asked.spec(0, asked.space.baseline)
    group: Any = None
    assert remeasure.measure_again(spec, tmp_path / "00", "a", group) == seen[-1]
    assert len(seen) == made


def test_no_gpu_second_of_a_confirming_run_that_ended_is_missing_or_counted_twice(
    asked: TuneRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second run is lost twice and disturbed once in one session, lost once more in the next, and then complete."""
    from autotune.measure.confirmation import confirmation_gpu_s, recorded_runs
    from autotune.scheduling import remeasure

    confirming = Confirming(asked, monkeypatch)
    ends = iter(["COMPLETE", "LOST", "CONTAMINATED", "LOST", "LOST"])
    spent: list[float] = []

    def execute(gang: object, spec: TrialSpec, folder: Path) -> TrialOutcome:
        spent.append(2.0 ** len(spent))
        (folder / "steps.jsonl").write_text(f"run {len(spent)}")
        outcome = replace(confirming.ran(spec), gpu_s=spent[-1], state=TrialState(next(ends, "COMPLETE")))
        (folder / "outcome.json").write_text(json.dumps(outcome.to_dict()))
        return outcome

    monkeypatch.setattr(remeasure, "execute", execute)
    with pytest.raises(RunError, match="was LOST 3 times"):
        confirming()
    assert confirmation_gpu_s(asked) == sum(spent) == 15.0
    assert confirming() is None
    assert confirmation_gpu_s(asked) == sum(spent)
    assert confirming() is None
    assert confirmation_gpu_s(asked) == sum(spent) == 255.0

    folder = next((asked.folder / "confirm").glob("*/*"))
    kept = {path.parent.name: path.read_text() for path in folder.glob("*/steps.jsonl")}
    assert {name: kept[name] for name in sorted(kept) if name.startswith("01")} == {
        "01": "run 6", "01.1": "run 2", "01.2": "run 3", "01.3": "run 4", "01.4": "run 5",
    }  # fmt: skip
    assert sorted(recorded_runs(folder)) == [0, 1, 2, 3]


class Confirming:
    """``confirm`` with runs that are computed, and what it did: the groups it opened, and what ran in each."""

    def __init__(self, request: TuneRequest, monkeypatch: pytest.MonkeyPatch) -> None:
        from autotune.scheduling import confirm, remeasure, trainable

        self.request = request
        self.groups: list[list[str]] = []
        self.ended: list[TrialOutcome] = []
        self.baseline = self.ran(request.spec(0, request.settings(request.space.baseline)))
        self.other = self.ran(request.spec(1, request.settings({**request.space.baseline, "dispatcher": "allgather"})))
        monkeypatch.setattr(remeasure, "execute", self.execute)
        monkeypatch.setattr(confirm, "shared_group", self.group)
        share = {"Alive": True, "Resources": {"rank": 8.0}}
        nodes = [{"NodeID": node, "NodeManagerHostname": host, **share} for node, host in HOSTS.items()]
        monkeypatch.setattr(trainable.ray, "nodes", lambda: nodes)
        request.folder.mkdir(parents=True)
        (request.folder / "request.yaml").write_text("")

    def ran(self, spec: TrialSpec, loss: float = 6.0, host: str = "one") -> TrialOutcome:
        steps = spec.contract.steps
        return TrialOutcome(
            spec.trial, TrialState.COMPLETE, spec.settings, step_time_s=1.0, tokens_per_s_per_gpu=8.0,
            peak_memory_bytes=1, losses=[loss] * steps, grad_norms=[1.0] * steps, step_times_s=[1.0] * steps,
            hosts=[host], steps_used=steps - spec.contract.warmup_steps,
        )  # fmt: skip

    def execute(self, gang: object, spec: TrialSpec, folder: Path) -> TrialOutcome:
        self.groups[-1].append(folder.name)
        return self.ran(spec)

    @contextmanager
    def group(self, wanted: Any) -> Iterator[None]:
        self.groups.append([])
        yield None

    def __call__(self) -> str | None:
        from autotune.scheduling.confirm import confirm

        return confirm(
            self.request, {0: self.baseline, 1: self.other}, "a",
            baseline=self.baseline, refusal=lambda steps: None, on_end=self.ended.append,
        )  # fmt: skip


def test_a_run_that_trained_to_other_numbers_is_out_and_its_record_says_so(
    asked: TuneRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    from autotune.scheduling import remeasure

    confirming = Confirming(asked, monkeypatch)
    monkeypatch.setattr(
        remeasure, "execute", lambda gang, spec, folder: confirming.ran(spec, 6.0 if spec.trial == 0 else 6.5)
    )
    assert confirming() is None

    wrong = [outcome for outcome in confirming.ended if outcome.trial == 1]
    assert [outcome.cause for outcome in wrong] == ["out_of_parity"], "it is not run again"
    records = [json.loads(path.read_text()) for path in confirming.request.folder.rglob("outcome.json")]
    assert [(record["trial"], record["state"]) for record in records] == [(1, "INFEASIBLE")]


def test_a_node_that_goes_into_quarantine_is_left_for_other_nodes(
    asked: TuneRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    confirming = Confirming(asked, monkeypatch)
    lost_once = []

    def execute(gang: object, spec: TrialSpec, folder: Path) -> TrialOutcome:
        outcome = Confirming.execute(confirming, gang, spec, folder)
        if folder.name == "01" and not lost_once:
            lost_once.append(folder)
            put_in_quarantine(asked.folder, [Sick("one", "Xid 79")], spec.trial)
            return outcome.because("sick_node", TrialState.LOST, "broken hardware")
        return replace(outcome, hosts=["two"] if lost_once else ["one"])

    from autotune.scheduling import remeasure

    monkeypatch.setattr(remeasure, "execute", execute)
    assert confirming() is None
    assert confirming.groups == [["00", "01"], ["01", "02", "03"]]
