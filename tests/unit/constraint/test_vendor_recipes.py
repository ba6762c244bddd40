"""The published recipes of the same release are legal; every exception is listed with its reason."""

import csv
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from autotune.cluster import Cluster, load_cluster
from autotune.constraint.check import check
from autotune.constraint.rule import Candidate
from autotune.space.files import load_model
from autotune_policies.layout import layout_stages
from autotune_policies.settings import Settings, resolve
from autotune_trials.spec import Contract, GangShape, ModelShape, Routing

TABLE = Path(__file__).parents[2] / "data" / "bridge_moe_pretrain_recipes.tsv"
STACK = {"megatron_core": "0.19.0", "torch": "2.9.1", "transformer_engine": "2.14.0"}

MODELS = {
    "deepseek_v3": "dsv3", "deepseek_v4_flash": "dsv4-flash", "gpt_oss_120b": "gpt-oss-120b",
    "gpt_oss_20b": "gpt-oss-20b", "kimi_k2": "kimi-k2", "nemotron_3_nano": "nemotron3-nano",
    "nemotron_3_super": "nemotron3-super", "qwen35_vl_35b_a3b": "qwen35-35b", "qwen3_235b_a22b": "qwen3-235b",
    "qwen3_30b_a3b": "qwen3-30b", "qwen3_next_80b_a3b": "qwen3-next", "qwen3_vl_235b_a22b": "qwen3-vl-235b",
    "qwen3_vl_30b_a3b": "qwen3-vl-30b",
}  # fmt: skip
NOT_OURS = {
    "deepseek_v4_pro", "nemotron_3_5_lightning", "nemotron_3_ultra", "qwen35_vl_122b_a10b", "qwen35_vl_397b_a17b",
}  # fmt: skip
"""Models that no file describes."""

PRECISIONS = {
    "bf16": "bf16", "fp8mx": "fp8_mxfp8", "fp8cs": "fp8_tensorwise", "fp8sc": "fp8_blockwise", "fp8ds": "fp8_delayed",
    "nvfp4": "fp4_nvfp4",
}  # fmt: skip

EXCEPTIONS: dict[str, tuple[str, ...]] = {
    # Written for more GPUs than its name says: expert x pipeline parallelism alone needs more ranks.
    "MC002": (
        "deepseek_v3_pretrain_64gpu_h100_bf16_config",
        "deepseek_v3_pretrain_64gpu_h100_fp8cs_config",
        "qwen3_235b_a22b_pretrain_64gpu_gb200_fp8cs_config",
        "qwen3_235b_a22b_pretrain_64gpu_gb200_fp8mx_config",
        "qwen3_235b_a22b_pretrain_64gpu_gb200_nvfp4_config",
        "qwen3_235b_a22b_pretrain_64gpu_gb300_bf16_config",
        "qwen3_235b_a22b_pretrain_64gpu_gb300_fp8cs_config",
        "qwen3_235b_a22b_pretrain_64gpu_gb300_fp8mx_config",
        "qwen3_235b_a22b_pretrain_64gpu_gb300_nvfp4_config",
    ),
    # 24 chunks for 40 layers: the text model of this release has fewer layers than the one it was copied from.
    "MC035": ("qwen35_vl_35b_a3b_pretrain_16gpu_h100_fp8cs_config",),
    # Graphs are off, modules are named all the same; they have no effect.
    "MC128": ("qwen3_30b_a3b_pretrain_16gpu_gb200_fp8mx_partial_cg_dev_config",),
    # Selective without a module recomputes nothing; here that is null.
    "MC155": (
        "deepseek_v3_pretrain_256gpu_gb300_fp8mx_config",
        "deepseek_v3_pretrain_256gpu_gb300_fp8mx_large_scale_config",
        "gpt_oss_120b_pretrain_64gpu_gb200_fp8mx_config",
    ),
    # The evidence that makes the rule suspect: chunks of 128 for combine, of 64 for the rest.
    "AT022": ("qwen3_30b_a3b_pretrain_64gpu_h100_bf16_config",),
}
"""Recipes that break a rule, by rule; the reason stands above each."""


