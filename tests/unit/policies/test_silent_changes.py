"""Training that silently starts with other settings is caught, and told why."""

from pathlib import Path
from typing import Any

import pytest

from autotune_policies import Policy, load_policy
from autotune_policies.resolved import Difference
from autotune_policies.silent_changes import SILENT_CHANGES
from autotune_policies.verify import Verification, inspect_container
from tests.support.resolved_containers import document_of, fields_of

EXAMPLE = load_policy(Path(__file__).parent / "example.yaml")
ENERGON = {"_target_": "megatron.bridge.data.builders.energon.EnergonDatasetConfig"}


def policy_of(**changes: Any) -> Policy:
    return EXAMPLE._replace(settings={**EXAMPLE.settings, **changes})


def verify(policy: Policy, document: dict[str, Any]) -> Verification:
    return inspect_container(policy, document, megatron_core="0.19", megatron_bridge="0.6")


def planted(changes: dict[str, Any], policy: Policy = EXAMPLE, **others: Any) -> Verification:
    return verify(policy, document_of({**fields_of(policy), "model.num_moe_experts": 64, **changes}, **others))


def reason(found: Verification, field: str) -> str:
    """Name of the silent change that explains one field's difference."""
    (row,) = (row for row in found.differences if row.field == field)
    return next((change.name for change in SILENT_CHANGES if (change.why, change.remedy) == (row.why, row.remedy)), "")


ALLTOALL = {"model.moe_token_dispatcher_type": "alltoall", "model.moe_flex_dispatcher_backend": None}
CAPACITY = {"model.moe_expert_rank_capacity_factor": 1.5}
PLANTED: list[tuple[str, dict[str, Any], str, str]] = [
    ("1 fallback on the GPU", ALLTOALL, "dispatcher", "fallback to alltoall"),
    ("2 no backend", {"model.moe_flex_dispatcher_backend": None}, "model.moe_flex_dispatcher_backend", "no backend"),
    ("3 unknown backend", {"model.moe_token_dispatcher_type": "alltoall"}, "dispatcher", "backend not put in"),
    ("3 no experts", {**ALLTOALL, "model.num_moe_experts": None}, "dispatcher", "no experts"),
    ("6 recompute", {"model.recompute_modules": None}, "recompute_modules", "default modules"),
    ("8b packed data", {"model.overlap_moe_expert_parallel_comm": False, "dataset": ENERGON}, "ep_overlap",
     "packed data"),
    ("8b packed data", {"model.delay_wgrad_compute": False, "dataset": ENERGON}, "delay_wgrad", "packed data"),
    ("9 null overlap", {"model.overlap_moe_expert_parallel_comm": False}, "ep_overlap", "overlap not put in"),
    ("10 capacity", CAPACITY, "model.moe_expert_rank_capacity_factor", "rank capacity"),
    ("11 text", {"model.cuda_graph_modules": "attn,moe_router,moe_preprocess"}, "model.cuda_graph_modules",
     "graphs that never engage"),
    ("SM count", {"model.moe_flex_dispatcher_num_sms": 32}, "num_sms", "SM count"),
    ("variable", {"env_vars.CUDA_DEVICE_MAX_CONNECTIONS": "1"}, "env_vars.CUDA_DEVICE_MAX_CONNECTIONS",
     "shell variable"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "field", "name"), [row[1:] for row in PLANTED], ids=[row[0] for row in PLANTED])
def test_a_silent_change_is_caught_and_explained(changes: dict[str, Any], field: str, name: str) -> None:
    assert planted({}).differences == ()
    assert reason(planted(changes), field) == name


def test_4_a_saved_container_is_no_proof_of_the_dispatcher() -> None:
    assert "may not run" in planted({}).unchecked["GPU"]
    alltoall = policy_of(dispatcher="alltoall", num_sms=None)
    assert "GPU" not in verify(alltoall, document_of(fields_of(alltoall))).unchecked


def test_5_tensor_parallel_overlap_that_was_switched_off() -> None:
    found = planted({"comm_overlap.tp_comm_overlap": True, "model.tp_comm_overlap": False})
    assert found.differences == ()
    assert [(row.field, row.wanted, row.found) for row in found.suspects] == [("model.tp_comm_overlap", True, False)]
    assert "below 2" in found.suspects[0].why
    assert planted({"comm_overlap.tp_comm_overlap": True, "model.tp_comm_overlap": True}).suspects == ()


