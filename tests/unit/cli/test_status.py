"""What ``autotune status`` tells of a study: its account, its epochs."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.cli.main import main
from autotune.measure.outcome import TrialOutcome, TrialState
from autotune.measure.surroundings import Surroundings
from autotune.request import load_request
from autotune.search.study import Study

pytestmark = pytest.mark.service

BEFORE = Surroundings("stack-a", {"torch": "2.13.0", "megatron_core": "0.16.1"}, {"deepep": "absent", "hybridep": "-"})
AFTER = replace(BEFORE, fingerprint="stack-b", stack={**BEFORE.stack, "torch": "2.14.0"})


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A study with one trial before and two after its torch changed; each took 18 s on two ranks."""
    request = load_request("tiny-moe", "local", home=tmp_path, study="one", trials=5, budget_gpu_hours=0.04)
    request.folder.mkdir()
    (request.folder / "request.yaml").write_text(request.to_yaml())
    for surroundings, launches in ((BEFORE, 1), (AFTER, 2)):
        study = Study(request)
        study.enter(surroundings)
        for step_time_s in [1.0, 0.5][:launches]:
            proposal = study.next()
            assert proposal is not None
            study.tell(
                TrialOutcome(
                    proposal.trial, TrialState.COMPLETE, proposal.settings,
                    step_time_s=step_time_s, tokens_per_s_per_gpu=512 / step_time_s, peak_memory_bytes=2**20,
                    step_times_s=[step_time_s] * 10, steps_used=7, startup_s=18.0 - 10 * step_time_s,
                    wall_s=18.0, gpu_s=36.0,
                )
            )  # fmt: skip
    return tmp_path


def test_the_account_and_the_epochs_are_told(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "one", "--home", str(home)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("one: unfinished, 2 of 5 trials launched")
    assert "GPU-hours: 0.03 of 0.04 spent" in lines
    assert any(line.startswith("next trial: about 0.01") for line in lines)
    assert any(line.startswith("no further trial: the budget has") for line in lines)
    assert any(line.startswith("epoch 2: torch 2.13.0 -> 2.14.0; ") for line in lines)


def test_scripts_get_the_same(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "one", "--home", str(home), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["account"]["spent_gpu_hours"] == pytest.approx(0.03)
    assert document["account"]["budget_gpu_hours"] == 0.04
    assert [epoch["fingerprint"] for epoch in document["epochs"]] == ["stack-a", "stack-b"]
    assert document["counts"]["COMPLETE"] == 2


def test_causes_come_with_advice_and_a_study_ends_with_its_confirmation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    request = load_request("tiny-moe", "local", home=tmp_path, study="one", trials=2, confirm=2)
    request.folder.mkdir()
    (request.folder / "request.yaml").write_text(request.to_yaml())
    study = Study(request)
    study.enter(BEFORE)
    for failed in (False, True):
        proposal = study.next()
        assert proposal is not None
        outcome = TrialOutcome(
            proposal.trial, TrialState.COMPLETE, proposal.settings, step_time_s=1.0, tokens_per_s_per_gpu=512.0,
            peak_memory_bytes=2**20, step_times_s=[1.0] * 10, steps_used=7, notes=["node one is slow"],
        )  # fmt: skip
        study.tell(outcome.because("hang", TrialState.INFEASIBLE, "hang: rank 0", 1.5) if failed else outcome)
    ended = study.outcomes()
    assert [outcome.cause for outcome in ended if outcome.state.launched] == ["", "hang"]

    assert main(["status", "one", "--home", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("one: unfinished, 2 of 2 trials launched")
    assert lines[1] == "finalists are still to be run again"
    assert any(line.strip().startswith("hang: see stacks.txt") for line in lines)
    assert sum("node one is slow" in line for line in lines) == 2

    assert main(["status", "one", "--home", str(tmp_path), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["state"] == "unfinished"
    assert [(entry["cause"], len(entry["trials"])) for entry in document["causes"]][-1] == ("hang", 1)
