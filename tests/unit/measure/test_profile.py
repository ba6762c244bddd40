"""Which trials are profiled, and what their records say."""

import json
from pathlib import Path
from typing import Any

import pytest

from autotune.measure.outcome import TrialOutcome, TrialState
from autotune.measure.profile import (
    is_made,
    is_profiled,
    profile_folder,
    profile_gpu_s,
    profiles_of,
    sentences,
    write_profiles,
)
from autotune.request import TuneRequest, load_request, stored_request
from autotune_policies.settings import resolve
from autotune_trials.spec import SpecError, TrialSpec, spec_from

SECONDS = {
    "step_time_s": 2.0, "experts_s": 0.5, "permute_s": 0.1, "optimizer_s": 0.0, "other_s": 0.2,
    "exposed_dispatch_s": 0.6, "exposed_combine_s": 0.3, "exposed_other_communication_s": 0.0,
    "dispatch_s": 0.8, "combine_s": 0.3, "host_s": 0.3,
}  # fmt: skip
BASELINE, WINNER = (TrialOutcome(trial, TrialState.COMPLETE, resolve({})) for trial in (0, 3))


@pytest.fixture
def asked(tmp_path: Path) -> TuneRequest:
    return load_request("tiny-moe", "local", home=tmp_path, profile=True)


def made(request: TuneRequest, trial: int, state: TrialState = TrialState.COMPLETE, *, shown: bool = True) -> Path:
    folder = profile_folder(request, "stack", trial)
    folder.mkdir(parents=True)
    outcome = TrialOutcome(
        trial, state, resolve({}), gpu_s=7.0,
        step_time_s=1.0, tokens_per_s_per_gpu=8.0, step_times_s=[1.0] * 4, steps_used=4,
    )  # fmt: skip
    (folder / "outcome.json").write_text(json.dumps(outcome.to_dict()), encoding="utf-8")
    if shown:
        (folder / "profile.json").write_text(json.dumps({"rank": 0, **SECONDS}), encoding="utf-8")
    return folder


@pytest.mark.parametrize(
    ("model", "cluster", "profile", "wanted"),
    [
        ("tiny-moe", "local", None, False),
        ("tiny-moe", "local", True, True),
        ("qwen3-30b", "h100", None, True),
        ("qwen3-30b", "h100", False, False),
    ],
)
def test_gpus_are_profiled_and_a_cpu_only_when_asked(
    tmp_path: Path, model: str, cluster: str, profile: bool | None, wanted: bool
) -> None:
    request = load_request(model, cluster, trial="native", home=tmp_path, profile=profile)

    assert is_profiled(request) is wanted
    assert "profile" not in request.identity()


def test_a_stored_study_remembers_what_was_asked_and_an_older_one_asked_nothing(asked: TuneRequest) -> None:
    asked.folder.mkdir(parents=True)
    text = asked.to_yaml()
    (asked.folder / "request.yaml").write_text(text, encoding="utf-8")
    assert stored_request(asked.study, asked.home).effort.profile is True

    (asked.folder / "request.yaml").write_text(text.replace("  profile: true\n", ""), encoding="utf-8")
    assert stored_request(asked.study, asked.home).effort.profile is None


def test_each_role_gets_what_its_trial_showed(asked: TuneRequest) -> None:
    made(asked, 0)
    made(asked, 3)

    found = profiles_of(asked, "stack", {"baseline": BASELINE, "winner": WINNER})
    write_profiles(asked, found)

    assert {role: shown["trial"] for role, shown in found.items()} == {"baseline": 0, "winner": 3}
    for role, shown in found.items():
        assert shown["experts_s"] == 0.5
        assert "slows steps" in shown["note"]
        assert json.loads((asked.folder / "profile" / f"{role}.json").read_text(encoding="utf-8")) == shown
    assert profile_gpu_s(asked) == 14.0
    assert profiles_of(asked, "another stack", {"winner": WINNER}) == {}


def test_a_file_of_an_earlier_winner_does_not_stay(asked: TuneRequest) -> None:
    made(asked, 3)
    write_profiles(asked, profiles_of(asked, "stack", {"winner": WINNER}))
    write_profiles(asked, {})

    assert not (asked.folder / "profile" / "winner.json").exists()


@pytest.mark.parametrize(
    ("state", "shown", "done", "told"),
    [
        (TrialState.COMPLETE, True, True, True),
        (TrialState.CONTAMINATED, True, True, True),  # the profiler itself may have disturbed it
        (TrialState.FALLBACK, True, True, False),
        (TrialState.INFEASIBLE, False, True, False),
        (TrialState.LOST, False, False, False),
    ],
)
def test_what_failed_is_not_told_and_what_was_lost_is_made_again(
    asked: TuneRequest, state: TrialState, shown: bool, done: bool, told: bool
) -> None:
    folder = made(asked, 3, state, shown=shown)

    assert is_made(folder) is done
    assert bool(profiles_of(asked, "stack", {"winner": WINNER})) is told


def test_a_person_reads_shares_the_largest_first(asked: TuneRequest) -> None:
    made(asked, 3)
    (line,) = sentences(profiles_of(asked, "stack", {"winner": WINNER}))

    assert line == (
        "profile of winner (trial 0003, unscored: a profiler slows steps by up to 20 %): exposed dispatch 30%, "
        "experts 25%, host 15%, exposed combine 15%, other 10%, permute 5%"
    )


def specification(asked: TuneRequest, **changed: Any) -> dict[str, Any]:
    raw: dict[str, Any] = json.loads(asked.spec(0, asked.space.baseline).to_json())
    return {**raw, **changed}


def test_a_specification_of_before_is_one_without_a_profiler(asked: TuneRequest) -> None:
    raw = specification(asked)
    assert raw.pop("profile_steps") == 0

    assert TrialSpec.from_json(json.dumps(raw)) == asked.spec(0, asked.space.baseline)


@pytest.mark.parametrize("steps", [-1, 10_000])
def test_more_steps_than_there_are_cannot_be_profiled(asked: TuneRequest, steps: int) -> None:
    with pytest.raises(SpecError, match=rf"profile_steps={steps} must be from 0 to {asked.contract.steps}"):
        spec_from(specification(asked, profile_steps=steps))


def test_a_command_cannot_be_profiled(asked: TuneRequest, capsys: pytest.CaptureFixture[str]) -> None:
    from autotune.cli.main import main

    words = ["start", "--model", "tiny-moe", "--cluster", "local", "--home", str(asked.home), "--trial", "command"]
    status = main([*words, "--command", "echo {arguments}", "--profile", "--dry-run"])

    assert status == 2
    assert "--profile: a command trial cannot be profiled" in capsys.readouterr().err
