"""A candidate's settings as the plain numbers that the time model works with."""

from dataclasses import dataclass

from autotune.errors import RequestError
from autotune.predict.hardware import Hardware
from autotune.predict.imbalance import rank_imbalance
from autotune.predict.layers import assumed_layout
from autotune.predict.validity import outside
from autotune.predict.work import Work
from autotune_policies.settings import Settings
from autotune_trials.spec import Contract, ModelShape


@dataclass(frozen=True)
class Candidate:
    """The settings as plain numbers.

    Attributes:
        tensor: Tensor-parallel ranks.
        pipeline: Pipeline ranks.
        virtual: Model chunks per pipeline rank.
        context: Context-parallel ranks.
        expert: Expert-parallel ranks.
        expert_tensor: Ranks that split one expert.
        micro_batches: Micro-batches per step and data-parallel rank.
        data: Ranks that share the optimizer of dense parameters (data x context parallel).
        expert_data: Ranks that share the optimizer of one expert.
        work: What one micro-batch's block time depends on.
        overlap: Expert-parallel communication runs beside compute.
        graph: CUDA-graph implementation.
        graph_modules: What it captures.
        static_shapes: The host need not wait for token counts.
        layout: Pipeline layout; null = even, or assumed where that is impossible.
        sharded: Data-parallel ranks share out the optimizer.
        reduce_hidden: Gradients are reduced during the backward pass.
        gather_hidden: Parameters are gathered during the forward pass.
        notes: Assumptions made on the way.
        outside: Where the candidate leaves what was measured.
    """

    tensor: int
    pipeline: int
    virtual: int
    context: int
    expert: int
    expert_tensor: int
    micro_batches: int
    data: int
    expert_data: int
    work: Work
    overlap: bool
    graph: str
    graph_modules: frozenset[str]
    static_shapes: bool
    layout: str | None
    sharded: bool
    reduce_hidden: bool
    gather_hidden: bool
    notes: tuple[str, ...] = ()
    outside: tuple[str, ...] = ()


