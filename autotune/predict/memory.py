"""Peak memory per GPU by part and pipeline stage, from the model, the settings and the training program's formats.

``predict_memory`` is the sum of what is held all step long (weights, gradients, optimizer) and of the worst moment of a
step: the first backward pass with all micro-batches in flight, the loss, the embedding's gradient, or the optimizer.
It answers two questions: what the allocator's high-water mark will be (``peak_memory_bytes``, compared with
measurements), and what the device must have (``device_memory_bytes``, compared with its size).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from operator import attrgetter

from autotune.cluster import Cluster
from autotune.predict.activations import block_activations, mtp_activations
from autotune.predict.layers import Chunk
from autotune.predict.memory_plan import NATURAL_IMBALANCE, MemoryPlan, make_memory_plan
from autotune.predict.numerics import MEGATRON_LM, Numerics
from autotune.predict.overhead import DeviceOverhead, device_overhead
from autotune.predict.schedule import in_flight
from autotune.predict.static import StaticBytes, rank_contents, static_bytes
from autotune_policies.settings import Settings
from autotune_trials.spec import Contract, GangShape, ModelShape

WORKSPACE_BYTES = 112 * 2**20
"""Matrix-product workspaces (three of 32 MiB on Hopper and later), rotary tables and other small buffers.

Source: Transformer Engine's and PyTorch's workspace sizes; measured on B200 as what all other parts leave over.
"""

BASE_UNCERTAINTY = 0.02
"""Relative standard deviation where all parts were validated: bf16, Transformer Engine layers, alltoall."""

ASSUMED_NUMERICS = 0.12
"""Relative standard deviation where nobody says which formats the program had.

Source: bf16 gradients instead of fp32 ones take 18 % off the measured peaks of qwen3-30b on 16 H100s, bf16 moments as
much again off what is left: two thirds of one such step.
"""

GRAPH_BUFFERS = 1.6
"""Hidden-state buffers that a captured attention layer keeps per micro-batch in flight, beside what it saves.

