"""Every legality rule has a configuration that breaks it and one beside it that does not."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.constraint.check import check, is_legal, only_suspect, warnings
from autotune.constraint.rule import Candidate
from autotune.constraint.rules import RULES
from autotune_policies.settings import resolve
from autotune_trials.spec import Contract, GangShape, ModelShape

STACK = {"megatron_core": "0.19.2", "torch": "2.9.0", "transformer_engine": "2.14.0"}
FLEX = {"num_sms": 20, "expert_parallel": 8}
DEEPEP = {"dispatcher": "deepep", **FLEX}
HYBRIDEP = {"dispatcher": "hybridep", **FLEX}
NCCLEP = {"dispatcher": "ncclep", "rank_capacity_factor": 1.5, **FLEX}
TWO_NODES = {"nodes": 2, "expert_parallel": 16}
OVERLAP = {"ep_overlap": True, "expert_parallel": 2}
GRAPHS = {"cuda_graph_impl": "transformer_engine"}
ATTENTION = {**GRAPHS, "cuda_graph_modules": ["attn"]}
LOCAL = {"cuda_graph_impl": "local"}
FUSED = {"op_fuser": True, "grouped_gemm": True}
GDN = {"shape__gdn_num_key_heads": 4, "shape__gdn_num_value_heads": 8}
TP8 = {"tensor_parallel": 8, "sequence_parallel": True}
SELECTIVE = {"recompute_granularity": "selective"}
FP8 = {"contract__precision": "fp8_tensorwise"}

CASES: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    # topology
    ("MC001", {"tensor_parallel": 3}, {"tensor_parallel": 2, "sequence_parallel": True}),
    ("MC002", {"expert_parallel": 3}, {"expert_parallel": 4}),
    ("MC008", {"expert_parallel": 2, "shape__num_experts": None}, {"expert_parallel": 1, "shape__num_experts": None}),
    ("MC009", {"expert_parallel": 8, "shape__num_experts": 12}, {"expert_parallel": 4, "shape__num_experts": 12}),
    ("MC011", {**TP8, "shape__num_attention_heads": 4}, TP8),
    ("MC012", {**TP8, "shape__num_query_groups": 3}, {**TP8, "shape__num_query_groups": 2}),
    ("MC013", {**TP8, **GDN}, {"tensor_parallel": 4, "sequence_parallel": True, **GDN}),
    ("MC013", {"shape__gdn_num_key_heads": 3, "shape__gdn_num_value_heads": 8}, GDN),
    (
        "AT017",
        {**TP8, "shape__mamba_num_heads": 12, "shape__mamba_num_groups": 8},
        {**TP8, "shape__mamba_num_heads": 16, "shape__mamba_num_groups": 8},
    ),
    ("AT017", {**TP8, "shape__mamba_num_heads": 16}, {"shape__mamba_num_heads": 16}),
    ("MC014", {"sequence_parallel": True}, {"sequence_parallel": True, "tensor_parallel": 2}),
    ("MC015", {"tensor_parallel": 2}, {"tensor_parallel": 2, "sequence_parallel": True}),
    (
        "AT003",
        {**TP8, "contract__seq_length": 100},
        {"tensor_parallel": 2, "sequence_parallel": True, "contract__seq_length": 100},
    ),
    ("MC016", {"context_parallel": 4, "contract__seq_length": 36}, {"context_parallel": 2, "contract__seq_length": 36}),
    ("MC020", {"expert_tensor_parallel": 2, "shape__add_linear_bias": True}, {"shape__add_linear_bias": True}),
    (
        "AT006",
        {"tensor_parallel": 2, "sequence_parallel": True, "stack": {"megatron_core": "0.16.1"}},
        {"tensor_parallel": 2, "sequence_parallel": True, "stack": {"megatron_core": "0.19.2"}},
    ),
    # model
    ("MC010", {"shape__num_experts": 0}, {"shape__num_experts": 16}),
    ("MC022", {"shape__hidden_size": 260}, {"shape__hidden_size": 260, "shape__kv_channels": 32}),
    ("MC085", {"shape__shared_expert_size": 0}, {"shape__shared_expert_size": None}),
    ("MC021", {"shape__add_linear_bias": True}, {"shape__add_linear_bias": True, "shape__shared_expert_size": None}),
    ("MC089", {"shape__moe_latent_size": 64, "shape__num_experts": None}, {"shape__moe_latent_size": 64}),
    ("MC091", {"shape__router_topk": 17}, {"shape__router_topk": 16}),
    ("MC092", {"shape__expert_bias": True}, {"shape__expert_bias": True, "shape__router_score_function": "sigmoid"}),
    (
        "AT034",
        {"shape__router_score_function": "sqrtsoftplus", "stack": {**STACK, "megatron_core": "0.16.1"}},
        {"shape__router_score_function": "sqrtsoftplus"},
    ),
    ("MC093", {"shape__router_group_topk": 2}, {"shape__router_group_topk": 2, "shape__router_num_groups": 4}),
    (
        "MC093",
        {"shape__router_group_topk": 8, "shape__router_num_groups": 4},
        {"shape__router_group_topk": 4, "shape__router_num_groups": 4},
    ),
    # batch and pipeline
    ("MC023", {"micro_batch_size": 8}, {"micro_batch_size": 4}),
    ("MC029", {"virtual_pipeline": 2}, {"virtual_pipeline": 2, "pipeline_parallel": 2}),
    (
        "MC027",
        {"virtual_pipeline": 2, "pipeline_parallel": 4, "contract__global_batch_size": 4},
        {"virtual_pipeline": 2, "pipeline_parallel": 4, "contract__global_batch_size": 8},
    ),
    ("MC035", {"pipeline_parallel": 4, "shape__num_layers": 6}, {"pipeline_parallel": 2, "shape__num_layers": 6}),
    (
        "MC035",
        {"pipeline_parallel": 4, "shape__num_layers": 6, "shape__mtp_num_layers": 1},
        {"pipeline_parallel": 2, "shape__mtp_num_layers": 1},
    ),
    (
        "MC045",
        {
            "pipeline_parallel": 2,
            "virtual_pipeline": 2,
            "pipeline_layout": "Ett|tttttt|m|L",
            "shape__mtp_num_layers": 1,
        },
        {
            "pipeline_parallel": 2,
            "virtual_pipeline": 2,
            "pipeline_layout": "Ett|tt|tt|ttmL",
            "shape__mtp_num_layers": 1,
        },
    ),
    (
        "MC045",
        {
            "pipeline_parallel": 2,
            "virtual_pipeline": 2,
            "pipeline_layout": "Ett|ttttttm|m|L",
            "shape__mtp_num_layers": 2,
        },
        {"pipeline_parallel": 4, "pipeline_layout": "Etttt|tttt|mm|L", "shape__mtp_num_layers": 2},
    ),
    (
        "MC045",
        {
            "pipeline_parallel": 4,
            "virtual_pipeline": 2,
            "pipeline_layout": "Et|t|t|t|tt|t|tm|mL",
            "shape__mtp_num_layers": 2,
        },
        {
            "pipeline_parallel": 4,
            "virtual_pipeline": 2,
            "pipeline_layout": "Et|t|t|t|tt|tt|m|L",
            "shape__mtp_num_layers": 1,
        },
    ),
    (
        "MC045",
        {"pipeline_parallel": 2, "pipeline_layout": "Etttt|tttL"},
        {"pipeline_parallel": 2, "pipeline_layout": "Et*5|tttL"},
    ),
    (
        "MC045",
        {"pipeline_parallel": 4, "pipeline_layout": "Et*4|||t*4L"},
        {"pipeline_parallel": 4, "pipeline_layout": "Et*4|t|t|t*2L"},
    ),
    (
        "MC045",
        {"pipeline_parallel": 2, "pipeline_layout": "E|t*4|t*3|tL"},
        {"pipeline_parallel": 2, "virtual_pipeline": 2, "pipeline_layout": "E|t*4|t*3|tL"},
    ),
    (
        "MC048",
        {"pipeline_parallel": 2, "pipeline_layout": "Et*4|t*4L", "shape__hybrid_pattern": "MEMEM*-E"},
        {"pipeline_parallel": 2, "shape__hybrid_pattern": "MEMEM*-E", "shape__mtp_num_layers": 1},
    ),
    (
        "MC035",
        {"pipeline_parallel": 3, "shape__hybrid_pattern": "MEMEM*-E"},
        {"pipeline_parallel": 2, "shape__hybrid_pattern": "MEMEM*-E", "shape__mtp_num_layers": 1},
    ),
    # dispatcher
    ("AT001", {"dispatcher": "deepep"}, DEEPEP),
    ("AT001", {"num_sms": 20}, {"num_sms": None}),
    ("AT002", {**HYBRIDEP, "device": "cpu"}, HYBRIDEP),
    ("AT007", {**NCCLEP, "stack": {"megatron_core": "0.18.0"}}, {**NCCLEP, "stack": {"megatron_core": "0.19.2"}}),
    ("AT007", {"stack": {"megatron_core": "0.12.0"}}, {"stack": {"megatron_core": "0.18.1"}}),
    ("AT008", {"dispatcher": "deepep", "num_sms": 20, "shape__num_experts": None}, DEEPEP),
    ("AT009", {**DEEPEP, "num_sms": 132}, {**DEEPEP, "num_sms": 130}),
    ("AT038", {**HYBRIDEP, "num_sms_preprocessing": 133}, {**HYBRIDEP, "num_sms_preprocessing": 132}),
    (
        "AT039",
        {**HYBRIDEP, "permute_fusion_into_hybridep": True, "num_blocks_permute": 133},
        {**HYBRIDEP, "permute_fusion_into_hybridep": True, "num_blocks_unpermute": 132},
    ),
    ("AT010", {**DEEPEP, "contract__precision": "fp32"}, DEEPEP),
    ("MC086", {"shared_expert_overlap": True, "dispatcher": "allgather"}, {"shared_expert_overlap": True}),
    ("MC086", {"shared_expert_overlap": True, "shape__shared_expert_size": None}, {"shared_expert_overlap": True}),
    (
        "AT032",
        {**DEEPEP, "shared_expert_overlap": True, "stack": {**STACK, "megatron_core": "0.16.1"}},
        {**DEEPEP, "shared_expert_overlap": True},
    ),
    ("MC087", {"shared_expert_overlap": True, "shape__moe_latent_size": 64}, {"shape__moe_latent_size": 64}),
    ("MC062", {**DEEPEP, "routing__token_policy": "capacity"}, {**HYBRIDEP, "routing__token_policy": "capacity"}),
    # limits of the backends
    ("MC065", {"dispatcher": "deepep", "num_sms": 20}, DEEPEP),
    ("MC067", {**DEEPEP, "num_sms": 21}, {**HYBRIDEP, "num_sms": 21}),
    ("MC067", {**DEEPEP, "num_sms": 21}, {**DEEPEP, "num_sms": 21, "stack": {**STACK, "deep_ep": "2.0.0"}}),
    (
        "MC068",
        {**DEEPEP, "expert_parallel": 12, "ranks": 12, "shape__num_experts": 24},
        {**DEEPEP, "expert_parallel": 24, "ranks": 24, "shape__num_experts": 24},
    ),
    ("MC069", {**HYBRIDEP, "expert_parallel": 12, "nodes": 3}, {**HYBRIDEP, "expert_parallel": 16, "nodes": 3}),
    (
        "AT011",
        {**HYBRIDEP, "expert_parallel": 128, "ranks": 128, "domain": 576, "shape__num_experts": 128},
        {**HYBRIDEP, "expert_parallel": 64, "ranks": 128, "domain": 576, "shape__num_experts": 128},
    ),
    (
        "AT012",
        {**HYBRIDEP, "expert_parallel": 2, "shape__num_experts": 2},
        {**HYBRIDEP, "expert_parallel": 2, "shape__num_experts": 4},
    ),
    ("AT013", {**HYBRIDEP, "shape__hidden_size": 264}, HYBRIDEP),
    ("AT013", {**DEEPEP, "shape__hidden_size": 384}, {**HYBRIDEP, "shape__hidden_size": 384}),
    (
        "AT014",
        {**DEEPEP, "shape__num_experts": 64, "shape__router_topk": 33},
        {**DEEPEP, "shape__num_experts": 64, "shape__router_topk": 32},
    ),
    ("AT014", {**DEEPEP, "shape__num_experts": 16384}, {**DEEPEP, "shape__num_experts": 8192}),
    ("AT015", {**NCCLEP, "contract__seq_length": 127}, NCCLEP),
    (
        "MC070",
        {**HYBRIDEP, **TWO_NODES, "contract__seq_length": 32768},
        {**HYBRIDEP, "nodes": 2, "contract__seq_length": 32768},
    ),
    ("AT019", {**DEEPEP, **TWO_NODES, "num_sms": 26}, {**DEEPEP, **TWO_NODES, "num_sms": 48}),
    ("AT019", {**DEEPEP, **TWO_NODES, "num_sms": 26}, {**DEEPEP, "nodes": 2, "num_sms": 26}),
    ("AT020", {**DEEPEP, "ranks": 4, "nodes": 2}, {**DEEPEP, "expert_parallel": 4, "ranks": 4, "nodes": 2}),
    # experts
    ("AT021", {"tokens_per_chunk": 128}, {**HYBRIDEP, "tokens_per_chunk": 128}),
    ("MC099", {"permute_fusion": True, "stack": {"torch": "2.9"}}, {"permute_fusion": True}),
    ("MC098", {"router_fusion": True, "stack": {"transformer_engine": "2.6.1"}}, {"router_fusion": True}),
    ("AT004", {"grouped_gemm": True, "stack": {}}, {"grouped_gemm": True}),
    ("MC107", {"op_fuser": True}, FUSED),
    ("MC107", {**FUSED, "offload_modules": ["moe_act"]}, {**FUSED, "offload_modules": ["fused_group_mlp"]}),
    ("MC083", {**HYBRIDEP, "rank_capacity_factor": 1.5}, {**HYBRIDEP, **FUSED, "rank_capacity_factor": 1.5}),
    (
        "AT033",
        {**HYBRIDEP, **FUSED, "rank_capacity_factor": 0.5},
        {**HYBRIDEP, **FUSED, "rank_capacity_factor": 0.5, "routing__token_policy": "rank_budget"},
    ),
    ("AT035", {"grouped_gemm": True, "shape__num_experts": None}, {"grouped_gemm": True}),
    ("AT035", {"router_fusion": True, "shape__num_experts": None}, {"router_fusion": True}),
    ("AT036", {**SELECTIVE, "recompute_modules": ["moe", "moe"]}, {**SELECTIVE, "recompute_modules": ["moe", "mlp"]}),
    ("AT036", {**ATTENTION, "cuda_graph_modules": ["attn", "attn"]}, ATTENTION),
    ("AT037", {**HYBRIDEP, "tokens_per_chunk": 1}, {**HYBRIDEP, "tokens_per_chunk": 64}),
    ("AT037", {**HYBRIDEP, "tokens_per_chunk": 1_000_000}, {**HYBRIDEP, "tokens_per_chunk": 128}),
    ("MC073", {**NCCLEP, "rank_capacity_factor": None}, NCCLEP),
    ("MC084", {**HYBRIDEP, "paged_stash": True}, {**NCCLEP, "paged_stash": True}),
    (
        "AT022",
        {**HYBRIDEP, "permute_fusion_into_hybridep": True, "env": {"NUM_OF_TOKENS_PER_CHUNK_COMBINE_API": "128"}},
        {**HYBRIDEP, "permute_fusion_into_hybridep": True, "tokens_per_chunk": 128, "env": {}},
    ),
    (
        "AT023",
        {**HYBRIDEP, "expert_parallel": 2, "tokens_per_chunk": 65},
        {**HYBRIDEP, "expert_parallel": 2, "tokens_per_chunk": 66},
    ),
    # expert-parallel overlap
    ("MC108", {**OVERLAP, "stack": {"torch": "2.5.1"}}, {**OVERLAP, "stack": {"torch": "2.6.0+cpu"}}),
    ("MC109", {**OVERLAP, "pipeline_parallel": 2}, {**OVERLAP, "pipeline_parallel": 2, "virtual_pipeline": 2}),
    ("MC110", {"ep_overlap": True}, OVERLAP),
    ("MC110", {**OVERLAP, "dispatcher": "allgather"}, OVERLAP),
    (
        "MC111",
        {**OVERLAP, **SELECTIVE, "recompute_modules": ["moe"]},
        {**OVERLAP, **SELECTIVE, "recompute_modules": ["mlp"]},
    ),
    ("MC112", {**OVERLAP, "contract__precision": "fp32"}, OVERLAP),
    ("MC113", {**OVERLAP, "shared_expert_overlap": True}, OVERLAP),
    ("MC114", {**OVERLAP, "shape__mtp_num_layers": 2}, {**OVERLAP, "shape__mtp_num_layers": 1}),
    (
        "AT025",
        {**OVERLAP, "shape__mtp_num_layers": 1, "stack": {**STACK, "megatron_core": "0.16.1"}},
        {**OVERLAP, "shape__mtp_num_layers": 1},
    ),
    (
        "AT027",
        {**OVERLAP, **LOCAL, "cuda_graph_modules": ["attn"], "stack": {**STACK, "megatron_core": "0.16.1"}},
        {**OVERLAP, **ATTENTION, "stack": {**STACK, "megatron_core": "0.16.1"}},
    ),
    (
        "MC115",
        {**OVERLAP, **GRAPHS, "cuda_graph_modules": ["attn", "mlp"]},
        {**OVERLAP, **ATTENTION},
    ),
    (
        "MC115",
        {**OVERLAP, **GRAPHS, "cuda_graph_modules": ["attn", "mlp"]},
        {**OVERLAP, **LOCAL, "cuda_graph_modules": ["attn", "mlp"]},
    ),
    ("MC116", {**OVERLAP, **GRAPHS}, {**OVERLAP, **ATTENTION}),
    ("MC117", {**NCCLEP, "ep_overlap": True, "offload_modules": ["expert_fc1"]}, {**NCCLEP, "ep_overlap": True}),
    ("MC119", {"delay_wgrad": True}, {**OVERLAP, "delay_wgrad": True}),
    (
        "MC122",
        {**OVERLAP, "delay_wgrad": True, "stack": {**STACK, "transformer_engine": "2.6"}},
        {**OVERLAP, "delay_wgrad": True, "stack": {**STACK, "transformer_engine": "2.7"}},
    ),
    (
        "MC120",
        {**OVERLAP, **GRAPHS, "delay_wgrad": True, "stack": {**STACK, "transformer_engine": "2.9"}},
        {**OVERLAP, **GRAPHS, "delay_wgrad": True, "stack": {**STACK, "transformer_engine": "2.10"}},
    ),
    (
        "MC121",
        {**OVERLAP, "delay_wgrad": True, "overlap_grad_reduce": True, "stack": {**STACK, "transformer_engine": "2.7"}},
        {**OVERLAP, "delay_wgrad": True, "overlap_grad_reduce": True, "stack": {**STACK, "transformer_engine": "2.8"}},
    ),
    (
        "MC121",
        {
            **OVERLAP,
            **GRAPHS,
            "delay_wgrad": True,
            "overlap_grad_reduce": True,
            "cuda_graph_modules": ["attn"],
            "stack": {**STACK, "transformer_engine": "2.11"},
        },
        {**OVERLAP, **GRAPHS, "delay_wgrad": True, "overlap_grad_reduce": True, "cuda_graph_modules": ["attn"]},
    ),
    # CUDA graphs
    ("AT005", {**LOCAL, "cuda_graph_modules": ["attn"], "device": "cpu"}, {"device": "cpu"}),
    ("AT024", {**ATTENTION, "stack": {}}, ATTENTION),
    ("MC128", {"cuda_graph_modules": ["attn"]}, {**LOCAL, "cuda_graph_modules": ["attn"]}),
    (
        "MC130",
        {**LOCAL, "cuda_graph_modules": ["moe_router"]},
        {**LOCAL, "cuda_graph_modules": ["moe_router", "moe_preprocess"]},
    ),
    ("MC131", {**GRAPHS, "cuda_graph_modules": ["moe", "moe_router"]}, {**GRAPHS, "cuda_graph_modules": ["moe"]}),
    (
        "MC132",
        {**GRAPHS, "cuda_graph_modules": ["attn", "moe_preprocess"]},
        {**GRAPHS, "cuda_graph_modules": ["attn", "moe_router", "moe_preprocess"]},
    ),
    (
        "MC133",
        {**GRAPHS, "cuda_graph_modules": ["moe_router"], "shape__num_experts": None},
        {**GRAPHS, "cuda_graph_modules": ["moe_router"]},
    ),
    (
        "MC134",
        {**GRAPHS, "cuda_graph_modules": ["mlp"], "shape__num_dense_layers": 0},
        {**GRAPHS, "cuda_graph_modules": ["mlp"]},
    ),
    (
        "AT026",
        {**GRAPHS, "cuda_graph_modules": ["mamba"]},
        {**GRAPHS, "cuda_graph_modules": ["mamba"], "shape__hybrid_pattern": "MEMEM*-E"},
    ),
    (
        "MC135",
        {**GRAPHS, "cuda_graph_modules": ["moe"]},
        {**GRAPHS, "cuda_graph_modules": ["moe"], "routing__token_policy": "capacity"},
    ),
    ("MC138", LOCAL, {**LOCAL, "cuda_graph_modules": ["attn"]}),
    ("MC139", {"cuda_graph_impl": "full_iteration"}, {"cuda_graph_impl": "full_iteration", "shape__num_experts": None}),
    (
        "MC139",
        {**HYBRIDEP, "cuda_graph_impl": "full_iteration", "routing__token_policy": "rank_budget"},
        {**HYBRIDEP, **FUSED, "cuda_graph_impl": "full_iteration", "rank_capacity_factor": 1.5},
    ),
    ("MC138", {**LOCAL, "routing__token_policy": "rank_budget"}, {**LOCAL, "routing__token_policy": "capacity"}),
    (
        "MC135",
        {**GRAPHS, "cuda_graph_modules": ["moe"], "routing__token_policy": "rank_budget"},
        {**GRAPHS, "cuda_graph_modules": ["moe"], "routing__token_policy": "capacity"},
    ),
    (
        "MC140",
        {**DEEPEP, "cuda_graph_impl": "full_iteration", "routing__token_policy": "capacity"},
        {**HYBRIDEP, "cuda_graph_impl": "full_iteration", "routing__token_policy": "capacity"},
    ),
    (
        "MC141",
        {**ATTENTION, "recompute_granularity": "full"},
        {**ATTENTION, **SELECTIVE, "recompute_modules": ["mlp"]},
    ),
    (
        "MC142",
        {**GRAPHS, "cuda_graph_modules": ["attn", "moe_router"], **SELECTIVE, "recompute_modules": ["moe"]},
        {**ATTENTION, **SELECTIVE, "recompute_modules": ["moe"]},
    ),
    (
        "MC142",
        {**GRAPHS, "cuda_graph_modules": ["attn", "moe_router"], **SELECTIVE, "recompute_modules": ["moe"]},
        {
            **LOCAL,
            "cuda_graph_modules": ["attn", "moe_router", "moe_preprocess"],
            **SELECTIVE,
            "recompute_modules": ["moe"],
        },
    ),
    (
        "MC144",
        {**LOCAL, "cuda_graph_modules": ["attn"], "offload_modules": ["core_attn"]},
        {**LOCAL, "cuda_graph_modules": ["attn"], "offload_modules": ["moe_act"]},
    ),
    ("MC144", {**LOCAL, "offload_modules": ["moe_act"]}, {**GRAPHS, "offload_modules": ["moe_act"]}),
    (
        "MC146",
        {**HYBRIDEP, **FUSED, "cuda_graph_impl": "full_iteration", "offload_modules": ["mlp_norm"]},
        {**HYBRIDEP, **FUSED, "cuda_graph_impl": "full_iteration"},
    ),
    (
        "MC147",
        {**ATTENTION, "offload_modules": ["core_attn"], "stack": {**STACK, "torch": "2.8"}},
        {**ATTENTION, "offload_modules": ["core_attn"]},
    ),
    (
        "MC055",
        {**GRAPHS, "cuda_allocator": "expandable_segments", "env": {}},
        {**GRAPHS, "cuda_allocator": "expandable_segments", "env": {"NCCL_GRAPH_REGISTER": "0"}},
    ),
    # recompute and offload
    (
        "MC152",
        {"recompute_granularity": "full"},
        {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1},
    ),
    ("MC153", {"recompute_method": "uniform"}, {"recompute_method": None}),
    ("MC155", {"recompute_modules": ["mlp"]}, {**SELECTIVE, "recompute_modules": ["mlp"]}),
    ("MC155", SELECTIVE, {**SELECTIVE, "recompute_modules": ["mlp"]}),
    (
        "MC156",
        {**SELECTIVE, "recompute_modules": ["moe_act"]},
        {**SELECTIVE, "recompute_modules": ["moe_act"], "grouped_gemm": True},
    ),
    (
        "MC157",
        {**SELECTIVE, "recompute_modules": ["mla_up_proj"]},
        {**SELECTIVE, "recompute_modules": ["mla_up_proj"], "shape__attention": "mla"},
    ),
    (
        "MC158",
        {**SELECTIVE, "recompute_modules": ["gdn_norm_out"]},
        {**SELECTIVE, "recompute_modules": ["gdn_norm_out"], **GDN},
    ),
    (
        "MC159",
        {**SELECTIVE, "recompute_modules": ["shared_experts"], "shared_expert_overlap": True},
        {**SELECTIVE, "recompute_modules": ["shared_experts"]},
    ),
    (
        "AT028",
        {**SELECTIVE, "recompute_modules": ["moe"], "shape__num_experts": None},
        {**SELECTIVE, "recompute_modules": ["moe"]},
    ),
    (
        "AT028",
        {**SELECTIVE, "recompute_modules": ["mlp"], "shape__num_dense_layers": 0},
        {**SELECTIVE, "recompute_modules": ["mlp"], "shape__num_dense_layers": 0, "shape__hybrid_pattern": "MEMEM*-E"},
    ),
    ("MC163", {"offload_modules": ["core_attn"], "stack": {}}, {"offload_modules": ["core_attn"]}),
    ("MC163", {"offload_modules": ["core_attn"], "device": "cpu"}, {"offload_modules": ["core_attn"]}),
    ("MC164", {"offload_modules": ["attn_proj"]}, {"offload_modules": ["core_attn", "attn_proj"]}),
    (
        "MC165",
        {"offload_modules": ["moe_act"], **SELECTIVE, "recompute_modules": ["moe"]},
        {"offload_modules": ["moe_act"], **SELECTIVE, "recompute_modules": ["mlp"]},
    ),
    ("MC167", {"offload_modules": ["fused_group_mlp"]}, {"offload_modules": ["fused_group_mlp"], **FUSED}),
    (
        "AT029",
        {"offload_modules": ["core_attn"], **SELECTIVE, "recompute_modules": ["core_attn"]},
        {"offload_modules": ["core_attn"], **SELECTIVE, "recompute_modules": ["mlp"]},
    ),
    (
        "MC056",
        {"offload_modules": ["core_attn"], "env": {}},
        {"offload_modules": ["core_attn"], "env": {"NVTE_CPU_OFFLOAD_V1": "1"}},
    ),
    # precision
    ("AT030", {**FP8, "device": "cpu"}, FP8),
    ("AT031", {"contract__precision": "fp8_mxfp8"}, {"contract__precision": "fp8_mxfp8", "accelerator": "B200"}),
    (
        "MC160",
        {"contract__precision": "fp8_delayed", **SELECTIVE, "recompute_modules": ["layernorm"]},
        {**FP8, **SELECTIVE, "recompute_modules": ["layernorm"]},
    ),
    (
        "MC174",
        {"contract__precision": "fp4_nvfp4", "stack": {"transformer_engine": "2.6"}},
        {"contract__precision": "fp4_nvfp4"},
    ),
    ("MC175", {**FP8, "stack": {"transformer_engine": "1.6"}}, FP8),
    # data parallelism, and what ranks share with each other
    ("AT040", {"layernorm_sm_margin": 132}, {"layernorm_sm_margin": 131}),
    ("AT041", {"gpus_per_numa_node": 1000, "gpus_per_node": 4}, {"gpus_per_numa_node": 2, "gpus_per_node": 4}),
    (
        "MC178",
        {"overlap_param_gather": True},
        {"overlap_param_gather": True, "overlap_grad_reduce": True, "distributed_optimizer": True},
    ),
]

WARNINGS: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    (
        "AT016",
        {**NCCLEP, "expert_parallel": 128, "nodes": 16, "shape__num_experts": 128},
        {**NCCLEP, "expert_parallel": 64, "nodes": 16, "shape__num_experts": 128},
    ),
    ("MC057", {**FUSED, "env": {}}, {**FUSED, "env": {"NVTE_CUTEDSL_FUSED_GROUPED_MLP": "1"}}),
    (
        "MC051",
        {**TP8, "cuda_device_max_connections": 32, "env": {}},
        {**TP8, "cuda_device_max_connections": 1, "env": {}},
    ),
]


@pytest.mark.parametrize(("rule", "broken", "legal"), CASES, ids=[f"{i}-{case[0]}" for i, case in enumerate(CASES)])
def test_the_rule_refuses_one_and_lets_the_other_pass(
    candidate: Callable[..., Candidate], rule: str, broken: dict[str, Any], legal: dict[str, Any]
) -> None:
    refused = {violation.rule: violation for violation in check(candidate(**broken))}
    passed = {violation.rule for violation in check(candidate(**legal))}
    assert not is_legal(candidate(**broken))
    assert is_legal(candidate(**legal)) == (not passed)

    assert rule in refused
    assert refused[rule].amount > 0
    assert refused[rule].message
    assert rule not in passed


@pytest.mark.parametrize(("rule", "broken", "fine"), WARNINGS, ids=[case[0] for case in WARNINGS])
def test_the_rule_warns_of_one_and_not_of_the_other(
    candidate: Callable[..., Candidate], rule: str, broken: dict[str, Any], fine: dict[str, Any]
) -> None:
    [warning] = [found for found in warnings(candidate(**broken)) if found.rule == rule]

    assert warning.amount > 0
    assert rule not in {found.rule for found in check(candidate(**broken))}
    assert rule not in {found.rule for found in warnings(candidate(**fine))}


def test_every_rule_has_a_case_and_a_source() -> None:
    assert {rule.id for rule in RULES if rule.severity == "refuse"} == {case[0] for case in CASES}
    assert {rule.id for rule in RULES if rule.severity == "warn"} == {case[0] for case in WARNINGS}
    assert len({rule.id for rule in RULES}) == len(RULES)
    assert all(rule.source for rule in RULES)


def test_the_plain_baseline_is_legal(candidate: Callable[..., Candidate]) -> None:
    assert check(candidate()) == []


def test_an_unknown_stack_holds_version_rules_back(candidate: Callable[..., Candidate]) -> None:
    assert check(candidate(permute_fusion=True, grouped_gemm=True, stack=None)) == []


def test_suspect_rules_are_told_from_certain_ones(candidate: Callable[..., Candidate]) -> None:
    suspect = check(candidate(**{**DEEPEP, **TWO_NODES, "num_sms": 32}))
    mixed = check(candidate(**{**DEEPEP, **TWO_NODES, "num_sms": 33}))

    assert [(violation.rule, violation.certainty) for violation in suspect] == [("AT019", "suspect")]
    assert only_suspect(suspect)
    assert not only_suspect(mixed)
    assert not only_suspect([])
    assert {rule.id for rule in RULES if rule.certainty == "suspect"} == {
        "MC070", "AT019", "AT020", "AT022", "AT037", "AT039",
    }  # fmt: skip


small = st.sampled_from([1, 2, 3, 4, 8])


@given(tensor=small, pipeline=small, virtual=small, expert=small, context=small, micro=small)
def test_what_is_legal_divides_the_gang_the_batch_and_the_layers(
    tensor: int, pipeline: int, virtual: int, expert: int, context: int, micro: int
) -> None:
    shape = ModelShape("m", 8, 64, 8, 128, 128, num_experts=8, moe_ffn_hidden_size=32)
    judged = Candidate(
        settings=resolve({
            "tensor_parallel": tensor, "pipeline_parallel": pipeline, "virtual_pipeline": virtual,
            "expert_parallel": expert, "context_parallel": context, "micro_batch_size": micro,
            "sequence_parallel": tensor > 1,
        }),
        shape=shape, contract=Contract(seq_length=64, global_batch_size=16), gang=GangShape(1, 8, "cpu"),
    )  # fmt: skip

    violations = check(judged)

    assert all(violation.amount > 0 for violation in violations)
    if not violations:
        data_parallel = 8 // (tensor * pipeline * context)
        assert data_parallel * tensor * pipeline * context == 8
        assert 8 % (expert * pipeline) == 0
        assert 16 % (micro * data_parallel) == 0
        assert 8 % (pipeline * virtual) == 0
        assert virtual == 1 or (16 // (micro * data_parallel)) % pipeline == 0
