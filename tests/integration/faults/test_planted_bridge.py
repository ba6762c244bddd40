"""The planted faults in trials of a recipe: real training on the CPU, with a stand-in for Megatron-Bridge's loop."""

import importlib.util
import json
import time
import uuid
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.measure.outcome import TrialState
from autotune.request import load_request
from autotune.scheduling.local_gang import LocalGang
from tests.support.faults import MARKER_VARIABLE, run_to_nothing_left, write_recipe_model

pytestmark = [
    pytest.mark.service,
    pytest.mark.trial,
    pytest.mark.skipif(
        any(importlib.util.find_spec(name) is None for name in ("torch", "megatron")),
        reason="torch and megatron-core not installed (extra: trial)",
    ),
]

SUPPORT = Path(__file__).parents[2] / "support"
STALL_S = 20.0


@pytest.fixture
def run(tmp_path, monkeypatch):
    """``run("hang@1:4")``: rank 1 hangs in step 4; gives the outcome, and checks that nothing is left of it."""
    monkeypatch.setenv("PYTHONPATH", str(SUPPORT))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    model = tmp_path / "tiny-recipe.yaml"
    write_recipe_model(model)
    marker = uuid.uuid4().hex

    def run_planted(fault, stall_s=60.0):
        request = load_request(str(model), "local", trial="bridge", override=[f"fail={fault}"], home=tmp_path)
        spec = request.spec(0, request.space.baseline)
        spec = replace(spec, stall_s=stall_s, env={**spec.env, MARKER_VARIABLE: marker})
        outcome = run_to_nothing_left(LocalGang(tmp_path / "gang"), spec, tmp_path, marker)
        assert outcome.tokens_per_s_per_gpu is None
        return outcome

    return run_planted


@pytest.mark.parametrize(
    ("fault", "state", "cause", "words"),
    [
        ("oom@0:2", TrialState.INFEASIBLE, "device_memory", "rank 0"),
        ("segfault@1:1", TrialState.INFEASIBLE, "crash", "crashed by SIGSEGV (rank 1"),
        ("nan@1:4", TrialState.INFEASIBLE, "not_a_number", "nan"),
    ],
)
def test_a_fault_of_a_recipe_is_called_by_its_name(run, fault, state, cause, words):
    outcome = run(fault)
    assert (outcome.state, outcome.cause) == (state, cause), outcome.reason
    assert words in outcome.reason


def test_a_recipe_that_hangs_ends_in_time_and_shows_where(run, tmp_path):
    outcome = run("hang@0:3", stall_s=STALL_S)
    events = (tmp_path / "gang" / "node-0" / "rank-0.events.jsonl").read_text(encoding="utf-8").splitlines()
    assert time.time() - json.loads(events[-1])["time_s"] < STALL_S + 5.0
    assert (outcome.state, outcome.cause) == (TrialState.INFEASIBLE, "hang"), outcome.reason
    assert "in wait_for_ever" in (tmp_path / "stacks.txt").read_text()