Source: about 7 GB for DeepSeek-V3 with PP4 x VPP4 (arXiv 2603.07685).
"""


@dataclass(frozen=True)
class StageMemory:
    """Bytes on one GPU of one pipeline rank at its worst moment, as its allocator counts them.

    Attributes:
        weights: Parameters in the model's precision.
        gradients: Accumulation buffers.
        optimizer: Main parameters and moments, this rank's shard.
        attention: Activations kept by attention, gated delta nets and Mamba.
        dense: Activations kept by dense feed-forward layers.
        routed: Activations kept by routers and routed experts.
        shared: Activations kept by shared experts.
        mtp: Activations kept by multi-token-prediction layers.
        logits: Output layer and loss.
        working: Gradients and copies in flight, and what recomputation rebuilds.
        placeholders: Stand-ins for weight gradients that were accumulated elsewhere.
        graph_pools: Static buffers of CUDA graphs.
        workspaces: Workspaces of matrix products and other small buffers.
        moment: When the peak is reached: ``backward``, ``loss``, ``embedding`` or ``optimizer``.
    """

    weights: float
    gradients: float
    optimizer: float
    attention: float
    dense: float
    routed: float
    shared: float
    mtp: float
    logits: float
    working: float
    placeholders: float
    graph_pools: float
    workspaces: float
    moment: str

    @property
    def total(self) -> float:
        """All parts."""
        return sum(_VALUES(self))

    def parts(self) -> dict[str, float]:
        """Bytes by part, in the order in which people read them."""
        return dict(zip(_PARTS, _VALUES(self), strict=True))


_PARTS = tuple(item.name for item in fields(StageMemory) if item.name != "moment")
_VALUES: Callable[[StageMemory], tuple[float, ...]] = attrgetter(*_PARTS)


@dataclass(frozen=True)
class MemoryEstimate:
    """Predicted memory of one configuration.

    Attributes:
        stages: One entry per pipeline rank.
        worst_stage: The pipeline rank with the highest peak.
        peak_memory_bytes: Its peak, comparable with ``torch.cuda.max_memory_allocated``.
        overhead: What the device holds beside it.
        uncertainty: One standard deviation of the peak, relative.
        notes: What lies outside the model's validity, one line each.
    """

    stages: tuple[StageMemory, ...]
    worst_stage: int
    peak_memory_bytes: int
    overhead: DeviceOverhead
    uncertainty: float
    notes: tuple[str, ...]

    @property
    def device_memory_bytes(self) -> int:
        """What the device must have: the peak, fragmentation, and what lives outside the allocator."""
        return self.peak_memory_bytes + self.overhead.total

    def fits(self, memory_bytes: int) -> bool:
        """Whether a device of this size is expected to hold it."""
        return self.device_memory_bytes <= memory_bytes


def predict_memory(
    model: ModelShape,
    contract: Contract,
    settings: Settings,
    gang: GangShape,
    cluster: Cluster | None = None,
    numerics: Numerics = MEGATRON_LM,
    imbalance: float | None = None,
) -> MemoryEstimate:
    """Predicted memory of one configuration.

    Args:
        model: Architecture.
        contract: Sequence length, global batch, precision and routing.
        settings: All canonical settings, resolved.
        gang: Number of GPUs.
        cluster: Where it runs; None = NVLink domains of eight GPUs.
        numerics: Formats of the training program.
        imbalance: Token copies on the busiest expert rank over the mean; None = by the contract's routing.

    Raises:
        ValueError: the ranks are no multiple of the parallel sizes, or the layout does not fit the model.
    """
    plan = make_memory_plan(model, contract, settings, gang.world_size, numerics, imbalance)
    contents = rank_contents(model, plan.pipeline, plan.virtual, plan.layout)
    # Many chunks and stages are alike, and alike ones are one object: each is worked out once.
    costs: dict[int, _ChunkBytes] = {}
    static: dict[int, StaticBytes] = {}
    for own in contents:
        if id(own) not in static:
            static[id(own)] = static_bytes(plan, own)
        for chunk in own.chunks:
            if id(chunk) not in costs:
                costs[id(chunk)] = _chunk_bytes(plan, chunk)
    stages = tuple(
        _stage(plan, static[id(own)], own.chunks, [costs[id(chunk)] for chunk in own.chunks], rank)
        for rank, own in enumerate(contents)
    )
    totals = [stage.total for stage in stages]
    peak = max(totals)
    notes, uncertainty = _validity(plan, contract, settings, cluster)
    return MemoryEstimate(
        stages=stages,
        worst_stage=totals.index(peak),
        peak_memory_bytes=int(peak),
        overhead=device_overhead(plan, settings, cluster, peak),
        uncertainty=uncertainty,
        notes=notes,
    )


@dataclass(frozen=True)
class _ChunkBytes:
    """One micro-batch in one virtual stage: what it keeps by part, and the most that one layer needs beside."""

    attention: float
    dense: float
    routed: float
    shared: float
    mtp: float
    layers: int
    transient: float


def _chunk_bytes(plan: MemoryPlan, chunk: Chunk) -> _ChunkBytes:
    mixer = dense = routed = shared = mtp = transient = 0.0
    left = plan.recompute_layers
    for block, count in chunk.blocks:
        full = count if left is None else min(count, left)
        left = None if left is None else left - full
        for layers, recompute in ((float(full), plan.recompute), (float(count - full), ())):
            if not layers:
                continue
            one = block_activations(plan.model, block, plan.share, recompute, plan.offload)
            rebuilt = one.rebuilt
            if recompute == ("full",):
                # A group keeps its first layer's input only, and is rebuilt whole.
                layers, rebuilt = layers / plan.recompute_group, rebuilt * plan.recompute_group
            mixer, dense = mixer + layers * one.mixer, dense + layers * one.dense
            routed, shared = routed + layers * one.routed, shared + layers * one.shared
            on_its_way = 0.0
            if plan.offload:
                on_its_way = block_activations(plan.model, block, plan.share, recompute).kept - one.kept
            transient = max(transient, one.working + rebuilt + on_its_way)
    if chunk.mtp_layers:
        head = mtp_activations(plan.model, plan.share, plan.recompute, plan.offload)
        mtp = chunk.mtp_layers * head.kept
        transient = max(transient, head.working + head.rebuilt)
    return _ChunkBytes(mixer, dense, routed, shared, mtp, sum(count for _, count in chunk.blocks), transient)


def _stage(
    plan: MemoryPlan, static: StaticBytes, chunks: tuple[Chunk, ...], costs: list[_ChunkBytes], rank: int
) -> StageMemory:
    """One pipeline rank at the worst of the moments at which its memory may peak."""
    flights = in_flight(plan.pipeline, rank, plan.virtual, plan.num_microbatches, plan.ep_overlap)
    attention = dense = routed = shared = mtp = transient = passing = 0.0
    layers_in_flight = passes = 0
    for count, cost in zip(flights, costs, strict=True):
        attention, dense = attention + count * cost.attention, dense + count * cost.dense
        routed, shared = routed + count * cost.routed, shared + count * cost.shared
        mtp = mtp + count * cost.mtp
        layers_in_flight, passes = layers_in_flight + count * cost.layers, passes + count
        transient = max(transient, cost.transient)
    everything = attention + dense + routed + shared + mtp
    if plan.ep_overlap and plan.pipeline == 1:
        # Forward and backward passes of two micro-batches walk past each other: one layer is there twice.
        passing = everything / max(1, layers_in_flight)
    # Moment, share of the kept activations that is there, logits, working.
    moments = [("backward", 1.0, 0.0, passing + transient)]
    if chunks[-1].loss:
        moments.append(("loss", 1.0, _loss_bytes(plan), passing))
    if chunks[0].embedding:
        # The first micro-batch is through its last backward pass; the others still wait.
        gradient = plan.vocabulary * plan.model.hidden_size * plan.share.element_bytes
        moments.append(("embedding", 1 - 1 / passes, 0.0, gradient))
    moments.append(("optimizer", 0.0, 0.0, static.gradient_copy))
    moment, share, logits, working = max(moments, key=lambda item: item[1] * everything + item[2] + item[3])
    pools = 0.0
    if plan.graphs_hold_attention:
        hidden_state = plan.share.stream_tokens * plan.model.hidden_size * plan.share.element_bytes
        pools = GRAPH_BUFFERS * layers_in_flight * hidden_state
    return StageMemory(
        weights=static.weights,
        gradients=static.gradients,
        optimizer=static.optimizer,
        attention=share * attention,
        dense=share * dense,
        routed=share * routed,
        shared=share * shared,
        mtp=share * mtp,
        logits=logits,
        working=working,
        placeholders=static.placeholders,
        graph_pools=pools,
        workspaces=float(WORKSPACE_BYTES),
        moment=moment,
    )


def _loss_bytes(plan: MemoryPlan) -> float:
    """Logits and what the loss keeps of them; the output layer's weight gradient, its input and that one's gradient."""
    share, predictions = plan.share, 1 + plan.model.mtp_num_layers
    kept, copies = _LOGITS[plan.numerics.cross_entropy]
    logits = share.tokens * plan.vocabulary * (kept * predictions + copies)
    weight = plan.vocabulary * plan.model.hidden_size * share.element_bytes
    gathered = 2 * share.tokens if share.stream_tokens < share.tokens else share.tokens
    return logits + weight + plan.model.hidden_size * share.element_bytes * (gathered + 2 * share.stream_tokens)


_LOGITS = {"te": (2.0, 0.0), "native": (4.0, 2.0), "unfused": (4.0, 6.0)}
"""Bytes per logit: kept until its backward pass, and beside that at the loss's peak."""


