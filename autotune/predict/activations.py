"""What one layer keeps of one micro-batch for its backward pass, tensor by tensor, on one rank.

Every tensor carries the name of the module that saves it, so that recomputation and offload take away exactly what
they do in Megatron-Core. Rules (Transformer Engine layers, flash attention, no dropout): a linear layer saves its
input, a normalisation its input, a gated activation its input, attention its queries, keys, values, output and one fp32
number per head and token.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from autotune.predict.layers import Block, mtp_blocks
from autotune.predict.parameters import gdn_widths, head_sizes, mamba_widths
from autotune_trials.spec import ModelShape

GDN_CHUNK = 64
"""Tokens per chunk of the gated delta rule, whose triangular matrices are kept (flash-linear-attention)."""


@dataclass(frozen=True)
class Share:
    """One rank's part of one micro-batch.

    Attributes:
        tokens: Tokens after context parallelism.
        stream_tokens: Of them, those of the residual stream on this rank (fewer under sequence parallelism).
        tensor_parallel: Ranks that split one layer.
        expert_tensor_parallel: Ranks that split one expert.
        routed_rows: Token copies that this rank's experts process.
        element_bytes: Bytes of one activation.
        linear_input_bytes: Bytes of one saved input of a linear layer (below ``element_bytes`` in fp8).
        context_parallel: Ranks that split one sequence.
        quantized: Whether linear layers save quantized copies beside what others save.
        received_rows: Tokens received over expert parallelism that the dispatcher keeps, each once per rank.
    """

    tokens: float
    stream_tokens: float
    tensor_parallel: int
    expert_tensor_parallel: int
    routed_rows: float
    element_bytes: float
    linear_input_bytes: float
    context_parallel: int = 1
    quantized: bool = False
    received_rows: float = 0.0


@dataclass(frozen=True)
class BlockActivations:
    """Bytes that one layer needs for one micro-batch on one rank.

    Attributes:
        mixer: Kept by the token mixer.
        dense: Kept by the dense feed-forward part.
        routed: Kept by router and routed experts.
        shared: Kept by the shared expert.
        rebuilt: Rebuilt in the backward pass, one layer at a time.
        working: Gradients and copies in flight during the layer's backward pass, on top of what is kept.
    """

    mixer: float
    dense: float
    routed: float
    shared: float
    rebuilt: float
    working: float

    @property
    def kept(self) -> float:
        """Everything that stays from the forward to the backward pass."""
        return self.mixer + self.dense + self.routed + self.shared


_DENSE = ("dense_input", "dense_hidden", "dense_activation")
_ROUTED = ("mlp_norm", "mlp_norm_output", "router", "latent", "received", "expert_fc1", "moe_act", "expert_fc2")
_SHARED = ("shared_hidden", "shared_activation", "shared_output")

_RECOMPUTED: Mapping[str, tuple[str, ...]] = {
    "layernorm": ("separate_norm_output", "mlp_norm_output"),
    "moe_act": ("expert_fc2",),
    "mla_up_proj": ("up_projection_input", "mla_heads"),
    "mlp": _DENSE,
    "moe": tuple(name for name in (*_ROUTED, *_SHARED) if name not in ("mlp_norm", "mlp_norm_output")),
    "shared_experts": _SHARED,
    "gdn_norm_out": ("gdn_norm_output",),
}
"""Tensors that selective recomputation of a module rebuilds instead of keeping them."""

_OFFLOADED: Mapping[str, tuple[str, ...]] = {
    "attn_norm": ("attn_norm",),
    "qkv_linear": ("qkv_input", "separate_norm_output"),
    "core_attn": ("heads", "mla_heads"),
    "attn_proj": ("attention_output",),
    "mlp_norm": ("mlp_norm", "dense_norm"),
    "expert_fc1": ("expert_fc1",),
    "moe_act": ("moe_act",),
    "fused_group_mlp": ("expert_fc1", "moe_act", "expert_fc2"),
}
"""Tensors that wait in host memory when a module is offloaded."""


@lru_cache(maxsize=65536)
def block_activations(
    model: ModelShape, block: Block, share: Share, recompute: tuple[str, ...] = (), offload: tuple[str, ...] = ()
) -> BlockActivations:
    """Bytes that one layer keeps and needs; ``recompute`` may be ``("full",)``, which keeps the layer's input only."""
    mixer = _mixer_tensors(model, block, share)
    feed_forward = _feed_forward_tensors(model, block, share)
    everything = sum(mixer.values()) + sum(feed_forward.values())
    working = _working(model, block, share, sum(feed_forward.values()))
    if "full" in recompute:
        entry = share.stream_tokens * model.hidden_size * model.num_residual_streams * share.element_bytes
        return BlockActivations(entry, 0.0, 0.0, 0.0, everything - entry, working)
    rebuilt = _drop(mixer, feed_forward, recompute, _RECOMPUTED)
    if "core_attn" in recompute and block.mixer == "mha":
        # The checkpoint keeps the packed projection alive through its value slice, beside the rotated copies.
        query, key, _ = head_sizes(model)
        mixer["heads"] += share.tokens / share.tensor_parallel * share.element_bytes * (query + key)
    _drop(mixer, feed_forward, offload, _OFFLOADED)
    return BlockActivations(
        sum(mixer.values()),
        _sum(feed_forward, ("dense_norm", *_DENSE)),
        _sum(feed_forward, _ROUTED),
        _sum(feed_forward, _SHARED),
        rebuilt,
        working,
    )


