"""What a rank holds all step long: weights, gradients, optimizer state, and stand-ins for weight gradients."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from autotune.predict.layers import Block, Chunk, mtp_blocks, pipeline_chunks
from autotune.predict.memory_plan import MemoryPlan
from autotune.predict.parameters import block_parameters, gdn_widths, head_sizes, mamba_widths, mtp_parameters
from autotune_trials.spec import ModelShape


@dataclass(frozen=True)
class StaticBytes:
    """Bytes of one rank that do not depend on the batch.

    Attributes:
        weights: Parameters in the model's precision, and their quantized copies.
        gradients: Accumulation buffers.
        optimizer: Main parameters and moments, this rank's shard.
        gradient_copy: fp32 gradients that the optimizer makes for its step.
        placeholders: One stand-in per shape of weight gradient (the gradient itself was accumulated in its buffer).
    """

    weights: float
    gradients: float
    optimizer: float
    gradient_copy: float
    placeholders: float


@dataclass(frozen=True)
class RankContents:
    """What one pipeline rank holds, before any splitting.

    Attributes:
        chunks: Its virtual stages.
        blocks: Kinds of layers among them, multi-token-prediction layers included.
        split: Parameters that tensor-parallel ranks split.
        whole: Parameters that every tensor-parallel rank holds.
        routed: Parameters of routed experts.
        vocabulary_matrices: Embeddings and output layers.
    """

    chunks: tuple[Chunk, ...]
    blocks: tuple[Block, ...]
    split: int
    whole: int
    routed: int
    vocabulary_matrices: int


@lru_cache(maxsize=4096)
def rank_contents(
    model: ModelShape, pipeline_parallel: int, virtual_pipeline: int, layout: str | None
) -> tuple[RankContents, ...]:
    """What each pipeline rank holds.

    Raises:
        ValueError, PolicyError: as ``pipeline_chunks``.
    """
    chunks = pipeline_chunks(model, pipeline_parallel, virtual_pipeline, layout)
    known: dict[RankContents, RankContents] = {}
    ranks = [_contents(model, chunks[rank::pipeline_parallel]) for rank in range(pipeline_parallel)]
    return tuple(known.setdefault(rank, rank) for rank in ranks)


def _contents(model: ModelShape, own: tuple[Chunk, ...]) -> RankContents:
    split = whole = routed = 0
    blocks: dict[Block, None] = {}
    mtp_layers = sum(chunk.mtp_layers for chunk in own)
    for chunk in own:
        for block, count in chunk.blocks:
            counts = block_parameters(model, block)
            blocks[block] = None
            split, whole = split + count * counts.split, whole + count * counts.whole
            routed += count * counts.routed
    if mtp_layers:
        layers = 1 if model.mtp_shared_weights else mtp_layers
        mtp = mtp_parameters(model)
        blocks |= dict.fromkeys(mtp_blocks(model))
        split, whole, routed = split + layers * mtp[0], whole + layers * mtp[1], routed + layers * mtp[2]
    has_embedding = any(chunk.embedding for chunk in own)
    has_loss = any(chunk.loss for chunk in own)
    # Away from the embedding, a tied output layer and multi-token prediction share one copy of it.
    output = has_loss and not (model.tied_embeddings and has_embedding)
    copy = bool(mtp_layers) and not has_embedding and not (output and model.tied_embeddings)
    return RankContents(
        chunks=own,
        blocks=tuple(blocks),
        split=split,
        whole=whole + model.hidden_size * has_loss + (model.vision_parameters or 0) * has_embedding,
        routed=routed,
        vocabulary_matrices=has_embedding + output + copy,
    )


def static_bytes(plan: MemoryPlan, contents: RankContents) -> StaticBytes:
    """What one rank holds all step long."""
    numerics = plan.numerics
    split, routed = contents.split / plan.tensor, contents.routed / (plan.expert * plan.expert_tensor)
    vocabulary = contents.vocabulary_matrices * plan.vocabulary * plan.model.hidden_size
    dense = split + contents.whole + vocabulary
    shards = dense / plan.dense_shards + routed / plan.expert_shards
    weight_bytes = 4.0 if plan.fp32 else 2.0
    main_bytes = 0.0 if plan.fp32 else numerics.main_parameter_bytes
    moment_bytes = numerics.moment_bytes * (1.0 - numerics.optimizer_on_host)
    gradient_bytes = 4.0 if plan.fp32 else numerics.gradient_bytes
    weights = weight_bytes * (dense + routed)
    if plan.fp8:
        # Row-wise and column-wise copies of every linear weight, beside the weight or in its place.
        weights += (split + routed) * (2 * plan.weight_copy_bytes - (weight_bytes if plan.fp8_weights_only else 0.0))
    copies = gradient_bytes < 4.0 and not numerics.precision_aware_optimizer
    placeholders = _placeholders(plan.model, contents.blocks, plan.tensor, plan.expert_tensor)
    return StaticBytes(
        weights=weights,
        gradients=gradient_bytes * (dense + routed),
        optimizer=(main_bytes + moment_bytes) * shards,
        gradient_copy=4.0 * shards if copies else 0.0,
        placeholders=plan.share.element_bytes * placeholders,
    )


@lru_cache(maxsize=4096)
def _placeholders(model: ModelShape, blocks: tuple[Block, ...], tensor: int, expert_tensor: int) -> float:
    """Elements of one stand-in per shape of linear weight."""
    shapes = {shape for block in blocks for shape in linear_shapes(model, block, tensor, expert_tensor)}
    return sum(rows * columns for rows, columns in shapes)


def linear_shapes(model: ModelShape, block: Block, tensor: int, expert_tensor: int) -> set[tuple[float, float]]:
    """Shapes of one block's linear weights on one rank, each once."""
    return {*_mixer_shapes(model, block, tensor), *_feed_forward_shapes(model, block, tensor, expert_tensor)}


