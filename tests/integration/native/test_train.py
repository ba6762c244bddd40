"""A policy trained from its file, as a user does it."""

import importlib.metadata
import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from autotune_policies.policy import Policy, dump_policy
from autotune_policies.settings import resolve
from autotune_trials.checkout import import_path
from autotune_trials.spec import Contract, GangShape, ModelShape, Routing

MODEL = ModelShape(
    name="tiny", num_layers=2, hidden_size=32, num_attention_heads=2, vocab_size=128, ffn_hidden_size=64,
    num_experts=4, moe_ffn_hidden_size=32,
)  # fmt: skip
CONTRACT = Contract(seq_length=16, global_batch_size=4, precision="bf16", routing=Routing(source="natural"))
GANG = GangShape(num_nodes=1, ranks_per_node=2, device="cpu")


def write_policy(folder: Path, **settings: Any) -> Path:
    policy = Policy(
        applies_to={
            "model": "tiny", "cluster": "local", "num_gpus": 2, "precision": "bf16", "seq_length": 16,
            "global_batch_size": 4, "stack": {"megatron_core": importlib.metadata.version("megatron-core")},
        },
        settings=resolve(settings),
        env={"NVTE_FWD_LAYERNORM_SM_MARGIN": "0"},
        launch={},
        evidence={
            "kind": "predicted",
            "contract": {"model": asdict(MODEL), "contract": asdict(CONTRACT), "gang": asdict(GANG)},
        },
    )  # fmt: skip
    path = folder / "policy.yaml"
    path.write_text(dump_policy(policy))
    return path


def train(policy: Path, *options: str, **env: str) -> subprocess.CompletedProcess[str]:
    environ = os.environ | {"PYTHONPATH": import_path(os.environ.get("PYTHONPATH"))} | env
    argv = [sys.executable, "-m", "autotune_trials.train", "--policy", str(policy), *options]
    return subprocess.run(argv, env=environ, capture_output=True, text=True, timeout=240, check=False)


def test_a_policy_trains_with_exactly_its_settings(tmp_path: Path) -> None:
    policy = write_policy(tmp_path, expert_parallel=2, micro_batch_size=2, dispatcher="allgather")
    done = train(policy, "--steps", "3", NVTE_FWD_LAYERNORM_SM_MARGIN="0")
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert summary["settings"] == resolve({"expert_parallel": 2, "micro_batch_size": 2, "dispatcher": "allgather"})
    assert summary["dispatcher_class"] == "MoEAllGatherTokenDispatcher"
    assert summary["steps"] == 3
    assert summary["tokens_per_s_per_gpu"] == pytest.approx(64 / summary["step_time_s"] / 2)
    lines = [line for line in done.stderr.splitlines() if line.startswith("step")]
    assert [line.split()[1] for line in lines] == ["1", "2", "3"]
    assert f"{summary['loss']:.5f}" in lines[-1]


def test_a_policy_that_cannot_run_here_is_refused_in_one_line(tmp_path: Path) -> None:
    policy = write_policy(tmp_path, expert_parallel=2, dispatcher="deepep", num_sms=20)
    done = train(policy, NVTE_FWD_LAYERNORM_SM_MARGIN="0")
    assert done.returncode == 2
    assert done.stderr == "error: dispatcher=deepep needs GPUs; a CPU runs alltoall and allgather\n"
    assert done.stdout == ""


def test_a_missing_environment_names_the_way_out(tmp_path: Path) -> None:
    done = train(write_policy(tmp_path))
    assert done.returncode == 2
    assert "NVTE_FWD_LAYERNORM_SM_MARGIN is not set, not 0" in done.stderr
    assert "autotune policy exec" in done.stderr
    assert "Traceback" not in done.stderr
