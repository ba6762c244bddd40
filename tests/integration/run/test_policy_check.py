"""``policy check --measure`` for real: Ray, gangs of Megatron-Core training, runs that take turns on the same nodes."""

import json
from pathlib import Path

import pytest

from autotune.export.policy import write_policy
from autotune_policies.policy import load_policy

from .conftest import Command

pytestmark = [pytest.mark.service, pytest.mark.trial, pytest.mark.head]

POLICY = Path(__file__).parents[2] / "golden" / "export" / "policy.yaml"


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    """A policy of two ranks and a few steps, recorded on a stack that nobody has."""
    found = load_policy(POLICY)
    described = found.evidence["contract"]
    small = {
        **described,
        "contract": {**described["contract"], "steps": 4, "warmup_steps": 2},
        "gang": {**described["gang"], "ranks_per_node": 2},
    }
    path = tmp_path / "policy.yaml"
    write_policy(path, found._replace(evidence={**found.evidence, "contract": small}))
    return path


def test_the_policy_and_its_runner_up_take_turns(own_command: Command, policy: Path) -> None:
    run = own_command.run("policy", "check", str(policy), "--measure", "--repeats", "1", "--json")
    assert run.stdout.count("\n") == 1, run.stderr
    document = json.loads(run.stdout)
    assert run.returncode == {"OK": 0, "DRIFT": 1}[document["verdict"]], run.stderr
    assert [item["run"] for item in document["runs"]] == ["policy", "runner_up", "runner_up", "policy"]
    assert {item["state"] for item in document["runs"]} == {"COMPLETE"}
    assert document["new_epoch"], "the recorded stack is made up, so only the order counts"
    assert document["recorded"] is None
    assert document["runner_up"]["coverage"] == 0.5
    assert "torch" in document["changed_stack"] or "another stack" in document["notes"][0]

    folders = sorted(Path(document["folder"]).glob("trials/*"))
    assert [folder.name for folder in folders] == ["0000", "0001", "0002", "0003"]
    recorded = [json.loads((folder / "spec.json").read_text(encoding="utf-8")) for folder in folders]
    assert recorded[0]["settings"] == recorded[3]["settings"] == load_policy(policy).settings
    assert recorded[1]["settings"] == recorded[2]["settings"] == load_policy(policy).alternatives[0]["settings"]
    assert {spec["contract"]["steps"] for spec in recorded} == {4}
    assert "Traceback" not in run.stderr
    assert own_command.wait_until_gone(60) == []
