"""What can be checked on one real GPU; skipped, and counted as skipped, where there is none."""

from pathlib import Path
from typing import Any

import pytest

from autotune.measure.outcome import TrialOutcome, TrialState, judge
from autotune.scheduling.gang import run_gang
from autotune.scheduling.local_gang import LocalGang
from autotune_policies.settings import resolve
from autotune_trials.facts import gpu_names, node_facts
from autotune_trials.spec import Contract, GangShape, ModelShape, Routing, TrialSpec

pytestmark = pytest.mark.gpu

SHAPE = ModelShape(
    name="one-gpu", num_layers=4, hidden_size=1024, num_attention_heads=16, vocab_size=32000, ffn_hidden_size=2048,
    num_query_groups=4, num_experts=8, router_topk=2, moe_ffn_hidden_size=1024,
)  # fmt: skip


@pytest.fixture(autouse=True)
def _needs_a_gpu() -> None:
    if not gpu_names():
        pytest.skip("no NVIDIA GPU can be seen through NVML")


def trial(tmp_path: Path, routing: str = "natural", **settings: Any) -> TrialOutcome:
    spec = TrialSpec(
        study="gpu",
        trial=0,
        model=SHAPE,
        contract=Contract(1024, 8, steps=12, warmup_steps=5, routing=Routing(source=routing)),
        settings=resolve({"micro_batch_size": 2, **settings}),
        gang=GangShape(1, 1, "cuda"),
        deadline_s=240,
        stall_s=120,
    )
    gang = LocalGang(tmp_path)
    try:
        return judge(spec, run_gang(gang, spec))
    finally:
        gang.close()


def test_nvml_names_the_gpu_that_torch_sees() -> None:
    torch = pytest.importorskip("torch")

    assert gpu_names()[0] == torch.cuda.get_device_name(0)
    assert node_facts()["gpu_driver"]


@pytest.mark.parametrize("dispatcher", ["alltoall", "allgather"])
def test_a_trial_trains_over_nccl(tmp_path: Path, dispatcher: str) -> None:
    outcome = trial(tmp_path, dispatcher=dispatcher)

    assert outcome.state is TrialState.COMPLETE, outcome.reason
    assert outcome.peak_memory_bytes is not None
    assert outcome.peak_memory_bytes > 500e6
    assert outcome.resolved is not None
    assert outcome.resolved["settings"]["dispatcher"] == dispatcher


def test_attention_in_cuda_graphs_trains_to_the_same_loss(tmp_path: Path) -> None:
    eager = trial(tmp_path / "eager")
    graphs = trial(tmp_path / "graphs", cuda_graph_impl="local", cuda_graph_modules=["attn"])

    assert graphs.state is TrialState.COMPLETE, graphs.reason
    assert graphs.losses == pytest.approx(eager.losses, abs=2e-2)


def test_full_recompute_needs_less_memory(tmp_path: Path) -> None:
    plain = trial(tmp_path / "plain")
    lean = trial(tmp_path / "lean", recompute_granularity="full", recompute_method="uniform", recompute_num_layers=1)

    assert plain.peak_memory_bytes is not None
    assert lean.peak_memory_bytes is not None
    assert lean.peak_memory_bytes < plain.peak_memory_bytes