def rows() -> list[dict[str, str]]:
    lines = [line for line in TABLE.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    return [
        row for row in csv.DictReader(lines, delimiter="\t")
        if row["model"] not in NOT_OURS and row["gpu"] != "vr200" and row["use_megatron_fsdp"] != "True"
    ]  # fmt: skip


@cache
def shape_of(model: str) -> ModelShape:
    return load_model(MODELS[model]).model_shape()


@cache
def cluster_of(name: str) -> Cluster:
    return load_cluster(name)


def candidate_of(row: dict[str, str]) -> Candidate:
    shape, cluster = shape_of(row["model"]), cluster_of(row["gpu"])
    nodes, ranks = cluster.nodes(int(row["num_gpus"]))
    settings = settings_of(row, shape)
    budget = Routing(token_policy="dropless" if settings["rank_capacity_factor"] is None else "rank_budget")
    return Candidate(
        settings=settings,
        shape=shape,
        contract=Contract(int(row["seq_len"]), int(row["gbs"]), PRECISIONS[row["precision"]], routing=budget),
        gang=GangShape(nodes, ranks),
        nvlink_domain_gpus=cluster.nvlink_domain_gpus,
        stack=STACK,
        sm_count=cluster.sm_count,
        accelerator=cluster.accelerator,
        gpus_per_node=cluster.gpus_per_node,
        env={**cluster.env, **dict(text.split("=", 1) for text in row["env_vars"].split())},
    )


def settings_of(row: dict[str, str], shape: ModelShape) -> Settings:
    """A recipe in canonical settings, as its trainer would resolve it."""
    layout, pipeline, virtual = row["pp_layout"] or None, int(row["pp"]), int(row["vp"] or 1)
    if layout:
        virtual = len(layout_stages(layout)) // pipeline
    elif pipeline > 1 and shape.hybrid_pattern is None:
        uneven = shape.num_layers % (pipeline * virtual) or shape.mtp_num_layers
        layout = accounted(shape, pipeline * virtual) if uneven else None
    flex = row["moe_token_dispatcher_type"] == "flex"
    dispatcher = row["moe_flex_dispatcher_backend"] if flex else row["moe_token_dispatcher_type"] or "alltoall"
    sms = row["moe_flex_dispatcher_num_sms"] or row.get(f"moe_{dispatcher}_num_sms") or "16"
    scope = [name for name in row["cuda_graph_modules_or_scope"].split(",") if name]
    modules = [name for name in row["recompute_modules"].split(",") if name]
    whole = row["cuda_graph_impl"] == "full_iteration" or "full_iteration" in scope
    chosen: dict[str, Any] = {
        "micro_batch_size": int(row["mbs"]), "tensor_parallel": int(row["tp"]), "pipeline_parallel": pipeline,
        "virtual_pipeline": virtual, "pipeline_layout": layout, "context_parallel": int(row["cp"]),
        "expert_parallel": int(row["ep"]), "expert_tensor_parallel": int(row["etp"]),
        "sequence_parallel": row["sp"] == "True" and int(row["tp"]) > 1, "dispatcher": dispatcher, "grouped_gemm": True,
        "num_sms": int(sms) if flex else None, "permute_fusion": row["moe_permute_fusion"] == "True",
        "permute_fusion_into_hybridep": row["moe_permute_fusion_into_hybridep"] == "True",
        "ep_overlap": row["overlap_moe_expert_parallel_comm"] == "True",
        "delay_wgrad": row["delay_wgrad_compute"] == "True",
        "shared_expert_overlap": row["moe_shared_expert_overlap"] == "True",
        "cuda_graph_impl": "full_iteration" if whole else row["cuda_graph_impl"] or "none",
        "cuda_graph_modules": [] if whole else scope,
        "recompute_granularity": row["recompute_granularity"] or None,
        "recompute_modules": modules if row["recompute_granularity"] else [],
        "offload_modules": [name for name in row["offload_modules"].split(",") if name],
        "rank_capacity_factor": float(row["moe_expert_rank_capacity_factor"] or 0) or None,
        "paged_stash": row["moe_paged_stash"] == "True", "op_fuser": row["use_transformer_engine_op_fuser"] == "True",
        "overlap_grad_reduce": row["overlap_grad_reduce"] == "True",
    }  # fmt: skip
    if flex and dispatcher == "hybridep" and row["moe_hybridep_num_sms_preprocessing"]:
        chosen["num_sms_preprocessing"] = int(row["moe_hybridep_num_sms_preprocessing"])
    return resolve(chosen)


def accounted(shape: ModelShape, stages: int) -> str | None:
    """The even split that counts embedding and loss as a layer each, written out; None where there is none."""
    share, rest = divmod(shape.num_layers + 2, stages)
    if rest:
        return None
    texts = ["t" * share] * stages
    texts[0], texts[-1] = "E" + "t" * (share - 1), "t" * (share - 1) + "m" * shape.mtp_num_layers + "L"
    return "|".join(texts)


RECIPES = {row["name"]: row for row in rows()}


@pytest.mark.parametrize("name", RECIPES)
def test_the_recipe_is_legal(name: str) -> None:
    broken = {violation.rule: violation.message for violation in check(candidate_of(RECIPES[name]))}

    assert set(broken) == {rule for rule, recipes in EXCEPTIONS.items() if name in recipes}, broken


def test_the_exceptions_are_recipes_and_few() -> None:
    excepted = [name for recipes in EXCEPTIONS.values() for name in recipes]

    assert set(excepted) <= set(RECIPES)
    assert len(RECIPES) == 216
    assert {row["model"] for row in RECIPES.values()} == set(MODELS)
