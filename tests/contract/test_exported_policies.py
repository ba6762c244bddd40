"""Policies that were blessed: measured, with the record that they were chosen from."""

from pathlib import Path

import pytest
import yaml

from autotune.export.measurements import setting_column
from autotune.predict.table import read_table
from autotune_policies.policy import load_policy

FOLDER = Path(__file__).parents[2] / "policies" / "exported"
RECORDS = sorted(path for path in FOLDER.iterdir() if path.is_dir())


def test_there_is_one() -> None:
    assert "tiny-moe-local" in [path.name for path in RECORDS]


@pytest.mark.parametrize("folder", RECORDS, ids=lambda path: path.name)
def test_a_policy_stands_with_its_record(folder: Path) -> None:
    assert sorted(path.name for path in folder.iterdir()) == ["measurements.tsv", "policy.yaml", "request.yaml"]
    policy = load_policy(folder / "policy.yaml")
    assert policy.evidence["kind"] == "measured"
    assert folder.name == f"{policy.applies_to['model']}-{policy.applies_to['cluster']}"

    described = yaml.safe_load((folder / "request.yaml").read_text(encoding="utf-8"))
    assert {part: described[part] for part in ("model", "contract", "gang")} == policy.evidence["contract"]

    rows = {row.cells["source"]: row for row in read_table(folder / "measurements.tsv").rows}
    [own] = [row for source, row in rows.items() if source.endswith(f"/{policy.evidence['trial']:04d}")]
    assert own.cells["state"] == "COMPLETE"
    assert own.measured["step_time_s"] == policy.evidence["step_time_s"]["median"]
    assert own.measured["peak_memory_bytes"] == policy.evidence["peak_memory_bytes"]
    for name, value in policy.settings.items():
        if isinstance(value, str | int) and not isinstance(value, bool):
            assert own.cells[setting_column(name)] == str(value)
    fastest = max(row.measured.get("tokens_per_s_per_gpu", 0.0) for row in rows.values())
    assert own.measured["tokens_per_s_per_gpu"] == fastest, "the study's own choice: throughput"
    states = [row.cells["state"] for row in rows.values()]
    assert {state: states.count(state) for state in set(states)} == policy.evidence["trials"]