@lru_cache(maxsize=4096)
def mtp_activations(
    model: ModelShape, share: Share, recompute: tuple[str, ...] = (), offload: tuple[str, ...] = ()
) -> BlockActivations:
    """Bytes of one multi-token-prediction layer: two norms, their joined output, its projection and the blocks."""
    inside = [block_activations(model, block, share, recompute, offload) for block in mtp_blocks(model)]
    stream = share.stream_tokens * model.hidden_size
    joined = stream * (3 * share.element_bytes + 2 * share.linear_input_bytes)
    return BlockActivations(
        joined + sum(item.mixer for item in inside),
        sum(item.dense for item in inside),
        sum(item.routed for item in inside),
        sum(item.shared for item in inside),
        max(item.rebuilt for item in inside),
        max(item.working for item in inside),
    )


def _drop(
    mixer: dict[str, float],
    feed_forward: dict[str, float],
    modules: Iterable[str],
    table: Mapping[str, tuple[str, ...]],
) -> float:
    """Take the tensors of these modules away; the bytes that went."""
    gone = 0.0
    for module in modules:
        for name in table.get(module, ()):
            gone += mixer.pop(name, 0.0) + feed_forward.pop(name, 0.0)
    return gone


def _sum(tensors: Mapping[str, float], names: Iterable[str]) -> float:
    return sum(tensors.get(name, 0.0) for name in names)


def _mixer_tensors(model: ModelShape, block: Block, share: Share) -> dict[str, float]:
    if block.mixer is None:
        return {}
    element, linear = share.element_bytes, share.linear_input_bytes
    stream, split = share.stream_tokens, share.tokens / share.tensor_parallel
    hidden = model.hidden_size
    tensors = {"attn_norm": stream * hidden * element * model.num_residual_streams}
    # Attention's output is saved by attention and by its projection: one tensor, unless quantized or sent on.
    copies = element + (linear if share.quantized else 0.0) + (element if share.context_parallel > 1 else 0.0)
    if block.mixer == "mla":
        heads, rotary = model.num_attention_heads, model.qk_pos_emb_head_dim or 0
        rank, rank_kv = model.q_lora_rank or 0, model.kv_lora_rank or 0
        head, value = (model.qk_head_dim or 0) + rotary, model.v_head_dim or 0
        # Two down projections read one norm output; quantized, each keeps its own copy.
        tensors["separate_norm_output"] = stream * hidden * (2 * linear if share.quantized else element)
        tensors["low_rank"] = stream * (rank + rank_kv + rotary) * element
        tensors["up_projection_input"] = stream * (rank + rank_kv) * linear
        tensors["mla_heads"] = split * heads * ((2 * head + value) * element)
        tensors["attention_output"] = split * heads * (value * copies + 4)
        return tensors
    if block.mixer == "gdn":
        key, value, value_heads = gdn_widths(model)
        tensors["qkv_input"] = stream * hidden * linear
        # The packed projection (the convolution's input is a slice of it), normalised queries and keys, both again once
        # per value head, values, the chunks' matrices; decay and step size in fp32.
        heads = 2 * key + 2 * value + 2 * value_heads + 2 * key + value + value_heads * GDN_CHUNK
        if value_heads > (model.gdn_num_key_heads or 0):
            heads += 2 * value_heads * (model.gdn_key_head_dim or 0)
        tensors["heads"] = split * (element * heads + 8 * value_heads)
        tensors["attention_output"] = split * 2 * value * element
        tensors["gdn_norm_output"] = split * value * linear
        return tensors
    if block.mixer == "mamba":
        inner, state, mamba_heads = mamba_widths(model)
        tensors["qkv_input"] = stream * hidden * linear
        tensors["heads"] = split * (2 * inner + 2 * state + mamba_heads) * element
        tensors["attention_output"] = split * inner * (element + linear)
        return tensors
    query, key, head = head_sizes(model)
    tensors["qkv_input"] = stream * hidden * linear
    if block.mixer == "compressed":
        tensors["low_rank"] = stream * 2 * (model.q_lora_rank or 0) * element
        entries = 2 * head + (4 * head + hidden if block.compression else 0)
        tensors["heads"] = split * 2 * query * element + stream * entries * element
        output_rank = (model.output_lora_rank or 0) * model.output_groups
        tensors["attention_output"] = split * (query * copies + output_rank * linear + 4 * model.num_attention_heads)
        return tensors
    if model.qk_layernorm:
        tensors["qk_norm_input"] = split * (query + key) * element
    gate = 2 * query * element if model.attention_output_gate else 0.0
    tensors["heads"] = split * (query + 2 * key) * element
    tensors["attention_output"] = split * (query * copies + gate + 4 * model.num_attention_heads)
    return tensors


