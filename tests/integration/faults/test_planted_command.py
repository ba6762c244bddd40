"""The planted faults in trials of a command, whose ranks are known by what they print alone."""

import importlib.metadata
import os
import shlex
import sys
import time
import uuid
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.measure.outcome import TrialState
from autotune.measure.settle import Reference, against_baseline
from autotune.request import load_request
from autotune.scheduling.local_gang import LocalGang
from autotune_trials.spec import Contract
from tests.support.faults import IMPORTS, MARKER_VARIABLE, run_to_nothing_left, throttled_nvml

pytestmark = [pytest.mark.service, pytest.mark.trial]

SUPPORT = Path(__file__).parents[2] / "support"
RELEASE = ".".join(importlib.metadata.version("megatron-core").split(".")[:2])
STALL_S = 4.0
DEEPEP = {"dispatcher": "deepep", "num_sms": 20}


@pytest.fixture
def run(tmp_path, monkeypatch):
    """``run("segfault@1:3")``: rank 1 dies in step 3; gives the outcome, and checks that nothing is left of it."""
    marker = uuid.uuid4().hex
    libraries = tmp_path / "libraries"
    (libraries / "deep_ep").mkdir(parents=True)
    monkeypatch.setenv("STAND_IN_RELEASE", RELEASE)
    monkeypatch.setenv("PYTHONPATH", f"{SUPPORT}{os.pathsep}{libraries}")
    numbers = iter(range(100))

    def run_planted(behaviour, *, nvml=None, stall_s=60.0, **settings):
        imports = IMPORTS | {"missing_package": "raise ModuleNotFoundError(\"No module named 'deep_ep'\")"}
        (libraries / "deep_ep" / "__init__.py").write_text(imports.get(behaviour.partition("@")[0], "") + "\n")
        words = [sys.executable, str(SUPPORT / "stand_in_launcher.py"), "--train-iters", "{steps}", "--seq-length",
                 "{seq_length}", "--global-batch-size", "{global_batch_size}", "--behaviour", behaviour,
                 "{arguments}"]  # fmt: skip
        request = load_request("tiny-moe", "local", trial="command", command=shlex.join(words), home=tmp_path)
        number = next(numbers)
        spec = request.spec(number, {**request.space.baseline, **settings})
        spec = replace(spec, stall_s=stall_s, env={**spec.env, MARKER_VARIABLE: marker})
        folder = tmp_path / "trials" / f"{number:04d}"
        gang = LocalGang(tmp_path / "gang" / f"{number}", nvml=nvml)
        return run_to_nothing_left(gang, spec, folder, marker), folder

    return run_planted


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize(
    ("fault", "state", "cause", "words"),
    [
        ("missing_package", TrialState.UNAVAILABLE, "missing_package", "No module named 'deep_ep'"),
        ("abi_error", TrialState.UNAVAILABLE, "abi_mismatch", "undefined symbol"),
        ("import_segfault", TrialState.UNAVAILABLE, "import_crash", "SIGSEGV"),
        ("segfault:1", TrialState.INFEASIBLE, "crash", "SIGSEGV"),
        ("segfault:10", TrialState.INFEASIBLE, "crash", "SIGSEGV"),
        ("out_of_memory:2", TrialState.INFEASIBLE, "device_memory", "CUDA out of memory"),
    ],
)
def test_a_fault_of_a_command_is_called_by_its_name(run, fault, rank, state, cause, words):
    name, _, step = fault.partition(":")
    outcome, _ = run(f"{name}@{rank}:{step}", **DEEPEP)
    assert (outcome.state, outcome.cause) == (state, cause), outcome.reason
    assert words in outcome.reason
    assert f"rank {rank}" in outcome.reason
    assert outcome.tokens_per_s_per_gpu is None


@pytest.mark.parametrize(
    ("behaviour", "state", "cause"),
    [
        ("lie", TrialState.FALLBACK, "built_differently"),
        ("nan@1:1", TrialState.INFEASIBLE, "not_a_number"),
        ("nan@1:10", TrialState.INFEASIBLE, "not_a_number"),
    ],
)
def test_what_only_one_rank_tells_counts_for_all(run, behaviour, state, cause):
    outcome, _ = run(behaviour, dispatcher="allgather")
    assert (outcome.state, outcome.cause) == (state, cause), outcome.reason
    assert outcome.tokens_per_s_per_gpu is None


@pytest.mark.parametrize("behaviour", ["hang@0:5", "hang@1:1", "hang@1:10", "import_hang"])
def test_a_command_that_hangs_ends_in_time_and_shows_its_processes(run, behaviour):
    began_s = time.monotonic()
    outcome, folder = run(behaviour, stall_s=STALL_S, **DEEPEP)
    assert time.monotonic() - began_s < STALL_S + 5.0 + 3.0, "three seconds to start in"
    named = (TrialState.UNAVAILABLE, "import_hang") if behaviour == "import_hang" else (TrialState.INFEASIBLE, "hang")
    assert (outcome.state, outcome.cause) == named, outcome.reason
    stacks = (folder / "stacks.txt").read_text()
    where = "deep_ep/__init__.py" if behaviour == "import_hang" else "in wait_for_ever"
    assert where in stacks
    assert where.removeprefix("in ") in outcome.reason
    if behaviour == "hang@0:5":  # the rank that tells the steps had told them all
        assert "rank 0 silent (it tells no steps), rank 1 was further on" in outcome.reason


def test_a_command_whose_loss_is_corrupted_is_out_of_parity(run):
    baseline, _ = run("honest")
    wrong, _ = run("corrupted_loss", dispatcher="allgather")
    assert (baseline.state, wrong.state) == (TrialState.COMPLETE, TrialState.COMPLETE), (baseline.reason, wrong.reason)
    contract = Contract(seq_length=128, global_batch_size=8, precision="bf16")
    judged = against_baseline(wrong, [baseline, wrong], Reference(baseline.settings, contract, "command", "cpu"))
    assert (judged.state, judged.cause) == (TrialState.INFEASIBLE, "out_of_parity")


def test_a_command_on_a_throttled_node_runs_again(run):
    outcome, _ = run("honest", nvml=throttled_nvml(1.0))
    assert (outcome.state, outcome.cause, outcome.retry) == (TrialState.CONTAMINATED, "disturbed", "again")
