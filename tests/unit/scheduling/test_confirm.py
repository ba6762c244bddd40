"""On which nodes finalists are run again."""

from pathlib import Path
from typing import Any

import pytest

from autotune.measure.outcome import TrialOutcome, TrialState
from autotune.request import TuneRequest, load_request
from autotune.scheduling.environment import prepare
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

    nodes = [{"NodeID": node, "NodeManagerHostname": host, "Alive": True} for node, host in HOSTS.items()]
    monkeypatch.setattr(trainable.ray, "nodes", lambda: nodes)

    def kept_off(*hosts: str) -> list[str]:
        finalist = TrialOutcome(0, TrialState.COMPLETE, resolve({}), hosts=list(hosts))
        config = _config(asked.spec(0, asked.space.baseline), asked.folder / "confirm" / "a" / "0000", [finalist])
        return trainable._kept_off(config, 1)

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
