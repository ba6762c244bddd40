"""What each pipeline rank computes and holds: block times and parameters summed over its virtual stages."""

from dataclasses import dataclass, replace
from functools import lru_cache

from autotune.errors import RequestError
from autotune.predict.block_time import block_time
from autotune.predict.hardware import Hardware
from autotune.predict.kernels import gemm_time, streaming_rate, tensor_group_time
from autotune.predict.layers import Chunk, mtp_blocks, pipeline_chunks
from autotune.predict.parameters import block_parameters, mtp_parameters
from autotune.predict.work import BlockTime, Work
from autotune_trials.spec import ModelShape


@dataclass(frozen=True)
class RankStages:
    """One pipeline rank.

    Attributes:
        forward: One micro-batch, all its virtual stages.
        backward: The same, recomputation included.
        moe_layers: Expert layers on the rank.
        dense_parameters: Parameters that all data-parallel ranks share.
        routed_parameters: Parameters that only expert-data-parallel ranks share.
    """

    forward: BlockTime
    backward: BlockTime
    moe_layers: int
    dense_parameters: float
    routed_parameters: float


@lru_cache(maxsize=8192)
def rank_stages(
    hardware: Hardware, model: ModelShape, work: Work, pipeline: int, virtual: int, layout: str | None
) -> tuple[RankStages, ...]:
    """All pipeline ranks in order.

    Raises:
        RequestError: the layout does not fit the model or the stages.
    """
    try:
        chunks = pipeline_chunks(model, pipeline, virtual, layout)
    except ValueError as error:
        raise RequestError(str(error)) from error
    times = {chunk: _chunk_time(hardware, model, chunk, work) for chunk in set(chunks)}
    ranks = []
    for rank in range(pipeline):
        own = chunks[rank::pipeline]
        forward, backward = BlockTime(), BlockTime()
        for chunk in own:
            forward, backward = forward + times[chunk][0], backward + times[chunk][1]
        moe = sum(count for chunk in own for block, count in chunk.blocks if block.feed_forward == "moe")
        dense, routed = _held(model, own, work.tensor_parallel, work.expert_parallel * work.expert_tensor_parallel)
        ranks.append(RankStages(forward, backward, moe, dense, routed))
    return tuple(ranks)


def _chunk_time(hardware: Hardware, model: ModelShape, chunk: Chunk, work: Work) -> tuple[BlockTime, BlockTime]:
    """Forward and backward time of one virtual stage for one micro-batch."""
    forward, backward = BlockTime(), BlockTime()
    left = work.recompute_layers
    kept = work if left is None else replace(work, recompute=frozenset())
    for block, count in chunk.blocks:
        again = count if left is None else min(count, left)
        left = None if left is None else left - again
        for layers, how in ((again, work), (count - again, kept)):
            if layers:
                one = block_time(hardware, model, block, how)
                forward, backward = forward + one[0].scaled(layers), backward + one[1].scaled(layers)
    logits = chunk.mtp_layers + chunk.loss
    if chunk.mtp_layers:
        narrow = model.hidden_size / work.tensor_parallel
        merge = gemm_time(hardware, work.precision, work.tokens, narrow, 2 * model.hidden_size)
        forward, backward = forward + BlockTime(gemm=merge[0]), backward + BlockTime(gemm=merge[1])
        for block in mtp_blocks(model) * chunk.mtp_layers:
            one = block_time(hardware, model, block, work)
            forward, backward = forward + one[0], backward + one[1]
    if chunk.embedding:
        looked_up = work.tokens * model.hidden_size * 4.0 / streaming_rate(hardware)
        forward, backward = forward + BlockTime(elementwise=looked_up), backward + BlockTime(elementwise=2 * looked_up)
    if logits:
        vocabulary = model.vocab_size / work.tensor_parallel
        product = gemm_time(hardware, "bf16", work.tokens, vocabulary, model.hidden_size)
        # Fused cross entropy reads the BF16 logits, keeps FP32 statistics and writes their gradient in place.
        entropy = work.tokens * vocabulary * 7.0 / streaming_rate(hardware)
        gathered = work.tokens * model.hidden_size * 2.0
        ring = tensor_group_time(hardware, work.tensor_parallel, gathered)
        one_forward = BlockTime(gemm=product[0], elementwise=entropy, tensor_parallel=ring, launches_mixer=12)
        one_backward = BlockTime(gemm=product[1], elementwise=entropy, tensor_parallel=2 * ring, launches_mixer=12)
        forward, backward = forward + one_forward.scaled(logits), backward + one_backward.scaled(logits)
    return forward, backward


def _held(model: ModelShape, chunks: tuple[Chunk, ...], tensor: int, experts_over: int) -> tuple[float, float]:
    """Parameters on one rank: shared with the data-parallel group, and with the expert-data-parallel one."""
    dense = routed = 0.0
    for chunk in chunks:
        for block, count in chunk.blocks:
            one = block_parameters(model, block)
            dense += count * (one.split / tensor + one.whole)
            routed += count * one.routed
        if chunk.mtp_layers:
            split, whole, inside = mtp_parameters(model)
            dense += chunk.mtp_layers * (split / tensor + whole)
            routed += chunk.mtp_layers * inside
        tables = chunk.embedding + (chunk.loss and not (model.tied_embeddings and chunk.embedding))
        dense += tables * model.vocab_size * model.hidden_size / tensor
    return dense, routed / experts_over
