"""Floating-point operations of the model itself, by part, as Megatron-Core's throughput log counts them.

Three passes (forward, input gradient, weight gradient) of two operations per multiply-add; attention counts the causal
half. Router products, recomputation, padding and the optimizer are left out, so that the number does not depend on any
setting. Formulas: ``megatron/training/training.py`` of Megatron-LM 0.19. Where this module knows better it departs from
them: a sliding window counts its own tokens, and Mamba its real inner width.
"""

from dataclasses import dataclass, fields
from functools import lru_cache

from autotune.predict.layers import Block, decoder_blocks, mtp_blocks
from autotune.predict.parameters import gdn_widths, head_sizes, mamba_widths
from autotune_trials.spec import ModelShape

PASSES = 3
MULTIPLY_ADD = 2


@dataclass(frozen=True)
class FlopCounts:
    """Operations per token, all three passes, by part.

    Attributes:
        mixer: Projections of attention, gated delta nets and Mamba, their convolutions and scans.
        core_attention: Query-key products and their product with the values.
        dense: Dense feed-forward layers.
        routed: Routed experts, and the projections around latent ones.
        shared: Shared experts.
        mtp: What multi-token-prediction layers add to all of these, and their projections.
        logits: Output layer, once per prediction.
    """

    mixer: float = 0.0
    core_attention: float = 0.0
    dense: float = 0.0
    routed: float = 0.0
    shared: float = 0.0
    mtp: float = 0.0
    logits: float = 0.0

    @property
    def total(self) -> float:
        """All parts."""
        return float(sum(getattr(self, item.name) for item in fields(self)))


@dataclass(frozen=True)
class BlockFlops:
    """Multiply-adds of one block in one pass over one token."""

    mixer: float = 0.0
    core_attention: float = 0.0
    dense: float = 0.0
    routed: float = 0.0
    shared: float = 0.0

    @property
    def total(self) -> float:
        """All parts."""
        return self.mixer + self.core_attention + self.dense + self.routed + self.shared


@lru_cache(maxsize=4096)
def block_flops(model: ModelShape, block: Block, seq_length: int) -> BlockFlops:
    """Multiply-adds of one block in one pass over one token; ``MULTIPLY_ADD`` x ``PASSES`` x them are its FLOPs."""
    mixer, core = _mixer(model, block, seq_length)
    hidden = model.hidden_size
    matrices = 3 if model.gated_linear_unit else 2
    if block.feed_forward == "dense":
        return BlockFlops(mixer, core, dense=hidden * model.ffn_hidden_size * matrices)
    if block.feed_forward != "moe":
        return BlockFlops(mixer, core)
    latent = model.moe_latent_size or hidden
    width = model.moe_ffn_hidden_size or model.ffn_hidden_size
    routed = latent * width * model.router_topk * matrices
    if model.moe_latent_size:
        routed += 2 * hidden * latent
    shared = hidden * (model.shared_expert_size or 0) * matrices
    return BlockFlops(mixer, core, routed=routed, shared=shared)


def _mixer(model: ModelShape, block: Block, seq_length: int) -> tuple[float, float]:
    """Token-linear multiply-adds of the mixer, and those of its attention scores."""
    hidden, heads = model.hidden_size, model.num_attention_heads
    if block.mixer is None:
        return 0.0, 0.0
    seen = _tokens_seen(seq_length, block.window)
    if block.mixer == "mla":
        rank_kv, rotary = model.kv_lora_rank or 0, model.qk_pos_emb_head_dim or 0
        head, value = (model.qk_head_dim or 0) + rotary, model.v_head_dim or 0
        rank = model.q_lora_rank
        query = rank * (hidden + heads * head + 1) if rank else hidden * heads * head
        key_value = rank_kv * (hidden + heads * (head - rotary + value) + 1) + hidden * rotary
        return query + key_value + heads * value * hidden, seen * heads * (head + value)
    if block.mixer == "gdn":
        key, value, value_heads = gdn_widths(model)
        projections = hidden * (2 * key + 2 * value + 2 * value_heads) + hidden * value
        delta_rule = 4 * value_heads * (model.gdn_value_head_dim or 0) ** 2
        return projections + model.gdn_conv_kernel * (2 * key + value) + delta_rule, 0.0
    if block.mixer == "mamba":
        inner, state, mamba_heads = mamba_widths(model)
        projections = hidden * (2 * inner + 2 * state + mamba_heads) + inner * hidden
        return projections + 3.5 * inner * (model.mamba_state_dim or 0), 0.0
    query, key, head = head_sizes(model)
    if block.mixer == "compressed":
        return _compressed(model, block, seq_length, query, head)
    gate = query if model.attention_output_gate else 0
    return hidden * (2 * query + 2 * key + gate), seen * 2 * query


def _compressed(model: ModelShape, block: Block, seq_length: int, query: int, head: int) -> tuple[float, float]:
    hidden, rank = model.hidden_size, model.q_lora_rank or 0
    output_rank = (model.output_lora_rank or 0) * model.output_groups
    linear: float = (hidden * rank + rank * query) if rank else hidden * query
    if output_rank:
        linear += query // model.output_groups * output_rank + output_rank * hidden
    else:
        linear += query * hidden
    linear += hidden * head
    seen = _tokens_seen(seq_length, model.sliding_window)
    if block.compression:
        overlap = 2 if block.compression == 4 else 1
        linear += 2 * overlap * hidden * head
        entries = seq_length / block.compression / 2
        if block.compression == 4 and model.index_num_heads:
            index = model.index_head_dim or 0
            linear += rank * model.index_num_heads * index + hidden * model.index_num_heads
            linear += 2 * overlap * hidden * index + entries * model.index_num_heads * index
            entries = min(entries, model.index_topk or entries)
        seen += entries
    return linear, seen * 2 * query


def _tokens_seen(seq_length: int, window: int | None) -> float:
    """Mean number of keys per query under the causal mask, counted as Megatron does (half the square)."""
    if window is None or window >= seq_length:
        return seq_length / 2
    return window - window * window / (2 * seq_length)


@lru_cache(maxsize=1024)
def flops_per_token(model: ModelShape, seq_length: int) -> FlopCounts:
    """Operations of training on one token of sequences of this length, all passes, by part."""
    scale = PASSES * MULTIPLY_ADD
    sums = dict.fromkeys(("mixer", "core_attention", "dense", "routed", "shared"), 0.0)
    for block in decoder_blocks(model):
        counts = block_flops(model, block, seq_length)
        for name in sums:
            sums[name] += scale * getattr(counts, name)
    hidden, vocabulary = model.hidden_size, model.vocab_size
    mtp: float = model.mtp_num_layers * (2 * hidden * hidden + 3 * hidden)
    mtp += model.mtp_num_layers * sum(block_flops(model, block, seq_length).total for block in mtp_blocks(model))
    logits = hidden * vocabulary * (1 + model.mtp_num_layers)
    return FlopCounts(**sums, mtp=scale * mtp, logits=float(scale * logits))


def flops_per_step(model: ModelShape, seq_length: int, global_batch_size: int) -> float:
    """Operations of one optimizer step over all ranks."""
    return flops_per_token(model, seq_length).total * seq_length * global_batch_size
