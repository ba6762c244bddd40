"""The real Megatron-Bridge as far as a machine without a GPU lets it."""

import importlib.util
import os
import time
from pathlib import Path
from typing import Any

import pytest

from autotune_policies.resolved import read_resolved
from autotune_policies.settings import resolve
from autotune_trials.events import StepRecord
from autotune_trials.log_lines import LogReader, Step
from autotune_trials.node import NodeRanks, free_port
from autotune_trials.programs import BRIDGE_ENTRY, RecipeSpec
from autotune_trials.spec import Contract, GangShape, ModelShape, Routing, TrialSpec

pytestmark = [
    pytest.mark.trial,
    pytest.mark.skipif(
        importlib.util.find_spec("megatron") is None or importlib.util.find_spec("megatron.bridge") is None,
        reason="megatron-bridge is not installed",
    ),
]

SUPPORT = Path(__file__).parents[2] / "support"
MODEL = ModelShape(
    name="tiny", num_layers=4, hidden_size=128, num_attention_heads=4, num_query_groups=2, vocab_size=1024,
    ffn_hidden_size=256, num_experts=8, router_topk=2, moe_ffn_hidden_size=128, aux_loss_coeff=0.01,
)  # fmt: skip


def test_its_own_pretrain_validates_and_saves_the_trial_and_stops_where_it_asks_for_cuda(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(SUPPORT), os.environ.get("PYTHONPATH", "")]))
    spec = TrialSpec(
        "real", 0, MODEL, Contract(128, 8, steps=5, warmup_steps=2, routing=Routing("natural", "mock_arange")),
        resolve({"dispatcher": "allgather", "micro_batch_size": 2}), GangShape(1, 1, "cpu"), program="bridge",
        recipe=RecipeSpec("bridge_on_cpu:tiny", (), BRIDGE_ENTRY, "bridge_on_cpu:forward_step"),
    )  # fmt: skip
    node = NodeRanks(spec, node_rank=0, work_dir=tmp_path, master=("127.0.0.1", free_port("127.0.0.1")))

    assert _to_the_end(node) == (None, [], None)

    [rank] = node.poll().ranks
    assert rank.failure == {
        "kind": "rejected", "error": "Rejected", "message": "Megatron-Core refuses it: Megatron requires CUDA.",
    }, node.logs(0)  # fmt: skip
    saved = read_resolved(tmp_path / "ConfigContainer.yaml")
    assert saved["model"]["moe_token_dispatcher_type"] == "allgather"
    assert saved["train"]["micro_batch_size"] == 2
    assert saved["train"]["train_iters"] == 5


def test_its_own_loop_trains_the_trial_under_watch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(SUPPORT), os.environ.get("PYTHONPATH", "")]))
    spec = TrialSpec(
        "real", 0, MODEL, Contract(128, 8, steps=5, warmup_steps=2, routing=Routing("natural", "mock_arange")),
        resolve({"dispatcher": "allgather", "micro_batch_size": 2, "distributed_optimizer": True}),
        GangShape(1, 1, "cpu"), program="bridge", stall_s=600.0, profile_steps=1,
        recipe=RecipeSpec("bridge_on_cpu:tiny", (), "bridge_on_cpu:pretrain", "bridge_on_cpu:forward_step"),
    )  # fmt: skip
    node = NodeRanks(spec, node_rank=0, work_dir=tmp_path, master=("127.0.0.1", free_port("127.0.0.1")))

    resolved, steps, profile = _to_the_end(node)

    assert resolved is not None, node.logs(0)
    assert resolved["dispatcher_class"] == "MoEAllGatherTokenDispatcher"
    assert resolved["stages"] == [["EttttL"]]
    assert resolved["settings"] == spec.settings
    assert resolved["container"]["model"]["moe_token_dispatcher_type"] == "allgather"
    assert [step.step for step in steps] == [1, 2, 3, 4, 5]
    reader = LogReader()
    printed = [record for record in reader.feed(node.logs(0).encode()) if isinstance(record, Step)]
    for ours, theirs in zip(steps, printed, strict=True):
        assert ours.loss == pytest.approx(theirs.loss, abs=1e-5)
        assert ours.grad_norm == pytest.approx(theirs.grad_norm, abs=1e-3)
    # The same interval, but for what the two clocks' owners do between their readings.
    assert steps[3].step_time_s == pytest.approx(printed[3].step_time_s, rel=0.2)
    assert profile is not None
    assert profile["step_time_s"] == pytest.approx(steps[-1].step_time_s, rel=0.2)
    assert min(profile[name] for name in ("experts_s", "permute_s", "optimizer_s", "host_s")) > 0.0


def _to_the_end(node: NodeRanks) -> tuple[dict[str, Any] | None, list[StepRecord], dict[str, Any] | None]:
    """What was read back from the built objects, the steps, and the profile, by the time the rank ended."""
    resolved: dict[str, Any] | None = None
    profile: dict[str, Any] | None = None
    steps: list[StepRecord] = []
    node.start()
    try:
        while True:
            status = node.poll()
            resolved = status.resolved or resolved
            profile = status.profile or profile
            steps += status.steps
            if status.ended:
                return resolved, steps, profile
            time.sleep(0.1)
    finally:
        node.kill()
