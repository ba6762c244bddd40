"""The names that canonical settings have in each Megatron-Core release: tables only, read by ``megatron_core``."""

from collections.abc import Mapping

from autotune_policies.backends import BACKENDS

Release = tuple[int, int]

Field = None | bool | int | float | str | list[str]

SAME_VALUE: Mapping[str, str] = {
    "tensor_parallel": "tensor_model_parallel_size",
    "sequence_parallel": "sequence_parallel",
    "pipeline_parallel": "pipeline_model_parallel_size",
    "pipeline_layout": "pipeline_model_parallel_layout",
    "context_parallel": "context_parallel_size",
    "expert_parallel": "expert_model_parallel_size",
    "expert_tensor_parallel": "expert_tensor_parallel_size",
    "permute_fusion": "moe_permute_fusion",
    "router_fusion": "moe_router_fusion",
    "grouped_gemm": "moe_grouped_gemm",
    "shared_expert_overlap": "moe_shared_expert_overlap",
    "ep_overlap": "overlap_moe_expert_parallel_comm",
    "delay_wgrad": "delay_wgrad_compute",
    "recompute_granularity": "recompute_granularity",
    "recompute_method": "recompute_method",
    "recompute_num_layers": "recompute_num_layers",
    "recompute_modules": "recompute_modules",
    "micro_batch_size": "micro_batch_size",
    "distributed_optimizer": "use_distributed_optimizer",
    "overlap_grad_reduce": "overlap_grad_reduce",
    "overlap_param_gather": "overlap_param_gather",
}
"""Settings that every release writes to one field, value unchanged."""

SAME_VALUE_SINCE: Mapping[str, tuple[str, Release]] = {
    "num_sms_preprocessing": ("moe_hybridep_num_sms_preprocessing", (0, 18)),
    "permute_fusion_into_hybridep": ("moe_permute_fusion_into_hybridep", (0, 17)),
    "num_blocks_permute": ("moe_hybridep_num_blocks_permute", (0, 17)),
    "num_blocks_unpermute": ("moe_hybridep_num_blocks_unpermute", (0, 17)),
    "rank_capacity_factor": ("moe_expert_rank_capacity_factor", (0, 18)),
    "paged_stash": ("moe_paged_stash", (0, 18)),
    "op_fuser": ("use_transformer_engine_op_fuser", (0, 18)),
}
"""The same for fields that came later (field, first release); before that only the default can be had."""

UNUSED: Mapping[str, Field] = {
    "moe_enable_deepep": False,
    "moe_layer_recompute": False,
    "enable_cuda_graph": False,
    "external_cuda_graph": False,
    "num_layers_in_first_pipeline_stage": None,
    "num_layers_in_last_pipeline_stage": None,
    "account_for_embedding_in_pipeline_split": False,
    "account_for_loss_in_pipeline_split": False,
}
"""Older or other ways to say what a canonical setting says: deprecated switches, and the uneven pipeline
splits, which Megatron-Core refuses beside a layout and which would make "even split" untrue without one."""

BACKEND_FIELDS: tuple[tuple[str, str, Release, Field], ...] = tuple(
    (row.name, field, since, default) for row in BACKENDS.values() for field, since, default in row.fields
)
"""Fine print of one backend (backend, field, first release, class default): a recipe's own value stays while
that backend is chosen, and goes with it."""

VALUES_SINCE: Mapping[tuple[str, str], Release] = {
    **{("dispatcher", row.name): row.since for row in BACKENDS.values()},
    ("recompute_modules", "gdn_norm_out"): (0, 19),
    ("offload_modules", "fused_group_mlp"): (0, 19),
}
"""First release that knows a value."""
