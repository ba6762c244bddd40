"""How many parameters a model has: by class, in total and active per token, and per block for one rank's share.

Counts follow the layer definitions of Megatron-Core; biases are counted where the model has them.
"""

from dataclasses import dataclass, fields
from functools import lru_cache

from autotune.predict.layers import Block, decoder_blocks, mtp_blocks
from autotune_trials.spec import ModelShape


@dataclass(frozen=True)
class ParameterCounts:
    """Parameters of a whole model by class.

    Attributes:
        embedding: Word embedding.
        output: Output layer; 0 when it shares the embedding's weights.
        attention: Softmax attention (multi-head, grouped-query, multi-latent, compressed).
        gated_delta_net: Linear attention by gated delta nets.
        mamba: Mamba mixers.
        dense: Dense feed-forward layers.
        router: Routers, and the projections around latent experts.
        routed: Routed experts.
        shared: Shared experts and their gates.
        mtp: Everything in multi-token-prediction layers.
        norms: Normalisation outside the mixers.
        vision: Vision encoder.
    """

    embedding: int = 0
    output: int = 0
    attention: int = 0
    gated_delta_net: int = 0
    mamba: int = 0
    dense: int = 0
    router: int = 0
    routed: int = 0
    shared: int = 0
    mtp: int = 0
    norms: int = 0
    vision: int = 0

    @property
    def total(self) -> int:
        """All of them."""
        return sum(getattr(self, item.name) for item in fields(self))


@dataclass(frozen=True)
class BlockParameters:
    """Parameters of one block by how they are shared out.

    Attributes:
        mixer_split: Token mixer: split over tensor-parallel ranks.
        mixer_whole: Token mixer: the same on all of them.
        dense: Dense feed-forward, split over tensor-parallel ranks.
        shared: Shared expert, split over tensor-parallel ranks.
        router: Router, latent projections and the shared expert's gate, the same on all ranks.
        routed: Routed experts, split over expert-parallel and expert-tensor-parallel ranks.
        norms: Normalisation in front of mixer and feed-forward, the same on all ranks.
    """

    mixer_split: int = 0
    mixer_whole: int = 0
    dense: int = 0
    shared: int = 0
    router: int = 0
    routed: int = 0
    norms: int = 0

    @property
    def split(self) -> int:
        """Split over tensor-parallel ranks."""
        return self.mixer_split + self.dense + self.shared

    @property
    def whole(self) -> int:
        """Held whole by every tensor-parallel rank."""
        return self.mixer_whole + self.router + self.norms

    @property
    def total(self) -> int:
        """All of them, on all ranks together."""
        return self.split + self.whole + self.routed


def head_sizes(model: ModelShape) -> tuple[int, int, int]:
    """Widths of all queries, of all keys (equal to all values), and of one head, of grouped-query attention."""
    head = model.kv_channels or model.hidden_size // model.num_attention_heads
    groups = model.num_query_groups or model.num_attention_heads
    return model.num_attention_heads * head, groups * head, head


@lru_cache(maxsize=4096)
def block_parameters(model: ModelShape, block: Block) -> BlockParameters:
    """Parameters of one block, over all ranks."""
    hidden = model.hidden_size
    split, whole = _mixer(model, block)
    gate = 2 if model.gated_linear_unit else 1
    bias = 1 if model.add_linear_bias else 0
    norms = hidden * ((block.mixer is not None) + (block.feed_forward is not None))
    if block.feed_forward == "dense":
        width = model.ffn_hidden_size
        dense = hidden * width * (gate + 1) + bias * (width * gate + hidden)
        return BlockParameters(split, whole, dense=dense, norms=norms)
    if block.feed_forward != "moe":
        return BlockParameters(split, whole, norms=norms)
    experts = model.num_experts or 0
    width = model.moe_ffn_hidden_size or model.ffn_hidden_size
    latent = model.moe_latent_size or hidden
    routed = experts * (latent * width * (gate + 1) + bias * (width * gate + latent))
    router = experts * (hidden + bias + model.expert_bias)
    if model.moe_latent_size:
        router += 2 * hidden * latent
    if model.shared_expert_gate:
        router += hidden
    shared = hidden * (model.shared_expert_size or 0) * (gate + 1)
    return BlockParameters(split, whole, shared=shared, router=router, routed=routed, norms=norms)