def _mixer_shapes(model: ModelShape, block: Block, tensor: int) -> Iterator[tuple[float, float]]:
    hidden = model.hidden_size
    if block.mixer is None:
        return
    if block.mixer == "mla":
        rank_kv, rotary = model.kv_lora_rank or 0, model.qk_pos_emb_head_dim or 0
        heads = model.num_attention_heads / tensor
        head, value = model.qk_head_dim or 0, model.v_head_dim or 0
        if model.q_lora_rank:
            yield model.q_lora_rank, hidden
        yield heads * (head + rotary), model.q_lora_rank or hidden
        yield rank_kv + rotary, hidden
        yield heads * (head + value), rank_kv
        yield hidden, heads * value
    elif block.mixer == "gdn":
        key, value, value_heads = gdn_widths(model)
        yield (2 * key + 2 * value + 2 * value_heads) / tensor, hidden
        yield hidden, value / tensor
    elif block.mixer == "mamba":
        inner, state, mamba_heads = mamba_widths(model)
        yield (2 * inner + 2 * state + mamba_heads) / tensor, hidden
        yield hidden, inner / tensor
    else:
        query, key, _ = head_sizes(model)
        gate = query if model.attention_output_gate else 0
        yield (query + gate + 2 * key) / tensor, hidden
        yield hidden, query / tensor


def _feed_forward_shapes(
    model: ModelShape, block: Block, tensor: int, expert_tensor: int
) -> Iterator[tuple[float, float]]:
    hidden, gate = model.hidden_size, 2 if model.gated_linear_unit else 1
    if block.feed_forward == "dense":
        yield gate * model.ffn_hidden_size / tensor, hidden
        yield hidden, model.ffn_hidden_size / tensor
    elif block.feed_forward == "moe":
        width, latent = model.moe_ffn_hidden_size or model.ffn_hidden_size, model.moe_latent_size or hidden
        yield gate * width / expert_tensor, latent
        yield latent, width / expert_tensor
        if model.shared_expert_size:
            yield gate * model.shared_expert_size / tensor, hidden
            yield hidden, model.shared_expert_size / tensor
