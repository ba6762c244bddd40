"""Trials of other people's programs, from the command line through Ray to a policy: a command, and a recipe."""

import importlib.metadata
import json
import re
import shlex
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autotune.measure.outcome import TrialOutcome, TrialState
from autotune.request import load_request
from autotune.scheduling.local_gang import LocalGang
from autotune_policies import load_policy
from tests.support.faults import write_recipe_model

from .conftest import ROOT, Command

pytestmark = [pytest.mark.service, pytest.mark.trial]

SUPPORT = ROOT / "tests" / "support"
LAUNCHER = SUPPORT / "stand_in_launcher.py"
RELEASE = ".".join(importlib.metadata.version("megatron-core").split(".")[:2])
Outcomes = Callable[[Path], dict[int, dict[str, Any]]]


def words(behaviour: str, *more: str) -> str:
    own = ["--train-iters", "{steps}", "--seq-length", "{seq_length}", "--global-batch-size", "{global_batch_size}"]
    return shlex.join([sys.executable, str(LAUNCHER), *own, "--behaviour", behaviour, "{arguments}", *more])


def run(tmp_path: Path, behaviour: str, stall_s: float = 60.0, per: str = "rank") -> TrialOutcome:
    """One trial of the stand-in launcher, without Ray."""
    from autotune.scheduling.trainable import execute

    request = load_request("tiny-moe", "local", trial="command", command=words(behaviour), home=tmp_path)
    spec = replace(request.spec(0, request.space.baseline), stall_s=stall_s)
    assert spec.command is not None
    return execute(LocalGang(tmp_path / "work"), replace(spec, command=replace(spec.command, per=per)), tmp_path)


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAND_IN_RELEASE", RELEASE)
    monkeypatch.setenv("PYTHONPATH", str(SUPPORT))


def test_a_study_of_commands_ranks_what_obeyed_and_catches_what_lied(own_command: Command, outcomes: Outcomes) -> None:
    finished = own_command.run(
        "start", "--model", "tiny-moe", "--cluster", "local", "--trials", "3", "--study", "commands", "--json",
        "--trial", "command", "--command", words("lie_about_allgather"),
    )  # fmt: skip

    assert finished.returncode == 0, finished.stderr
    launched = outcomes(own_command.home / "commands")
    assert len(launched) == 3
    assert launched[0]["state"] == "COMPLETE"
    assert launched[0]["step_time_s"] == pytest.approx(0.01)
    assert launched[0]["peak_memory_bytes"] == 2000 * 2**20
    assert launched[0]["resolved"]["proof"] == "argument dump"
    assert (launched[1]["state"], launched[1]["reason"]) == ("FALLBACK", "dispatcher asked allgather, built alltoall")
    policy = load_policy(json.loads(finished.stdout)["policy"])
    assert policy.settings["dispatcher"] == "alltoall"
    assert own_command.wait_until_gone(15) == []


