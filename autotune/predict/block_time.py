"""Forward and backward time of one block (layer) for one micro-batch on one rank, by part. Seconds."""

from functools import lru_cache

from autotune.predict.dispatch import dispatch_time
from autotune.predict.dispatch_load import DispatchLoad
from autotune.predict.hardware import Hardware
from autotune.predict.kernels import gemm_time, grouped_gemm_time, streaming_rate, tensor_group_time
from autotune.predict.layers import Block
from autotune.predict.mixer_time import mixer_time
from autotune.predict.work import (
    BACKWARD_LAUNCHES,
    BF16,
    KERNEL_FLOOR_S,
    LAUNCHES_DENSE,
    LAUNCHES_EXPERTS,
    LAUNCHES_ROUTER,
    BlockTime,
    Work,
)
from autotune_trials.spec import ModelShape


@lru_cache(maxsize=65536)
def block_time(hardware: Hardware, model: ModelShape, block: Block, work: Work) -> tuple[BlockTime, BlockTime]:
    """Forward and backward time of one block, recomputation included in the backward."""
    mixer = mixer_time(hardware, model, block, work) if block.mixer else (BlockTime(), BlockTime(), BlockTime())
    if block.feed_forward == "dense":
        feed = _dense(hardware, model, work)
    elif block.feed_forward == "moe":
        feed = _experts(hardware, model, work)
    else:
        feed = (BlockTime(), BlockTime(), BlockTime())
    forward = mixer[0] + feed[0]
    backward = mixer[1] + feed[1]
    again = forward if "full" in work.recompute else mixer[2] + feed[2]
    return forward, backward + again


def expert_layer_time(hardware: Hardware, model: ModelShape, work: Work) -> float:
    """Forward and backward of one expert layer alone, one after the other (``layer_time_s`` of measurement tables)."""
    forward, backward = block_time(hardware, model, Block(None, "moe"), work)
    return forward.total_s + backward.total_s


def _dense(hardware: Hardware, model: ModelShape, work: Work) -> tuple[BlockTime, BlockTime, BlockTime]:
    """Forward, backward and recomputed part of a dense feed-forward with its norm and residual."""
    forward, backward = _gated(hardware, model, work, model.ffn_hidden_size)
    local = work.tokens * model.hidden_size / work.tensor_parallel
    streaming = streaming_rate(hardware)
    elementwise = local * 7 * BF16 / streaming + LAUNCHES_DENSE * KERNEL_FLOOR_S
    collective = tensor_group_time(hardware, work.tensor_parallel, work.tokens * model.hidden_size * BF16)
    recomputed = forward if "mlp" in work.recompute else BlockTime()
    if "layernorm" in work.recompute:
        recomputed += BlockTime(elementwise=local * 2 * BF16 / streaming)
    return (
        forward + BlockTime(elementwise=elementwise, tensor_parallel=2 * collective, launches_mixer=LAUNCHES_DENSE),
        backward
        + BlockTime(
            elementwise=1.8 * elementwise,
            tensor_parallel=3 * collective,
            launches_mixer=LAUNCHES_DENSE * BACKWARD_LAUNCHES,
        ),
        recomputed,
    )


def _gated(hardware: Hardware, model: ModelShape, work: Work, width: int) -> tuple[BlockTime, BlockTime]:
    """Two (with a gate: three) dense products and the activation between them."""
    gate = 2 if model.gated_linear_unit else 1
    share = width / work.tensor_parallel
    up = gemm_time(hardware, work.precision, work.tokens, gate * share, model.hidden_size)
    down = gemm_time(hardware, work.precision, work.tokens, model.hidden_size, share)
    activation = work.tokens * share * (gate + 1) * BF16 / streaming_rate(hardware)
    return (
        BlockTime(gemm=up[0] + down[0], elementwise=activation),
        BlockTime(gemm=up[1] + down[1], elementwise=1.7 * activation),
    )


def dispatch_load(model: ModelShape, work: Work) -> DispatchLoad:
    """What one expert layer moves in one direction."""
    return DispatchLoad(
        tokens=max(1, round(work.tokens / work.tensor_parallel)),
        hidden_size=model.moe_latent_size or model.hidden_size,
        topk=model.router_topk,
        num_experts=model.num_experts or 1,
        expert_parallel=work.expert_parallel,
        num_domains=work.num_domains,
        imbalance=work.imbalance,
        router_groups=model.router_num_groups or 1,
        router_group_topk=model.router_group_topk or 1,
    )