def candidate_of(
    hardware: Hardware,
    model: ModelShape,
    contract: Contract,
    settings: Settings,
    num_gpus: int,
    imbalance: float | None,
) -> Candidate:
    """The plan of one candidate.

    Raises:
        RequestError: GPUs, batch and parallel sizes that do not divide.
    """
    tensor, pipeline = _int(settings, "tensor_parallel"), _int(settings, "pipeline_parallel")
    context, micro = _int(settings, "context_parallel"), _int(settings, "micro_batch_size")
    expert, expert_tensor = _int(settings, "expert_parallel"), _int(settings, "expert_tensor_parallel")
    data, left = divmod(num_gpus, tensor * pipeline * context)
    if left or not data:
        replica = tensor * pipeline * context
        raise RequestError(f"gpus={num_gpus} must be a multiple of {replica} (tensor x pipeline x context)")
    if model.num_experts and model.num_experts % expert:
        raise RequestError(f"expert_parallel={expert} must divide num_experts={model.num_experts}")
    expert_data, left = divmod(num_gpus, expert * expert_tensor * pipeline)
    if left or not expert_data:
        span = expert * expert_tensor * pipeline
        raise RequestError(f"gpus={num_gpus} must be a multiple of {span} (expert x expert-tensor x pipeline)")
    micro_batches, left = divmod(contract.global_batch_size, data * micro)
    if left or not micro_batches:
        raise RequestError(
            f"global_batch_size={contract.global_batch_size} must be a multiple of {data * micro} "
            "(data-parallel ranks x micro_batch_size)"
        )
    tokens = max(1, contract.seq_length * micro // context)
    recompute: frozenset[str] = frozenset()
    if settings.get("recompute_granularity") == "selective":
        recompute = _names(settings, "recompute_modules")
    if settings.get("recompute_granularity") == "full":
        recompute = frozenset({"full"})
    notes: list[str] = []
    balance = rank_imbalance(contract.routing, tokens // tensor, model.router_topk, expert)
    if imbalance is not None:
        balance = imbalance
    elif contract.routing.source != "forced_balance":
        source = contract.routing.source
        notes.append(f"routing {source} was not measured: the fullest rank is taken {balance:.2f} x the mean")
    notes.extend(_not_modelled(model, contract, settings))
    graph = str(settings.get("cuda_graph_impl") or "none")
    sms = settings.get("num_sms")
    work = Work(
        tokens=tokens,
        seq_length=contract.seq_length,
        tensor_parallel=tensor,
        context_parallel=context,
        expert_parallel=expert,
        expert_tensor_parallel=expert_tensor,
        num_domains=_domains(hardware, expert * expert_tensor, expert),
        precision=contract.precision,
        dispatcher=str(settings.get("dispatcher") or "alltoall"),
        num_sms=sms if isinstance(sms, int) else None,
        permute_fusion=bool(settings.get("permute_fusion") or settings.get("permute_fusion_into_hybridep")),
        recompute=recompute,
        imbalance=balance,
        shared_overlap=bool(settings.get("shared_expert_overlap")),
        op_fuser=bool(settings.get("op_fuser")),
        recompute_layers=_block_layers(settings),
    )
    layout = settings.get("pipeline_layout")
    if layout is None:
        assumed = assumed_layout(model, pipeline * _int(settings, "virtual_pipeline"))
        if assumed is not None:
            notes.append(f"{model.num_layers} layers do not split evenly and no layout is given: assumed {assumed}")
    return Candidate(
        tensor=tensor,
        pipeline=pipeline,
        virtual=_int(settings, "virtual_pipeline"),
        context=context,
        expert=expert,
        expert_tensor=expert_tensor,
        micro_batches=micro_batches,
        data=data * context,
        expert_data=expert_data,
        work=work,
        overlap=bool(settings.get("ep_overlap")) and expert > 1,
        graph=graph,
        graph_modules=_names(settings, "cuda_graph_modules"),
        static_shapes=graph == "full_iteration" or settings.get("rank_capacity_factor") is not None,
        layout=layout if isinstance(layout, str) else None,
        sharded=bool(settings.get("distributed_optimizer")),
        reduce_hidden=bool(settings.get("overlap_grad_reduce")),
        gather_hidden=bool(settings.get("overlap_param_gather")),
        notes=tuple(notes),
        outside=outside(hardware, model, contract, work, num_gpus),
    )


def _not_modelled(model: ModelShape, contract: Contract, settings: Settings) -> list[str]:
    """What the candidate asks for and the time model leaves out."""
    notes = []
    if settings.get("offload_modules"):
        notes.append("copies of offloaded activations were not measured: the host link's rate is assumed")
    if model.vision_parameters:
        notes.append("the vision encoder's time is left out")
    if contract.routing.token_policy != "dropless":
        notes.append(f"token_policy {contract.routing.token_policy} is timed as dropless")
    if contract.precision not in ("bf16", "fp32") and not contract.precision.startswith(("fp8", "nvfp4", "fp4")):
        notes.append(f"precision {contract.precision} is timed as bf16")
    if _int(settings, "context_parallel") > 1 and model.layer_kinds.strip("aw"):
        notes.append("context parallelism of linear-attention and Mamba layers was not measured")
    return notes


def _block_layers(settings: Settings) -> int | None:
    """Whole layers per virtual stage that are recomputed; null = all, as uniform recomputation always does."""
    number = settings.get("recompute_num_layers")
    block = settings.get("recompute_granularity") == "full" and settings.get("recompute_method") == "block"
    return number if block and isinstance(number, int) else None


def _domains(hardware: Hardware, span: int, expert_parallel: int) -> int:
    """NVLink domains under one expert group, at most as many as it has ranks; they share the ranks out equally."""
    domains = min(-(-span // hardware.nvlink_domain_gpus), expert_parallel)
    while expert_parallel % domains:
        domains += 1
    return domains


def _int(settings: Settings, name: str, default: int = 1) -> int:
    value = settings.get(name)
    return value if isinstance(value, int) else default


def _names(settings: Settings, name: str) -> frozenset[str]:
    value = settings.get(name)
    return frozenset(value) if isinstance(value, list) else frozenset()
