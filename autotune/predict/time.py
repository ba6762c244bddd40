"""Step time of one configuration, by part, without hardware.

A micro-batch's time on every pipeline rank comes from its blocks (:mod:`autotune.predict.block_time`); the schedule,
data parallelism, the optimizer and the host are put around it. Everything is a pure function of its arguments.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from autotune.cluster import Cluster
from autotune.errors import RequestError
from autotune.predict.block_time import dispatch_load
from autotune.predict.candidate import Candidate, candidate_of
from autotune.predict.dispatch import dispatch_time
from autotune.predict.efficiency import UNSEEN_ERROR
from autotune.predict.flops import flops_per_step
from autotune.predict.hardware import Hardware, hardware_of
from autotune.predict.host import host_time
from autotune.predict.kernels import point_to_point_time, ring_time, streaming_rate
from autotune.predict.memory_plan import make_memory_plan
from autotune.predict.numerics import MEGATRON_LM, Numerics
from autotune.predict.offload import exposed_time, offloaded_bytes
from autotune.predict.stages import RankStages, rank_stages
from autotune_policies.settings import Settings
from autotune_trials.spec import Contract, ModelShape

Bound = Literal["memory", "communication", "compute", "host"]

BOUND_OF: Mapping[str, Bound] = {
    "gemm": "compute",
    "grouped_gemm": "compute",
    "attention": "compute",
    "contention": "compute",
    "elementwise": "memory",
    "permutation": "memory",
    "optimizer": "memory",
    "tensor_parallel": "communication",
    "context_parallel": "communication",
    "dispatch": "communication",
    "pipeline_transfer": "communication",
    "bubble": "communication",
    "data_parallel": "communication",
    "activation_offload": "host",
    "host": "host",
}
"""Which resource each part of the step waits for."""

# Relative standard error of each part: kernels from the spread of measured shapes around the roofline, the others
# from what published series leave open.
UNCERTAINTY: Mapping[str, float] = {
    "gemm": 0.14,
    "grouped_gemm": 0.25,
    "attention": 0.20,
    "contention": 0.50,
    "elementwise": 0.40,
    "permutation": 0.50,
    "optimizer": 0.30,
    "tensor_parallel": 0.30,
    "context_parallel": 0.40,
    "dispatch": 0.20,
    "pipeline_transfer": 0.50,
    "bubble": 0.10,
    "data_parallel": 0.40,
    "activation_offload": 0.40,
    "host": 0.50,
}

UNCALIBRATED = 0.15
"""Relative error of the stack's efficiency before anything was measured on it."""

OUTSIDE = 0.15
"""Relative error that each departure from what was measured adds; a guess, since nothing was measured there."""

# NCCL's default channels occupy about so many SMs while a collective runs.
NCCL_SMS = 16

# Share of expert-parallel communication that the combined 1F1B schedule can hide: Bridge PR #5094 reports 36.55 % of
# all communication hidden where it had been 0.11 %; what is left is the head and tail of every micro-batch.
HIDDEN_SHARE = 0.85

STEP_OVERHEAD_S = 0.008
"""Logging, data loader and the synchronisations of one optimizer step."""


@dataclass(frozen=True)
class TimeEstimate:
    """A predicted step; never a measurement.

    Attributes:
        parts: Seconds of the step by part, on the slowest pipeline rank; they add up to ``step_time_s``.
        step_time_s: One optimizer step.
        tokens_per_s_per_gpu: Throughput.
        tflops_per_gpu: Model TFLOP/s per GPU.
        mfu: Model FLOP/s over the dense peak of the contract's precision.
        bound: What most of the time goes to.
        biggest_uncertainty: The part that contributes most to the interval (``stack`` = the efficiency itself).
        dispatcher: Backend of expert parallelism; empty where there is none.
        dispatch_error_s: Standard error of the part ``dispatch``.
        interval: Step times between which the measurement should lie, two times in three.
        notes: Where the estimate leaves its validity, one sentence each.
    """

    parts: Mapping[str, float]
    step_time_s: float
    tokens_per_s_per_gpu: float
    tflops_per_gpu: float
    mfu: float
    bound: Bound
    biggest_uncertainty: str
    interval: tuple[float, float]
    dispatcher: str = ""
    dispatch_error_s: float = 0.0
    notes: tuple[str, ...] = ()