def _validity(
    plan: MemoryPlan, contract: Contract, settings: Settings, cluster: Cluster | None
) -> tuple[tuple[str, ...], float]:
    """What lies outside the measurements behind this model, and the relative standard deviation with it."""
    model, natural = plan.model, contract.routing.source != "forced_balance" and plan.imbalance == NATURAL_IMBALANCE
    dispatcher = settings.get("dispatcher")
    doubts = (
        (plan.numerics.assumed, ASSUMED_NUMERICS, "gradient and optimizer types are not known: Megatron's are taken"),
        (plan.fp8, 0.05, f"precision {contract.precision}: quantized copies of tensors are not validated"),
        (
            natural and model.num_experts,
            0.08,
            f"routing {contract.routing.source}: {NATURAL_IMBALANCE} x the mean load is assumed (early on: 2.5)",
        ),
        (
            model.num_experts and dispatcher in ("deepep", "hybridep", "ncclep"),
            0.03,
            f"dispatcher {dispatcher}: what it keeps between passes is not validated",
        ),
        (plan.graphs_hold_attention, 0.03, "CUDA graphs of attention: one published size stands behind their pools"),
        (model.attention == "compressed", 0.10, "compressed attention: what it keeps was never measured"),
        (
            model.gdn_num_value_heads or model.mamba_num_heads,
            0.04,
            "gated delta net or Mamba: what it keeps depends on the kernel library's release",
        ),
        (plan.offload, 0.05, "activation offload: what is on its way is not validated"),
        (model.num_residual_streams > 1, 0.10, "hyper-connections: what they keep was never measured"),
        (model.vision_parameters, 0.05, "vision encoder: its activations are left out"),
        (cluster is not None and cluster.device == "cpu", 0.50, "CPU: there is no allocator peak; a GPU is predicted"),
    )
    held = [(sigma, note) for applies, sigma, note in doubts if applies]
    return tuple(note for _, note in held), math.sqrt(BASE_UNCERTAINTY**2 + sum(sigma**2 for sigma, _ in held))
