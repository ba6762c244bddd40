"""Forward and backward time of token mixers: attention of all kinds, gated delta nets, Mamba. Seconds."""

from collections.abc import Iterator

from autotune.predict.flops import block_flops
from autotune.predict.hardware import Hardware
from autotune.predict.kernels import attention_time, gemm_time, point_to_point_time, streaming_rate, tensor_group_time
from autotune.predict.layers import Block
from autotune.predict.parameters import gdn_widths, head_sizes, mamba_widths
from autotune.predict.work import BACKWARD_LAUNCHES, BF16, KERNEL_FLOOR_S, LAUNCHES_MIXER, BlockTime, Work
from autotune_trials.spec import ModelShape

SCAN_CHANNELS_PER_S = 4.5e10
"""Token-channels per second of a chunked scan (Mamba, gated delta net) forward: bound by its chain of small kernels,
so much the same on all GPUs (level set by Nemotron 3 rows of Megatron-Bridge's performance summaries)."""


def mixer_time(
    hardware: Hardware, model: ModelShape, block: Block, work: Work
) -> tuple[BlockTime, BlockTime, BlockTime]:
    """Forward, backward and recomputed part of a token mixer with its norm and residual."""
    products = tuple(_mixer_products(model, block, work.tensor_parallel))
    forward_gemm = backward_gemm = up_gemm = 0.0
    for inputs, outputs, is_up in products:
        one = gemm_time(hardware, work.precision, work.tokens, outputs, inputs)
        forward_gemm, backward_gemm = forward_gemm + one[0], backward_gemm + one[1]
        up_gemm += one[0] if is_up else 0.0
    flops = 2.0 * block_flops(model, block, work.seq_length).core_attention * work.tokens / work.tensor_parallel
    streaming = streaming_rate(hardware)
    if block.mixer in ("gdn", "mamba"):
        channels = mamba_widths(model)[0] if block.mixer == "mamba" else gdn_widths(model)[1]
        scan = work.tokens * channels / work.tensor_parallel / SCAN_CHANNELS_PER_S
        attention, attention_backward = scan, 2.2 * scan
    else:
        head_rows = model.num_attention_heads / work.tensor_parallel * work.tokens / 4096
        # Small heads are bound by the exponentials, not by the products.
        head = (model.qk_head_dim or 128) if block.mixer == "mla" else head_sizes(model)[2]
        flops *= max(1.0, 128 / head) ** 0.6
        attention, attention_backward = attention_time(
            hardware, flops, max(head_rows, 0.1), uneven_heads=block.mixer == "mla"
        )
    width = sum(outputs for _, outputs, _ in products)
    local = work.tokens * model.hidden_size / work.tensor_parallel
    norm = local * 2 * BF16 / streaming
    # Norm and residual pass the hidden state seven times, rotary embedding and copies the projections four times,
    # and norms of queries and keys twice more; every kernel also has a floor, however few tokens it sees.
    passes = 6.0 if model.qk_layernorm else 4.0
    floor = LAUNCHES_MIXER * KERNEL_FLOOR_S
    elementwise = (local * 7 * BF16 + work.tokens * width * passes * BF16) / streaming + floor
    context = 0.0
    if work.context_parallel > 1:
        key_values = work.tokens * _key_value_width(model, block) * BF16 / work.tensor_parallel
        across = work.tensor_parallel * work.context_parallel > hardware.nvlink_domain_gpus
        step = point_to_point_time(hardware, key_values, across=across)
        # The ring hides behind attention block by block; its start-up and any excess stay.
        context = max(0.0, step * (work.context_parallel - 1) - 0.8 * attention)
    gathered = work.tokens * model.hidden_size * BF16
    collective = tensor_group_time(hardware, work.tensor_parallel, gathered)
    recomputed = BlockTime(
        attention=attention if "core_attn" in work.recompute else 0.0,
        elementwise=norm if "layernorm" in work.recompute else 0.0,
        gemm=up_gemm if "mla_up_proj" in work.recompute else 0.0,
    )
    forward = BlockTime(
        gemm=forward_gemm,
        attention=attention,
        elementwise=elementwise,
        tensor_parallel=2 * collective,
        context_parallel=context,
        launches_mixer=LAUNCHES_MIXER,
    )
    backward = BlockTime(
        gemm=backward_gemm,
        attention=attention_backward,
        elementwise=1.8 * elementwise,
        tensor_parallel=3 * collective,
        context_parallel=2 * context,
        launches_mixer=LAUNCHES_MIXER * BACKWARD_LAUNCHES,
    )
    return forward, backward, recomputed


def _mixer_products(model: ModelShape, block: Block, tensor_parallel: int) -> Iterator[tuple[float, float, bool]]:
    """Inputs and outputs of the mixer's linear layers on one rank, and whether it is an MLA up-projection."""
    hidden, heads, split = model.hidden_size, model.num_attention_heads, tensor_parallel
    if block.mixer == "mla":
        rank, rank_kv, rotary = model.q_lora_rank, model.kv_lora_rank or 0, model.qk_pos_emb_head_dim or 0
        nope, value = model.qk_head_dim or 0, model.v_head_dim or 0
        if rank:
            yield hidden, rank, False
        yield rank or hidden, heads * (nope + rotary) / split, bool(rank)
        yield hidden, rank_kv + rotary, False
        yield rank_kv, heads * (nope + value) / split, True
        yield heads * value / split, hidden, False
        return
    if block.mixer == "gdn":
        key, value, value_heads = gdn_widths(model)
        yield hidden, (2 * key + 2 * value + 2 * value_heads) / split, False
        yield value / split, hidden, False
        return
    if block.mixer == "mamba":
        inner, state, mamba_heads = mamba_widths(model)
        yield hidden, (2 * inner + 2 * state + mamba_heads) / split, False
        yield inner / split, hidden, False
        return
    query, key, head = head_sizes(model)
    if block.mixer == "compressed":
        rank = model.q_lora_rank
        if rank:
            yield hidden, rank, False
        yield rank or hidden, query / split, bool(rank)
        yield hidden, head, False
        output_rank = (model.output_lora_rank or 0) * model.output_groups
        if output_rank:
            yield query / model.output_groups / split, output_rank, False
        yield (output_rank or query) / split, hidden, False
        if block.compression:
            yield hidden, 4.0 * head, False
        return
    gate = query if model.attention_output_gate else 0
    yield hidden, (query + 2 * key + gate) / split, False
    yield query / split, hidden, False


def _key_value_width(model: ModelShape, block: Block) -> float:
    """Elements of one token's keys and values, as the context-parallel ring passes them on."""
    if block.mixer == "mla":
        one = (model.qk_head_dim or 0) + (model.qk_pos_emb_head_dim or 0) + (model.v_head_dim or 0)
        return float(model.num_attention_heads * one)
    if block.mixer == "compressed":
        return float(head_sizes(model)[2])
    return 2.0 * head_sizes(model)[1]
