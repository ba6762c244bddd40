"""A policy is checked against Megatron-Bridge's own recipes, through its own start-up, file and callback manager."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [
    pytest.mark.trial,
    pytest.mark.skipif(
        importlib.util.find_spec("megatron") is None or importlib.util.find_spec("megatron.bridge") is None,
        reason="needs megatron-bridge",
    ),
]

ROOT = Path(__file__).parents[3]
PROGRAM = Path(__file__).parent / "verify_recipes.py"


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folders = os.pathsep.join(map(str, (ROOT, ROOT / "trials", ROOT / "policies")))
    done = subprocess.run(
        [sys.executable, str(PROGRAM), str(tmp_path_factory.mktemp("bridge"))], capture_output=True, text=True,
        check=False, env={"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", ""), "PYTHONPATH": folders},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_a_recipe_has_no_difference_from_itself(report: dict[str, Any]) -> None:
    assert {name: row["as_built"] for name, row in report.items() if row["as_built"]} == {}


def test_after_applying_nothing_differs_and_before_it_much_did(report: dict[str, Any]) -> None:
    assert {name: row["applied"] for name, row in report.items() if row["applied"]} == {}
    assert all(row["before"] > 0 for row in report.values())


def test_bridges_own_start_up_changes_nothing_of_it(report: dict[str, Any]) -> None:
    assert {name: row["started"] for name, row in report.items() if row["started"]} == {}


def test_the_saved_container_says_the_same(report: dict[str, Any]) -> None:
    assert {name: row["saved"] for name, row in report.items() if row["saved"]} == {}
    assert all(row["checked"] > 60 for row in report.values())
    assert all(row["unread"] == [] for row in report.values())


def test_the_guard_lets_it_train_and_refuses_another(report: dict[str, Any]) -> None:
    for row in report.values():
        assert row["guard"] == ""
        assert "dispatcher is allgather, but the policy says alltoall" in row["refusal"]
        assert "recompute_modules is core_attn, but the policy says layernorm" in row["refusal"]