def _experts(hardware: Hardware, model: ModelShape, work: Work) -> tuple[BlockTime, BlockTime, BlockTime]:
    """Forward, backward and recomputed part of an expert layer: router, dispatch, experts, combine, shared expert."""
    experts = model.num_experts or 1
    hidden = model.moe_latent_size or model.hidden_size
    width = (model.moe_ffn_hidden_size or model.ffn_hidden_size) / work.expert_tensor_parallel
    tokens = work.tokens / work.tensor_parallel
    arriving = tokens * model.router_topk * work.imbalance * work.expert_tensor_parallel
    local_experts = max(1, experts // work.expert_parallel)
    gate = 2 if model.gated_linear_unit else 1
    streaming = streaming_rate(hardware)

    fused = work.op_fuser
    up = grouped_gemm_time(hardware, work.precision, local_experts, arriving, gate * width, hidden, fused=fused)
    down = grouped_gemm_time(hardware, work.precision, local_experts, arriving, hidden, width, fused=fused)
    # The fuser makes the activation part of the first product, whose output the backward pass wants all the same.
    # Biases otherwise end the fusion of the activation's own kernels and need a reduction over tokens of their own.
    passes = 1.0 if fused else (gate + 1) * (3.0 if model.add_linear_bias else 1.0)
    activation = arriving * width * passes * BF16 / streaming
    if model.add_linear_bias:
        activation += arriving * 3 * hidden * BF16 / streaming

    load = dispatch_load(model, work)
    moved = dispatch_time(hardware, work.dispatcher, load, work.num_sms)
    communication = moved.dispatch_time_s + moved.combine_time_s

    # NCCL's dispatchers sort tokens on both sides of the exchange; the flexible ones only at the experts.
    sides = 2.0 if work.dispatcher in ("alltoall", "allgather") and work.expert_parallel > 1 else 1.0
    sorting = 1.0 if work.permute_fusion else 2.5
    permutation = 2.0 * sides * sorting * arriving * hidden * 2 * BF16 / streaming
    local = tokens * model.hidden_size
    floor = (LAUNCHES_ROUTER + LAUNCHES_EXPERTS) * KERNEL_FLOOR_S
    elementwise = (local * 7 * BF16 + tokens * experts * 60.0) / streaming + floor
    expert_group = tensor_group_time(hardware, work.expert_tensor_parallel, arriving * hidden * BF16)
    # A grouped product loops over its experts in C++: a launch there costs a third of one from Python, and a
    # low-precision one also casts every expert's inputs.
    per_expert = 2 * local_experts / 3 * (1 if work.precision in ("bf16", "fp32") else 3) if not fused else 0.0
    forward = BlockTime(
        grouped_gemm=up[0] + down[0],
        elementwise=elementwise + activation,
        permutation=permutation,
        tensor_parallel=2 * expert_group,
        dispatch=communication,
        launches_router=LAUNCHES_ROUTER,
        launches_experts=LAUNCHES_EXPERTS + per_expert,
    )
    backward = BlockTime(
        grouped_gemm=up[1] + down[1],
        elementwise=1.8 * elementwise + 1.7 * activation,
        permutation=permutation,
        tensor_parallel=2 * expert_group,
        dispatch=communication,
        launches_router=LAUNCHES_ROUTER * BACKWARD_LAUNCHES,
        launches_experts=LAUNCHES_EXPERTS * BACKWARD_LAUNCHES + 2 * per_expert,
    )
    router = gemm_time(hardware, "bf16", tokens, experts, model.hidden_size)
    extra, extra_backward = BlockTime(gemm=router[0]), BlockTime(gemm=router[1])
    if model.moe_latent_size:
        into = gemm_time(hardware, work.precision, tokens, hidden, model.hidden_size)
        extra += BlockTime(gemm=2 * into[0])
        extra_backward += BlockTime(gemm=2 * into[1])
    shared = (BlockTime(), BlockTime())
    if model.shared_expert_size:
        shared = _gated(hardware, model, work, model.shared_expert_size)
        collective = tensor_group_time(hardware, work.tensor_parallel, work.tokens * model.hidden_size * BF16)
        extra += BlockTime(tensor_parallel=2 * collective, launches_experts=6)
        extra_backward += BlockTime(tensor_parallel=3 * collective, launches_experts=8)
        if work.shared_overlap:
            # A stream of its own hides it behind dispatch and combine, less what both lose to each other.
            extra += BlockTime(dispatch=-0.8 * min(communication, shared[0].compute_s))
            extra_backward += BlockTime(dispatch=-0.8 * min(communication, shared[1].compute_s))

    recomputed = BlockTime()
    if "moe" in work.recompute:
        recomputed = forward + shared[0]
    else:
        if "moe_act" in work.recompute:
            recomputed += BlockTime(elementwise=activation)
        if "shared_experts" in work.recompute:
            recomputed += shared[0]
    if "layernorm" in work.recompute:
        recomputed += BlockTime(elementwise=local * 2 * BF16 / streaming)
    return forward + extra + shared[0], backward + extra_backward + shared[1], recomputed
