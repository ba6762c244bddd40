"""What a recipe pays for a policy: importing the reader, reading a file and applying it, on top of ``import yaml``."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import autotune_policies

pytestmark = pytest.mark.bench

FOLDER = Path(autotune_policies.__file__).parents[1]
EXAMPLE = Path(__file__).parents[1] / "unit" / "policies" / "example.yaml"
RUNS = 15
MOST_S = 0.020

PROGRAM = """
import json, sys, time
sys.path.insert(0, sys.argv[1])
class Config:
    pass
config = Config()
for name in json.loads(sys.argv[3]):
    setattr(config, name, None)
clock = time.process_time
moments = [clock()]
import yaml
moments.append(clock())
import autotune_policies
moments.append(clock())
policy = autotune_policies.load_policy(sys.argv[2])
moments.append(clock())
policy.apply(config, model="example-moe", cluster="example-cluster", num_gpus=32, precision="bf16", seq_length=4096,
             global_batch_size=256, stack={"megatron_core": "0.19.2", "torch": "2.8.0", "deep_ep": "1.2.1"})
moments.append(clock())
print(json.dumps([after - before for before, after in zip(moments, moments[1:])]))
"""


def test_a_policy_costs_little_on_top_of_yaml(capsys: pytest.CaptureFixture[str]) -> None:
    from autotune_policies.megatron_core import render

    names = json.dumps(list(render(autotune_policies.load_policy(EXAMPLE).settings, "0.19").transformer))
    command = [sys.executable, "-c", PROGRAM, str(FOLDER), str(EXAMPLE), names]
    rows = [json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout) for _ in range(RUNS)]
    # Processor time of the quickest run: what else the machine does is not the reader's cost.
    yaml_s, import_s, load_s, apply_s = min(rows, key=lambda row: sum(row[1:]))
    total_s = import_s + load_s + apply_s
    with capsys.disabled():
        print(f"\nimport yaml {yaml_s * 1e3:.1f} ms; on top of it: import {import_s * 1e3:.1f} ms, "
              f"load {load_s * 1e3:.1f} ms, apply {apply_s * 1e3:.1f} ms, together {total_s * 1e3:.1f} ms")  # fmt: skip
        print(f"together / import yaml = {total_s / yaml_s:.2f}")
    assert total_s < MOST_S