def _mixer(model: ModelShape, block: Block) -> tuple[int, int]:
    """Parameters of the token mixer: split over tensor-parallel ranks, and whole on each of them."""
    hidden, heads = model.hidden_size, model.num_attention_heads
    if block.mixer is None:
        return 0, 0
    if block.mixer == "mla":
        rank_kv, rotary = model.kv_lora_rank or 0, model.qk_pos_emb_head_dim or 0
        query = heads * ((model.qk_head_dim or 0) + rotary)
        value = heads * (model.v_head_dim or 0)
        up = rank_kv * (heads * (model.qk_head_dim or 0) + value)
        down = hidden * (rank_kv + rotary)
        normed = rank_kv
        if model.q_lora_rank:
            up, down = up + model.q_lora_rank * query, down + hidden * model.q_lora_rank
            normed += model.q_lora_rank
        else:
            up += hidden * query
        return up + value * hidden, down + (normed if model.qk_layernorm else 0)
    if block.mixer == "gdn":
        key, value, value_heads = gdn_widths(model)
        mixed = hidden * (2 * key + 2 * value + 2 * value_heads) + value * hidden
        return mixed + (2 * key + value) * model.gdn_conv_kernel + 2 * value_heads, model.gdn_value_head_dim or 0
    if block.mixer == "mamba":
        inner, state, mamba_heads = mamba_widths(model)
        mixed = hidden * (2 * inner + 2 * state + mamba_heads) + inner * hidden
        return mixed + (inner + 2 * state) * (model.mamba_conv_kernel + 1) + 3 * mamba_heads + inner, 0
    query, key, head = head_sizes(model)
    if block.mixer == "compressed":
        return _compressed(model, block, query, head)
    gate = query if model.attention_output_gate else 0
    split = hidden * (query + gate + 2 * key) + query * hidden
    if model.add_linear_bias:
        split += query + 2 * key + hidden
    if model.attention_sink:
        split += heads
    return split, 2 * head if model.qk_layernorm else 0


def _compressed(model: ModelShape, block: Block, query: int, head: int) -> tuple[int, int]:
    """Compressed attention: low-rank query, one key/value head, grouped low-rank output, compressor and indexer."""
    hidden, rank = model.hidden_size, model.q_lora_rank or 0
    output_rank = (model.output_lora_rank or 0) * model.output_groups
    split = rank * query if rank else hidden * query
    if output_rank:
        split += query // model.output_groups * output_rank + output_rank * hidden
    else:
        split += query * hidden
    whole = hidden * rank + rank + hidden * head + head + model.num_attention_heads
    if block.compression:
        overlap = 2 if block.compression == 4 else 1
        whole += 2 * overlap * hidden * head + block.compression * overlap * head + head
        if block.compression == 4 and model.index_num_heads:
            index = model.index_head_dim or 0
            whole += rank * model.index_num_heads * index + hidden * model.index_num_heads
            whole += 2 * overlap * hidden * index + block.compression * overlap * index + index
    return split, whole


def gdn_widths(model: ModelShape) -> tuple[int, int, int]:
    """Gated delta net: widths of all keys and of all values, and the number of value heads."""
    value_heads = model.gdn_num_value_heads or 0
    key = (model.gdn_num_key_heads or 0) * (model.gdn_key_head_dim or 0)
    return key, value_heads * (model.gdn_value_head_dim or 0), value_heads


def mamba_widths(model: ModelShape) -> tuple[int, int, int]:
    """Mamba: inner width, width of the state's input (and output) matrix, and the number of heads."""
    heads = model.mamba_num_heads or 0
    return heads * (model.mamba_head_dim or 0), model.mamba_num_groups * (model.mamba_state_dim or 0), heads


def mtp_parameters(model: ModelShape) -> tuple[int, int, int]:
    """Parameters of one multi-token-prediction layer: split over tensor ranks, whole on each, and routed."""
    inside = [block_parameters(model, block) for block in mtp_blocks(model)]
    if not inside:
        return 0, 0, 0
    hidden = model.hidden_size
    split = 2 * hidden * hidden + sum(item.split for item in inside)
    return split, 3 * hidden + sum(item.whole for item in inside), sum(item.routed for item in inside)


@lru_cache(maxsize=256)
def count_parameters(model: ModelShape) -> ParameterCounts:
    """Parameters of the whole model by class."""
    embedding = model.vocab_size * model.hidden_size
    mixers = {"gdn": 0, "mamba": 0, "attention": 0}
    dense = router = routed = shared = 0
    norms = model.hidden_size
    for block in decoder_blocks(model):
        counts = block_parameters(model, block)
        if block.mixer is not None:
            mixers[block.mixer if block.mixer in mixers else "attention"] += counts.mixer_split + counts.mixer_whole
        dense, router, routed = dense + counts.dense, router + counts.router, routed + counts.routed
        shared, norms = shared + counts.shared, norms + counts.norms
    mtp_layers = 1 if model.mtp_shared_weights and model.mtp_num_layers else model.mtp_num_layers
    return ParameterCounts(
        embedding=embedding,
        output=0 if model.tied_embeddings else embedding,
        attention=mixers["attention"],
        gated_delta_net=mixers["gdn"],
        mamba=mixers["mamba"],
        dense=dense,
        router=router,
        routed=routed,
        shared=shared,
        mtp=mtp_layers * sum(mtp_parameters(model)),
        norms=norms,
        vision=model.vision_parameters or 0,
    )


def active_parameters(model: ModelShape) -> int:
    """Parameters that one token meets: of the routed experts only its top-k, multi-token prediction left out."""
    counts = count_parameters(model)
    active = counts.routed * model.router_topk // (model.num_experts or 1) if counts.routed else 0
    return counts.total - counts.mtp - counts.routed + active
