"""Where the time of a step goes on one real GPU; skipped, and counted as skipped, where there is none."""

from pathlib import Path

import pytest

from autotune.scheduling.gang import run_gang
from autotune.scheduling.local_gang import LocalGang
from autotune_policies.settings import resolve
from autotune_trials.facts import gpu_names
from autotune_trials.spec import Contract, GangShape, ModelShape, Routing, TrialSpec

pytestmark = pytest.mark.gpu

SHAPE = ModelShape(
    name="one-gpu", num_layers=4, hidden_size=1024, num_attention_heads=16, vocab_size=32000, ffn_hidden_size=2048,
    num_query_groups=4, num_experts=8, router_topk=2, moe_ffn_hidden_size=1024,
)  # fmt: skip


def test_kernels_are_found_in_every_part_and_the_parts_make_up_the_step(tmp_path: Path) -> None:
    if not gpu_names():
        pytest.skip("no NVIDIA GPU can be seen through NVML")
    spec = TrialSpec(
        study="gpu",
        trial=0,
        model=SHAPE,
        contract=Contract(1024, 8, steps=8, warmup_steps=5, routing=Routing(source="natural")),
        settings=resolve({"micro_batch_size": 2}),
        gang=GangShape(1, 1, "cuda"),
        deadline_s=240,
        stall_s=120,
        profile_steps=2,
    )
    gang = LocalGang(tmp_path)
    try:
        run = run_gang(gang, spec)
    finally:
        gang.close()

    assert run.ending == "finished", (run.message, run.ranks[0].log_tail[-2000:])
    found = dict(run.profile or {})
    parts = ("experts_s", "permute_s", "optimizer_s", "other_s", "host_s")
    assert all(found[name] > 0.0 for name in parts), found
    exposed = sum(seconds for name, seconds in found.items() if name.startswith("exposed_"))
    assert sum(found[name] for name in parts) + exposed == pytest.approx(found["step_time_s"], rel=1e-6)