def predict_time(
    cluster: Cluster,
    model: ModelShape,
    contract: Contract,
    settings: Settings,
    num_gpus: int,
    *,
    numerics: Numerics = MEGATRON_LM,
    efficiency: float | None = None,
    efficiency_error: float = UNSEEN_ERROR,
    imbalance: float | None = None,
) -> TimeEstimate:
    """Step time of one configuration on one cluster.

    Args:
        cluster: Where it runs.
        model: Architecture.
        contract: Sequence length, global batch, precision, routing.
        settings: All canonical settings, resolved.
        num_gpus: Ranks.
        numerics: Formats of the training program: what gradients are reduced in, and what the optimizer moves.
        efficiency: Measured over predicted speed of this (cluster, precision, stack), from
            :func:`autotune.predict.efficiency.learn_efficiency`; null = 1, nothing measured yet, a wider interval.
        efficiency_error: Its relative standard error, from :func:`autotune.predict.efficiency.efficiency_error`.
        imbalance: Tokens of the fullest expert rank over the mean, at least 1; null = as the routing implies.

    Raises:
        RequestError: no time model for this GPU, a batch and layout that do not divide, or an imbalance below 1.
    """
    if imbalance is not None and not imbalance >= 1.0:
        raise RequestError(f"imbalance={imbalance} must be at least 1: it is the fullest rank's load over the mean")
    hardware = hardware_of(cluster)
    candidate = candidate_of(hardware, model, contract, settings, num_gpus, imbalance)
    stages = rank_stages(hardware, model, candidate.work, candidate.pipeline, candidate.virtual, candidate.layout)
    copied = _offloaded(model, contract, settings, num_gpus, imbalance) or (0.0,) * candidate.pipeline
    ranks = [_rank_time(hardware, candidate, *rank) for rank in zip(stages, copied, strict=True)]
    slowest = max(range(candidate.pipeline), key=lambda rank: ranks[rank][1])
    parts, busy, backward = ranks[slowest]

    step = {name: value * candidate.micro_batches for name, value in parts.items()}
    # 1F1B: the slowest rank works all the time but for one pass through the other ranks; interleaving cuts it.
    step["bubble"] = (sum(rank[1] for rank in ranks) - busy) / candidate.virtual
    step["pipeline_transfer"] = _transfer(hardware, model, candidate, num_gpus)
    held = max(((stage.dense_parameters, stage.routed_parameters) for stage in stages), key=sum)
    step["data_parallel"] = _data_parallel(hardware, candidate, held, num_gpus, numerics, backward, busy - backward)
    updated = sum(held)
    if candidate.sharded:
        updated = held[0] / candidate.data + held[1] / candidate.expert_data
    step["optimizer"] = updated * _optimizer_bytes(numerics) / streaming_rate(hardware)
    step["host"] = step.get("host", 0.0) + STEP_OVERHEAD_S
    return _estimate(hardware, model, contract, candidate, step, num_gpus, efficiency, efficiency_error)


def _offloaded(
    model: ModelShape, contract: Contract, settings: Settings, num_gpus: int, imbalance: float | None
) -> tuple[float, ...]:
    """Bytes that each pipeline rank copies to the host per micro-batch; empty where nothing is offloaded."""
    if not settings.get("offload_modules"):
        return ()
    return offloaded_bytes(make_memory_plan(model, contract, settings, num_gpus, MEGATRON_LM, imbalance))


def _rank_time(
    hardware: Hardware, candidate: Candidate, stage: RankStages, copied_bytes: float
) -> tuple[dict[str, float], float, float]:
    """Parts, total and backward share of one micro-batch on one pipeline rank."""
    both = stage.forward + stage.backward
    parts = {
        "gemm": both.gemm,
        "grouped_gemm": both.grouped_gemm,
        "attention": both.attention,
        "elementwise": both.elementwise,
        "permutation": both.permutation,
        "tensor_parallel": both.tensor_parallel,
        "context_parallel": both.context_parallel,
        "dispatch": both.dispatch,
    }
    if candidate.overlap:
        hidden = HIDDEN_SHARE * min(both.dispatch, both.compute_s)
        nccl = candidate.work.dispatcher in ("alltoall", "allgather")
        sms = NCCL_SMS if nccl else (candidate.work.num_sms or 20)
        parts["dispatch"] -= hidden
        # Compute that runs beside the dispatcher has fewer SMs; at worst nothing was won by running beside it.
        parts["contention"] = hidden * min(1.0, sms / max(1, hardware.sm_count - sms))
    busy = sum(parts.values())
    parts["host"] = host_time(
        hardware,
        busy,
        both,
        stage.moe_layers,
        graph=candidate.graph,
        modules=candidate.graph_modules,
        static_shapes=candidate.static_shapes or candidate.work.expert_parallel == 1,
        overlap=candidate.overlap,
    )
    total = busy + parts["host"]
    if copied_bytes:
        forward_share = stage.forward.total_s / max(both.total_s, 1e-12)
        parts["activation_offload"] = exposed_time(
            hardware.family, copied_bytes, total * forward_share, total * (1 - forward_share)
        )
        total += parts["activation_offload"]
    return parts, total, total * stage.backward.total_s / max(both.total_s, 1e-12)