def _feed_forward_tensors(model: ModelShape, block: Block, share: Share) -> dict[str, float]:
    if block.feed_forward is None:
        return {}
    element, linear = share.element_bytes, share.linear_input_bytes
    stream, split = share.stream_tokens, share.tokens / share.tensor_parallel
    hidden, gate = model.hidden_size, 2 if model.gated_linear_unit else 1
    residual = stream * hidden * element * model.num_residual_streams
    if block.feed_forward == "dense":
        return {
            "dense_norm": residual,
            "dense_input": stream * hidden * linear,
            "dense_hidden": split * gate * model.ffn_hidden_size * element,
            "dense_activation": split * model.ffn_hidden_size * linear,
        }
    latent = model.moe_latent_size
    width = (model.moe_ffn_hidden_size or model.ffn_hidden_size) / share.expert_tensor_parallel
    shared = model.shared_expert_size or 0
    tensors = {
        "mlp_norm": residual,
        "mlp_norm_output": stream * hidden * element,
        # Logits, scores and probabilities in fp32, the routing map, and positions of the permutation.
        "router": stream * 13 * (model.num_experts or 0) + share.routed_rows * 12,
        "received": share.received_rows * (latent or hidden) * element,
        "expert_fc1": share.routed_rows * (latent or hidden) * linear,
        "moe_act": share.routed_rows * (gate * width * element + 4),
        "expert_fc2": share.routed_rows * width * linear,
    }
    if latent:
        tensors["latent"] = stream * latent * linear
    if shared:
        copy = stream * hidden * linear if share.quantized else 0.0
        tensors["shared_hidden"] = split * gate * shared * element + copy
        tensors["shared_activation"] = split * shared * linear
        if model.shared_expert_gate:
            tensors["shared_output"] = stream * hidden * element
    return tensors


def _working(model: ModelShape, block: Block, share: Share, feed_forward: float) -> float:
    """Peak of gradients and copies in the layer's backward pass, which frees what it has consumed."""
    element, split, stream = share.element_bytes, share.tokens / share.tensor_parallel, share.stream_tokens
    hidden, gate = model.hidden_size, 2 if model.gated_linear_unit else 1
    latent = model.moe_latent_size or hidden
    gathered = share.tokens * hidden * element if share.stream_tokens < share.tokens else 0.0
    peak = 0.0
    if block.feed_forward == "dense":
        peak = split * gate * model.ffn_hidden_size * element + gathered
    elif block.feed_forward == "moe":
        width = (model.moe_ffn_hidden_size or model.ffn_hidden_size) / share.expert_tensor_parallel
        rows = share.routed_rows * element
        # A gradient is exchanged out of place; then the expert's own gradients meet it.
        peak = rows * max(2 * latent, latent + gate * width)
    if block.mixer is not None:
        peak = max(peak, _mixer_working(model, block, share) + gathered - feed_forward)
    return peak + stream * hidden * element


def _mixer_working(model: ModelShape, block: Block, share: Share) -> float:
    """Gradients of what the mixer keeps: queries, keys, values and output; queries once more in fp32."""
    split, element = share.tokens / share.tensor_parallel, share.element_bytes
    if block.mixer == "mla":
        head = (model.qk_head_dim or 0) + (model.qk_pos_emb_head_dim or 0)
        value = model.v_head_dim or 0
        return split * model.num_attention_heads * (element * (2 * head + 2 * value) + 4 * head)
    if block.mixer == "gdn":
        key, value, _ = gdn_widths(model)
        return split * element * (2 * key + 4 * value)
    if block.mixer == "mamba":
        inner, state, _ = mamba_widths(model)
        return split * element * (4 * inner + 2 * state)
    query, key, _ = head_sizes(model)
    return split * (element * (2 * query + 2 * key) + 4 * query)