def test_7_gradient_accumulation_without_fusion() -> None:
    (row,) = planted({"model.gradient_accumulation_fusion": False}).suspects
    assert (row.field, row.found) == ("model.gradient_accumulation_fusion", False)
    assert "Transformer Engine" in row.why
    # Megatron-FSDP cannot have it, so there nothing happened silently.
    assert planted({"model.gradient_accumulation_fusion": False, "ddp.use_megatron_fsdp": True}).suspects == ()


def test_8_a_gradient_precision_that_will_be_overwritten() -> None:
    (row,) = planted({"ddp.grad_reduce_in_fp32": False, "mixed_precision.grad_reduce_in_fp32": True}).suspects
    assert (row.field, row.wanted, row.found) == ("ddp.grad_reduce_in_fp32", False, True)
    assert row.remedy == "set mixed_precision.grad_reduce_in_fp32=false"
    assert planted({"ddp.grad_reduce_in_fp32": True, "mixed_precision.grad_reduce_in_fp32": True}).suspects == ()


def test_9_a_field_that_is_not_there() -> None:
    document = document_of(fields_of(EXAMPLE))
    del document["model"]["overlap_p2p_comm"]
    (row,) = verify(EXAMPLE, document).differences
    assert row.field == "model.overlap_p2p_comm"
    assert "skips unknown names" in row.why


def test_9_an_overlap_section_without_a_class() -> None:
    target = {"_target_": "megatron.bridge.models.gpt_provider.GPTModelProvider"}
    document = document_of(fields_of(EXAMPLE))
    document["model"] |= target
    assert [row.field for row in verify(EXAMPLE, document).suspects] == ["comm_overlap"]
    document["comm_overlap"]["_target_"] = "megatron.bridge.training.comm_overlap.CommOverlapConfig"
    assert verify(EXAMPLE, document).suspects == ()


def test_10_tokens_that_are_dropped_are_in_no_configuration() -> None:
    policy = policy_of(dispatcher="hybridep", rank_capacity_factor=1.5)
    found = verify(policy, document_of(fields_of(policy)))
    assert "dropped" in found.unchecked["dropped tokens"]
    assert "dropped tokens" not in planted({}).unchecked


def test_11_chunk_sizes_that_are_not_the_policys() -> None:
    name = "NUM_OF_TOKENS_PER_CHUNK_COMBINE_API"
    policy = policy_of(dispatcher="hybridep")._replace(env={name: "128"})
    (row,) = verify(policy, document_of({**fields_of(policy), f"env_vars.{name}": "64"})).differences
    assert (row.wanted, row.found) == ("128", "64")
    assert "all three kernels" in row.why


def test_overlap_that_a_switch_does_not_switch_off() -> None:
    policy = policy_of(ep_overlap=False, delay_wgrad=False)
    found = planted({"model.overlap_moe_expert_parallel_comm": True}, policy)
    assert reason(found, "ep_overlap") == "overlap stays on"


def test_shared_expert_overlap_that_a_backend_switches_off() -> None:
    policy = policy_of(shared_expert_overlap=True, ep_overlap=False, delay_wgrad=False)
    found = planted({"model.moe_shared_expert_overlap": False}, policy)
    assert reason(found, "shared_expert_overlap") == "shared expert"


def test_sequence_parallelism_without_tensor_parallelism() -> None:
    policy = policy_of(tensor_parallel=2, sequence_parallel=True)
    found = planted({"model.tensor_model_parallel_size": 1, "model.sequence_parallel": False}, policy)
    assert reason(found, "sequence_parallel") == "sequence parallel"


def test_a_difference_that_nobody_knows_stays_unexplained() -> None:
    assert planted({"model.moe_router_fusion": True}).differences == (Difference("router_fusion", False, True),)


def test_every_row_can_be_seen() -> None:
    assert all(change.why and change.remedy and change.name for change in SILENT_CHANGES)
    assert len({change.name for change in SILENT_CHANGES}) == len(SILENT_CHANGES)