def _transfer(hardware: Hardware, model: ModelShape, candidate: Candidate, num_gpus: int) -> float:
    """Activations between pipeline stages that are not hidden: half of them, the other half meets compute."""
    if candidate.pipeline == 1:
        return 0.0
    across = num_gpus > hardware.nvlink_domain_gpus
    message = candidate.work.tokens * model.hidden_size * 2.0 / candidate.tensor
    one = point_to_point_time(hardware, message, across=across)
    exposed = 0.5 if candidate.virtual == 1 else 0.25
    return exposed * 2 * one * (candidate.micro_batches * candidate.virtual + candidate.pipeline)


def _data_parallel(
    hardware: Hardware,
    candidate: Candidate,
    held: tuple[float, float],
    num_gpus: int,
    numerics: Numerics,
    backward_s: float,
    forward_s: float,
) -> float:
    """Exposed time of the gradients' reduce-scatter and the parameters' all-gather (BF16).

    An optimizer that is not shared out needs no all-gather, but all of the sum everywhere: twice the way.
    """
    replica = num_gpus // candidate.pipeline
    across = replica > hardware.nvlink_domain_gpus
    node = min(hardware.nvlink_domain_gpus, replica)
    reduce = gather = 0.0
    for elements, ranks, stride in (
        (held[0], candidate.data, candidate.tensor),
        (held[1], candidate.expert_data, candidate.expert * candidate.expert_tensor),
    ):
        members = max(1, node // stride)
        once = ring_time(hardware, ranks, numerics.gradient_bytes * elements, across=across, per_node=members)
        reduce += once if candidate.sharded else 2 * once
        if candidate.sharded:
            gather += ring_time(hardware, ranks, 2.0 * elements, across=across, per_node=members)
    # Only the last micro-batch's backward (the next step's first forward) is there to hide behind.
    if candidate.reduce_hidden:
        reduce = max(0.1 * reduce, reduce - 0.8 * backward_s)
    if candidate.gather_hidden:
        gather = max(0.1 * gather, gather - 0.8 * forward_s)
    return reduce + gather


def _optimizer_bytes(numerics: Numerics) -> float:
    """Bytes that Adam moves per element: gradient read, main parameter and moments read and written, weight written."""
    copied = numerics.gradient_bytes < 4.0 and not numerics.precision_aware_optimizer
    state = 2 * (numerics.main_parameter_bytes + numerics.moment_bytes)
    return numerics.gradient_bytes + state + 2.0 + (8.0 if copied else 0.0)


def _estimate(
    hardware: Hardware,
    model: ModelShape,
    contract: Contract,
    candidate: Candidate,
    step: Mapping[str, float],
    num_gpus: int,
    efficiency: float | None,
    efficiency_error: float,
) -> TimeEstimate:
    scale = 1.0 / efficiency if efficiency else 1.0
    parts = {name: value * scale for name, value in step.items() if value > 0}
    step_time_s = sum(parts.values())
    errors = {name: value * UNCERTAINTY[name] for name, value in parts.items()}
    notes = [*candidate.notes, *candidate.outside]
    if model.num_experts and candidate.expert > 1:
        work = candidate.work
        moved = dispatch_time(hardware, work.dispatcher, dispatch_load(model, work), work.num_sms)
        errors["dispatch"] = parts.get("dispatch", 0.0) * max(UNCERTAINTY["dispatch"], moved.relative_error)
        notes.extend(moved.notes)
    if efficiency is None:
        notes.append("no measurement of this cluster, precision and stack has corrected the efficiency")
    stack = UNCALIBRATED if efficiency is None else efficiency_error
    errors["stack"] = step_time_s * math.hypot(stack, OUTSIDE * len(candidate.outside) ** 0.5)
    spread = sum(error * error for error in errors.values()) ** 0.5
    by_bound: dict[Bound, float] = {}
    for name, value in parts.items():
        by_bound[BOUND_OF[name]] = by_bound.get(BOUND_OF[name], 0.0) + value
    flops = flops_per_step(model, contract.seq_length, contract.global_batch_size) / num_gpus / step_time_s
    return TimeEstimate(
        parts=parts,
        step_time_s=step_time_s,
        tokens_per_s_per_gpu=contract.seq_length * contract.global_batch_size / num_gpus / step_time_s,
        tflops_per_gpu=flops / 1e12,
        mfu=flops / hardware.peak_flops_per_s(contract.precision),
        bound=max(by_bound, key=lambda name: by_bound[name]),
        biggest_uncertainty=max(errors, key=lambda name: errors[name]),
        dispatcher=candidate.work.dispatcher if candidate.expert > 1 else "",
        dispatch_error_s=errors.get("dispatch", 0.0),
        interval=(max(0.3 * step_time_s, step_time_s - spread), step_time_s + spread),
        notes=tuple(notes),
    )
