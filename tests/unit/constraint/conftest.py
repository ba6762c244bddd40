"""Candidates for the legality rules."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from autotune.constraint.rule import Candidate
from autotune_policies.settings import resolve
from autotune_trials.spec import Contract, GangShape, ModelShape

SHAPE = ModelShape(
    name="m", num_layers=8, hidden_size=256, num_attention_heads=8, vocab_size=512, ffn_hidden_size=512,
    num_query_groups=4, num_experts=16, router_topk=2, moe_ffn_hidden_size=128, shared_expert_size=128,
    num_dense_layers=1, mtp_num_layers=0,
)  # fmt: skip

STACK = {"megatron_core": "0.19.2", "torch": "2.9.0", "transformer_engine": "2.14.0"}


@pytest.fixture
def candidate() -> Callable[..., Candidate]:
    """A legal candidate on 8 GPUs with changes; ``shape__x``, ``contract__x`` and ``routing__x`` change those."""

    def make(
        device: str = "cuda", stack: dict[str, str] | None = STACK, ranks: int = 8, nodes: int = 1, domain: int = 8,
        sm_count: int | None = 132, accelerator: str | None = "H100", env: dict[str, str] | None = None,
        gpus_per_node: int | None = None,
        **changes: Any,
    ) -> Candidate:  # fmt: skip
        shape = {k.removeprefix("shape__"): v for k, v in changes.items() if k.startswith("shape__")}
        contract = {k.removeprefix("contract__"): v for k, v in changes.items() if k.startswith("contract__")}
        routing = {k.removeprefix("routing__"): v for k, v in changes.items() if k.startswith("routing__")}
        settings = {k: v for k, v in changes.items() if "__" not in k}
        agreed = replace(Contract(seq_length=128, global_batch_size=32), **contract)
        return Candidate(
            settings=resolve(settings),
            shape=replace(SHAPE, **shape),
            contract=replace(agreed, routing=replace(agreed.routing, **routing)),
            gang=GangShape(nodes, ranks, device),
            nvlink_domain_gpus=domain,
            stack=stack,
            sm_count=sm_count,
            accelerator=accelerator,
            env=env,
            gpus_per_node=gpus_per_node,
        )

    return make
