"""The trial's description -> Megatron-Core configuration objects.

Tuned settings come through :mod:`autotune_policies.megatron_core`, which knows the installed release; what is written
here is the model's shape, the contract, and the few choices that hold in every trial.
"""

from typing import Any

import torch
import torch.nn.functional as functional
from megatron.core.distributed import DistributedDataParallelConfig
from megatron.core.optimizer import OptimizerConfig
from megatron.core.transformer import MLATransformerConfig, TransformerConfig

from autotune_policies.megatron_core import MegatronCoreFields
from autotune_trials.native.refusal import Rejected
from autotune_trials.spec import Contract, ModelShape, TrialSpec

LEARNING_RATE = 1e-3

_FP8: dict[str, dict[str, Any]] = {
    "fp8_delayed": {"fp8": "hybrid", "fp8_recipe": "delayed"},
    "fp8_tensorwise": {"fp8": "hybrid", "fp8_recipe": "tensorwise"},
    "fp8_blockwise": {"fp8": "e4m3", "fp8_recipe": "blockwise"},
    "fp8_mxfp8": {"fp8": "e4m3", "fp8_recipe": "mxfp8"},
    "fp4_nvfp4": {"fp4": "e2m1", "fp4_recipe": "nvfp4"},
}
"""Low-precision recipes by the contract's name for them; bf16 remains the type of weights and residuals."""

PRECISIONS = ("bf16", "fp32", *_FP8)


def transformer_config(spec: TrialSpec, fields: MegatronCoreFields, transformer_engine: bool) -> TransformerConfig:
    """The model configuration.

    Args:
        spec: The trial.
        fields: Its settings, rendered for the installed release.
        transformer_engine: Whether layers are built from Transformer Engine.

    Raises:
        Rejected: a precision that nobody knows.
        AssertionError, ValueError: Megatron refuses the combination.
    """
    latent = spec.model.attention == "mla"
    values: dict[str, Any] = {
        **_shape(spec.model),
        **(_latent_attention(spec.model) if latent else {}),
        **_precision(spec.contract),
        **_kernels(spec, transformer_engine),
        "moe_router_force_load_balancing": spec.contract.routing.source == "forced_balance",
        # Capture has to fall into the warm-up, or a measured step would contain it.
        "cuda_graph_warmup_steps": max(1, min(3, spec.contract.warmup_steps - 1)),
        **fields.transformer,
    }
    return (MLATransformerConfig if latent else TransformerConfig)(**values)


def ddp_config(spec: TrialSpec, fields: MegatronCoreFields) -> DistributedDataParallelConfig:
    """How gradients are reduced; always in fp32, so that layouts can be compared by their loss."""
    return DistributedDataParallelConfig(grad_reduce_in_fp32=True, **fields.ddp)


def optimizer_config(spec: TrialSpec, fields: MegatronCoreFields) -> OptimizerConfig:
    """Adam with gradient clipping, in the contract's precision."""
    bf16 = spec.contract.precision != "fp32"
    return OptimizerConfig(
        optimizer="adam",
        lr=LEARNING_RATE,
        weight_decay=0.01,
        clip_grad=1.0,
        bf16=bf16,
        params_dtype=torch.bfloat16 if bf16 else torch.float32,
        use_distributed_optimizer=fields.ddp["use_distributed_optimizer"],
        overlap_param_gather=fields.ddp["overlap_param_gather"],
    )


def _shape(model: ModelShape) -> dict[str, Any]:
    values: dict[str, Any] = {
        "num_layers": model.num_layers,
        "hidden_size": model.hidden_size,
        "num_attention_heads": model.num_attention_heads,
        "ffn_hidden_size": model.ffn_hidden_size,
        "num_query_groups": model.num_query_groups,
        "kv_channels": model.kv_channels,
        "qk_layernorm": model.qk_layernorm,
        "mtp_num_layers": model.mtp_num_layers or None,
        "normalization": "RMSNorm",
        "gated_linear_unit": True,
        "activation_func": functional.silu,
        "add_bias_linear": False,
        "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
    }
    if model.num_experts:
        values |= {
            "num_moe_experts": model.num_experts,
            "moe_router_topk": model.router_topk,
            "moe_ffn_hidden_size": model.moe_ffn_hidden_size,
            "moe_shared_expert_intermediate_size": model.shared_expert_size,
            "moe_layer_freq": [0] * model.num_dense_layers + [1] * (model.num_layers - model.num_dense_layers),
            "moe_router_score_function": model.router_score_function,
            "moe_router_num_groups": model.router_num_groups,
            "moe_router_group_topk": model.router_group_topk,
            "moe_router_enable_expert_bias": model.expert_bias,
            "moe_router_load_balancing_type": "aux_loss" if model.aux_loss_coeff else "none",
            "moe_aux_loss_coeff": model.aux_loss_coeff,
            "moe_router_dtype": "fp32",
            # A softmax over one chosen expert would always be 1 and carry no gradient to the router.
            "moe_router_pre_softmax": model.router_topk == 1 and model.router_score_function == "softmax",
        }
    return values


def _latent_attention(model: ModelShape) -> dict[str, Any]:
    sizes = {
        "q_lora_rank": model.q_lora_rank,
        "kv_lora_rank": model.kv_lora_rank,
        "qk_head_dim": model.qk_head_dim,
        "qk_pos_emb_head_dim": model.qk_pos_emb_head_dim,
        "v_head_dim": model.v_head_dim,
    }
    # None means "full" for the query rank; the other sizes fall back to Megatron's own.
    given = {name: size for name, size in sizes.items() if size is not None or name == "q_lora_rank"}
    return {"multi_latent_attention": True, "rope_type": "rope", "rotary_base": model.rotary_base, **given}


def _precision(contract: Contract) -> dict[str, Any]:
    if contract.precision not in PRECISIONS:
        raise Rejected(f"precision={contract.precision!r} is unknown; known: {', '.join(PRECISIONS)}")
    bf16 = contract.precision != "fp32"
    kind = torch.bfloat16 if bf16 else torch.float32
    return {"bf16": bf16, "params_dtype": kind, "pipeline_dtype": kind, **_FP8.get(contract.precision, {})}


def _kernels(spec: TrialSpec, transformer_engine: bool) -> dict[str, Any]:
    """Fused kernels: whatever the device has, the same in every trial."""
    cuda = spec.gang.device == "cuda"
    return {
        "transformer_impl": "transformer_engine" if transformer_engine else "local",
        "bias_activation_fusion": cuda,
        "bias_dropout_fusion": cuda,
        "masked_softmax_fusion": transformer_engine,
        "cross_entropy_loss_fusion": cuda,
        "apply_rope_fusion": transformer_engine and spec.model.attention == "mha",
        "gradient_accumulation_fusion": cuda and _accumulation_kernel(),
        "use_cpu_initialization": not cuda,
    }


def _accumulation_kernel() -> bool:
    from megatron.core.tensor_parallel import layers

    return bool(layers._grad_accum_fusion_available)
