"""One configuration as memory sees it: the parallel sizes, one rank's share of a micro-batch, what is recomputed."""

import math
from dataclasses import dataclass

from autotune.predict.activations import Share
from autotune.predict.numerics import Numerics
from autotune_policies.settings import Settings
from autotune_trials.spec import Contract, ModelShape

NATURAL_IMBALANCE = 1.3
"""Rows of the busiest expert rank over the mean when the router decides, summed over the layers of a stage.

Source: the DeepSeek-V3 proxy of Megatron's release tests: 1.3 explains its peaks on both of its clusters after 5,000
steps of real data, 2.5 those of the first 2,000.
"""


FP4_BYTES = 0.5 + 1 / 16
"""Bytes of one fp4 element with its share of the scale byte of a block of 16 (NVFP4)."""

_GATHERED_IN_FP8 = ("fp8_mxfp8", "fp8_mx", "fp8_tensorwise", "fp8_cs", "fp8_delayed", "fp8_ds")
"""Precisions whose recipes keep and gather parameters in fp8 (``megatron/bridge/training/mixed_precision.py``)."""


@dataclass(frozen=True)
class MemoryPlan:
    """Everything about a configuration that is the same on all pipeline ranks.

    Attributes:
        model: Architecture.
        numerics: Formats of the training program.
        tensor: Tensor-parallel ranks.
        pipeline: Pipeline ranks.
        virtual: Model chunks per pipeline rank.
        context: Context-parallel ranks.
        expert: Expert-parallel ranks.
        expert_tensor: Ranks that split one expert.
        layout: Pipeline layout; None = even.
        dense_shards: Ranks that share out the optimizer state of everything but routed experts.
        expert_shards: Ranks that share out the optimizer state of routed experts.
        num_microbatches: Micro-batches per step on one rank.
        share: One rank's part of one micro-batch.
        fp8: Whether linear layers compute in fp8 or narrower.
        fp8_weights_only: Whether weights exist in fp8 only.
        weight_copy_bytes: Bytes per element of one quantized copy of a linear weight.
        fp32: Whether everything is fp32.
        imbalance: Rows on the busiest expert rank over the mean.
        recompute: Recomputed modules; ``("full",)`` = whole layers.
        recompute_layers: Whole layers recomputed per chunk; None = all of them.
        recompute_group: Whole layers recomputed at a time.
        offload: Modules whose activations wait in host memory.
        ep_overlap: Whether two micro-batches run against each other.
        graphs_hold_attention: Whether CUDA graphs keep static hidden states per layer and micro-batch.
    """

    model: ModelShape
    numerics: Numerics
    tensor: int
    pipeline: int
    virtual: int
    context: int
    expert: int
    expert_tensor: int
    layout: str | None
    dense_shards: int
    expert_shards: int
    num_microbatches: int
    share: Share
    fp8: bool
    fp8_weights_only: bool
    weight_copy_bytes: float
    fp32: bool
    imbalance: float
    recompute: tuple[str, ...]
    recompute_layers: int | None
    recompute_group: int
    offload: tuple[str, ...]
    ep_overlap: bool
    graphs_hold_attention: bool

    @property
    def vocabulary(self) -> int:
        """Rows of the embedding on one rank, after Megatron's padding to a multiple of 128 per tensor-parallel rank."""
        return 128 * math.ceil(self.model.vocab_size / (128 * self.tensor))