@pytest.mark.slow
@pytest.mark.head
def test_going_back_to_an_earlier_stack_goes_on_with_its_epoch(
    own_command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = ("start", "--model", "tiny-moe", "--cluster", "local", "--study", "stacks", "--json", "--confirm", "0",
             "--trial", "command", "--command", words("honest"))  # fmt: skip
    first = json.loads(own_command.run(*asked, "--trials", "1").stdout)
    monkeypatch.setenv("AUTOTUNE_CONTAINER", "sha256:another")
    second = own_command.run(*asked, "--trials", "2")
    monkeypatch.delenv("AUTOTUNE_CONTAINER")
    again = own_command.run(*asked, "--trials", "1")

    assert re.search(r"a new epoch; nothing is compared .* container", second.stderr), second.stderr
    assert json.loads(second.stdout)["best"]["trial"] > 0
    assert "back on an earlier stack, whose epoch goes on" in again.stderr
    assert again.returncode == 0
    assert json.loads(again.stdout)["best"] == first["best"]


@pytest.mark.parametrize(
    ("behaviour", "state", "reason"),
    [
        ("silent", TrialState.FALLBACK, "nothing was read back"),
        ("die", TrialState.INFEASIBLE, "RuntimeError: an expert has left the building (rank 1, node 0, after step 3)"),
        ("out_of_memory", TrialState.INFEASIBLE, "out of device memory"),
        ("nan", TrialState.INFEASIBLE, "numerics: loss=nan at step 5"),
        ("exit_3", TrialState.INFEASIBLE, "the command exited with status 3 after 10 of 10 steps"),
        ("other_model", TrialState.INFEASIBLE, "num_layers is 1, not 4; hidden_size is 8, not 128"),
        ("short", TrialState.INFEASIBLE, "the command left with status 0 after 5 of 10 steps"),
    ],
)
def test_a_command_that_goes_wrong_is_never_ranked(
    tmp_path: Path, behaviour: str, state: TrialState, reason: str
) -> None:
    outcome = run(tmp_path, behaviour)

    assert outcome.state is state
    assert reason in outcome.reason


@pytest.mark.parametrize("per", ["rank", "node"])
def test_a_command_that_hangs_is_killed_in_time_and_shows_where_it_hung(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, per: str
) -> None:
    if per == "node":
        monkeypatch.setenv("STAND_IN_WORLD_SIZE", "1")
    outcome = run(tmp_path, "hang", stall_s=6.0, per=per)

    events = (tmp_path / "work" / "node-0" / "rank-1.events.jsonl").read_text(encoding="utf-8").splitlines()
    assert time.time() - json.loads(events[-1])["time_s"] < 6.0 + 5.0
    assert outcome.state is TrialState.INFEASIBLE
    assert "reported nothing for 6 s after step 3" in outcome.reason
    assert re.search(r"in wait_for_ever \(\S*stand_in_launcher\.py:\d+\)", outcome.reason)
    stacks = (tmp_path / "stacks.txt").read_text(encoding="utf-8")
    hung = 2 if per == "rank" else 1
    assert stacks.count("in wait_for_ever") == stacks.count("process ") == hung
    assert stacks.count("in supervise") == hung


def test_what_a_command_leaves_behind_ends_with_it(tmp_path: Path) -> None:
    outcome = run(tmp_path, "leave_behind")

    assert outcome.state is TrialState.COMPLETE, outcome.reason
    [left] = re.findall(r"left behind: (\d+)", (tmp_path / "node-0.log").read_text(encoding="utf-8"))
    assert not Path("/proc", left).exists()


def test_one_command_per_node_speaks_for_all_its_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAND_IN_WORLD_SIZE", "1")  # the launcher is its node's only process

    outcome = run(tmp_path, "honest", per="node")

    assert outcome.state is TrialState.COMPLETE, outcome.reason
    assert outcome.peak_memory_bytes == 2000 * 2**20


def test_a_command_outside_the_contract_is_rejected(tmp_path: Path) -> None:
    from autotune.scheduling.trainable import execute

    command = words("honest", "--moe-router-force-load-balancing")
    request = load_request("tiny-moe", "local", trial="command", home=tmp_path, command=command)
    outcome = execute(LocalGang(tmp_path / "work"), request.spec(0, request.space.baseline), tmp_path)

    assert outcome.state is TrialState.INFEASIBLE
    assert "moe_router_force_load_balancing is True, not False" in outcome.reason


@pytest.fixture
def recipe_model(tmp_path: Path) -> Path:
    """The tiny model's file with a recipe and a loop of its own."""
    file = tmp_path / "tiny-recipe.yaml"
    write_recipe_model(file)
    return file


def test_a_study_of_a_recipe_ranks_what_was_built_and_catches_a_fallback(
    own_command: Command, outcomes: Outcomes, recipe_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finished = own_command.run(
        "start", "--model", str(recipe_model), "--cluster", "local", "--trials", "2", "--study", "recipes", "--json",
        "--confirm", "0", "--trial", "bridge", "--override", "fail=fallback", "--profile",
    )  # fmt: skip

    assert finished.returncode == 0, finished.stderr
    folder = own_command.home / "recipes"
    launched = outcomes(folder)
    first = launched[0]
    assert first["state"] == "COMPLETE", first["reason"]
    assert first["resolved"]["dispatcher_class"] == "MoEAlltoAllTokenDispatcher"
    assert first["resolved"]["settings"] == first["settings"]
    assert (folder / "trials" / "0000" / "ConfigContainer.yaml").exists()
    assert (launched[1]["state"], launched[1]["reason"]) == ("FALLBACK", "dispatcher asked allgather, built alltoall")
    profile = json.loads((folder / "profile" / "winner.json").read_text(encoding="utf-8"))
    assert profile["steps"] == 3
    assert min(profile[name] for name in ("exposed_dispatch_s", "experts_s", "optimizer_s", "host_s")) > 0.0


def test_a_recipe_whose_modules_are_missing_is_refused_before_any_trial(
    own_command: Command, recipe_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONPATH")
    text = recipe_model.read_text(encoding="utf-8").replace("stand_in_recipe:tiny", "no_such_recipes:tiny")
    recipe_model.write_text(text, encoding="utf-8")

    finished = own_command.run("start", "--model", str(recipe_model), "--cluster", "local", "--trial", "bridge")

    assert finished.returncode == 2
    assert (
        "error: the recipe cannot run here: no_such_recipes cannot be imported: ModuleNotFoundError" in finished.stderr
    )
    assert "Traceback" not in finished.stderr