def make_memory_plan(
    model: ModelShape,
    contract: Contract,
    settings: Settings,
    world_size: int,
    numerics: Numerics,
    imbalance: float | None = None,
) -> MemoryPlan:
    """The plan of one configuration.

    Raises:
        ValueError: the number of ranks is no multiple of the parallel sizes, or an imbalance below 1.
    """
    if imbalance is not None and not imbalance >= 1.0:
        raise ValueError(f"imbalance={imbalance} must be at least 1: it is the fullest rank's load over the mean")
    tensor, context = _number(settings, "tensor_parallel"), _number(settings, "context_parallel")
    pipeline, virtual = _number(settings, "pipeline_parallel"), _number(settings, "virtual_pipeline")
    expert, expert_tensor = _number(settings, "expert_parallel"), _number(settings, "expert_tensor_parallel")
    for what, size in (
        ("tensor x pipeline x context parallel", tensor * pipeline * context),
        ("expert x expert-tensor x pipeline parallel", expert * expert_tensor * pipeline),
    ):
        if world_size % size:
            raise ValueError(f"{world_size} ranks are no multiple of {what} = {size}")
    sharded = bool(settings["distributed_optimizer"])
    micro_batch = _number(settings, "micro_batch_size")
    data_parallel = world_size // (tensor * pipeline * context)
    layout = settings.get("pipeline_layout")
    load = imbalance if imbalance is not None else _imbalance(contract, settings)
    recompute, layers, group = _recompute(settings)
    offload = settings.get("offload_modules")
    return MemoryPlan(
        model=model,
        numerics=numerics,
        tensor=tensor,
        pipeline=pipeline,
        virtual=virtual,
        context=context,
        expert=expert,
        expert_tensor=expert_tensor,
        layout=layout if isinstance(layout, str) else None,
        dense_shards=world_size // (tensor * pipeline) if sharded else 1,
        expert_shards=world_size // (expert * expert_tensor * pipeline) if sharded else 1,
        num_microbatches=max(1, contract.global_batch_size // (micro_batch * data_parallel)),
        share=_share(model, contract, settings, load),
        fp8=_narrow(contract.precision),
        fp8_weights_only=numerics.fp8_parameters and contract.precision in _GATHERED_IN_FP8,
        weight_copy_bytes=FP4_BYTES if contract.precision.endswith("fp4") else 1.0,
        fp32=contract.precision == "fp32",
        imbalance=load,
        recompute=recompute,
        recompute_layers=layers,
        recompute_group=group,
        offload=tuple(sorted(offload)) if isinstance(offload, list) else (),
        ep_overlap=bool(settings["ep_overlap"]),
        graphs_hold_attention=_graphs_hold_attention(settings),
    )


def _share(model: ModelShape, contract: Contract, settings: Settings, load: float) -> Share:
    tensor, context = _number(settings, "tensor_parallel"), _number(settings, "context_parallel")
    expert, expert_tensor = _number(settings, "expert_parallel"), _number(settings, "expert_tensor_parallel")
    tokens = _number(settings, "micro_batch_size") * contract.seq_length / context
    # Every tensor-parallel rank dispatches its own part of the tokens; all tensor ranks of an expert get them.
    sent = tokens / tensor * expert_tensor if model.num_experts else 0.0
    fused = settings.get("dispatcher") == "hybridep" and settings.get("permute_fusion_into_hybridep")
    received = received_rows(sent, expert, model.router_topk) if fused else 0.0
    element = 4.0 if contract.precision == "fp32" else 2.0
    fp8 = _narrow(contract.precision)
    return Share(
        tokens=tokens,
        stream_tokens=tokens / tensor if settings["sequence_parallel"] else tokens,
        tensor_parallel=tensor,
        expert_tensor_parallel=expert_tensor,
        routed_rows=sent * model.router_topk * load,
        element_bytes=element,
        linear_input_bytes=_quantized_bytes(contract.precision) if fp8 else element,
        context_parallel=context,
        quantized=fp8,
        received_rows=received * load,
    )


def received_rows(tokens: float, expert_parallel: int, topk: int) -> float:
    """Tokens a rank receives when every rank sends this many, balanced, and each goes once to each rank it visits.

    HybridEP with the permutation inside keeps them until the backward pass. Source: one measured peak, which is 4.4 GiB
    above the same run with alltoall (Qwen3-30B on 16 H100s, 48 layers).
    """
    if expert_parallel == 1:
        return 0.0
    return tokens * expert_parallel * (1 - (1 - 1 / expert_parallel) ** topk)


def _number(settings: Settings, name: str) -> int:
    value = settings[name]
    assert isinstance(value, int), name
    return value


def _narrow(precision: str) -> bool:
    """Whether linear layers compute in fp8 or fp4 (``fp8_mx``, ``nvfp4``)."""
    return precision.startswith("fp8") or precision.endswith("fp4")


def _quantized_bytes(precision: str) -> float:
    """Bytes per element of a saved linear input: the value, and one scale byte per block of 32 (fp4: of 16)."""
    return FP4_BYTES if precision.endswith("fp4") else 1 + 1 / 32


def _imbalance(contract: Contract, settings: Settings) -> float:
    capacity = settings.get("rank_capacity_factor")
    if isinstance(capacity, int | float) and not settings.get("paged_stash"):
        return float(capacity)
    if contract.routing.token_policy == "capacity" or contract.routing.source == "forced_balance":
        return 1.0
    return NATURAL_IMBALANCE


def _recompute(settings: Settings) -> tuple[tuple[str, ...], int | None, int]:
    """Recomputed modules; whole layers per chunk that are (None = all); whole layers at a time."""
    granularity = settings.get("recompute_granularity")
    if granularity == "selective":
        named = settings.get("recompute_modules")
        return (tuple(sorted(named)) if isinstance(named, list) and named else ("core_attn",)), None, 1
    if granularity != "full":
        return (), None, 1
    number = settings.get("recompute_num_layers")
    layers = number if isinstance(number, int) else None
    if settings.get("recompute_method") == "block":
        return ("full",), layers, 1
    return ("full",), None, layers or 1


def _graphs_hold_attention(settings: Settings) -> bool:
    if settings.get("cuda_graph_impl") == "none":
        return False
    modules = settings.get("cuda_graph_modules")
    return not modules or (isinstance(modules, list) and ("attn" in modules or "mamba" in modules))
