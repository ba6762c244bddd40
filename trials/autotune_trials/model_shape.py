"""The architecture of a model, as trials, legality rules and predictions read it."""

from dataclasses import dataclass


@dataclass(frozen=True)
class ModelShape:
    """The architecture of the model, without anything that is tuned.

    Sizes are counts of elements, not bytes. ``None`` means "not used".

    Attributes:
        name: Model name, for people.
        num_layers: Decoder layers, multi-token-prediction layers not counted.
        hidden_size: Width of the residual stream.
        num_attention_heads: Query heads.
        vocab_size: Rows of the embedding, padding included.
        ffn_hidden_size: Width of the dense feed-forward layers.
        num_query_groups: Key/value heads (grouped-query attention); None = as many as query heads.
        kv_channels: Size of one head; None = hidden_size / num_attention_heads.
        num_experts: Routed experts per MoE layer; None = a dense model.
        router_topk: Experts per token.
        moe_ffn_hidden_size: Width of one routed expert.
        shared_expert_size: Width of the shared expert; None = no shared expert.
        num_dense_layers: Leading decoder layers without experts.
        router_score_function: ``softmax`` or ``sigmoid``.
        router_num_groups: Expert groups of group-limited routing.
        router_group_topk: Groups a token may visit.
        expert_bias: Whether the router has the bias that balances load without an auxiliary loss.
        aux_loss_coeff: Weight of the load-balancing loss.
        attention: ``mha`` (also grouped-query), ``mla``, or ``compressed`` (one key/value head, compressed entries).
        q_lora_rank: MLA: rank of the query projection; None = full.
        kv_lora_rank: MLA: rank of the key/value projection.
        qk_head_dim: MLA: size of a query/key head without the rotary part.
        qk_pos_emb_head_dim: MLA: size of the rotary part.
        v_head_dim: MLA: size of a value head.
        qk_layernorm: Whether queries and keys are normalised.
        mtp_num_layers: Multi-token-prediction layers.
        tied_embeddings: Whether the output layer shares the embedding's weights.
        rotary_base: Base of the rotary position embedding.
        gated_linear_unit: Whether feed-forward layers and experts have a gate beside their input projection (SwiGLU).
        add_linear_bias: Whether attention projections, experts and the router carry biases.
        shared_expert_gate: Whether a gate of its own scales the shared expert.
        moe_latent_size: Width in which routed experts work, with projections before and after; None = hidden_size.
        attention_output_gate: Whether the query projection also yields a gate on the attention's output.
        full_attention_period: One layer in so many attends to the whole sequence; the others use a sliding window,
            or a gated delta net where ``gdn_num_value_heads`` is set. 1 = every layer.
        sliding_window: Tokens that a windowed layer sees; None = no window anywhere.
        attention_sink: Whether every head has a learned sink in its softmax.
        gdn_num_key_heads: Gated delta net: heads of queries and keys.
        gdn_key_head_dim: Gated delta net: size of one of them.
        gdn_num_value_heads: Gated delta net: heads of values.
        gdn_value_head_dim: Gated delta net: size of one of them.
        gdn_conv_kernel: Gated delta net: taps of the causal convolution.
        hybrid_pattern: One letter per layer where a layer is a single block: ``M`` Mamba, ``*`` attention,
            ``E`` experts, ``-`` feed-forward; None = every layer is attention plus feed-forward.
        mtp_hybrid_pattern: The same for one multi-token-prediction layer.
        mtp_shared_weights: Whether all multi-token-prediction layers are one layer applied again.
        mamba_num_heads: Mamba: heads.
        mamba_head_dim: Mamba: size of one head.
        mamba_state_dim: Mamba: size of the state per channel.
        mamba_num_groups: Mamba: groups that share the state's input and output matrices.
        mamba_conv_kernel: Mamba: taps of the causal convolution.
        kv_compression: Compressed attention: tokens that one key/value entry stands for, per layer from the first to
            the last multi-token-prediction layer, comma-joined (0 = window only); None = no compression.
        output_lora_rank: Compressed attention: rank of the output projection; None = full.
        output_groups: Compressed attention: groups of heads that the output projection's first half treats apart.
        index_num_heads: Compressed attention: heads of the indexer that picks entries where the ratio is 4.
        index_head_dim: Compressed attention: size of one of them.
        index_topk: Compressed attention: entries that the indexer picks per token.
        num_hash_layers: Leading expert layers that route by token id, without a learned router's choice.
        num_residual_streams: Copies of the residual stream (hyper-connections).
        vision_parameters: Parameters of the vision encoder on the first stage; None = text only.
    """

    name: str
    num_layers: int
    hidden_size: int
    num_attention_heads: int
    vocab_size: int
    ffn_hidden_size: int
    num_query_groups: int | None = None
    kv_channels: int | None = None
    num_experts: int | None = None
    router_topk: int = 2
    moe_ffn_hidden_size: int | None = None
    shared_expert_size: int | None = None
    num_dense_layers: int = 0
    router_score_function: str = "softmax"
    router_num_groups: int | None = None
    router_group_topk: int | None = None
    expert_bias: bool = False
    aux_loss_coeff: float = 0.0
    attention: str = "mha"
    q_lora_rank: int | None = None
    kv_lora_rank: int | None = None
    qk_head_dim: int | None = None
    qk_pos_emb_head_dim: int | None = None
    v_head_dim: int | None = None
    qk_layernorm: bool = False
    mtp_num_layers: int = 0
    tied_embeddings: bool = False
    rotary_base: int = 10000
    gated_linear_unit: bool = True
    add_linear_bias: bool = False
    shared_expert_gate: bool = False
    moe_latent_size: int | None = None
    attention_output_gate: bool = False
    full_attention_period: int = 1
    sliding_window: int | None = None
    attention_sink: bool = False
    gdn_num_key_heads: int | None = None
    gdn_key_head_dim: int | None = None
    gdn_num_value_heads: int | None = None
    gdn_value_head_dim: int | None = None
    gdn_conv_kernel: int = 4
    hybrid_pattern: str | None = None
    mtp_hybrid_pattern: str | None = None
    mtp_shared_weights: bool = False
    mamba_num_heads: int | None = None
    mamba_head_dim: int | None = None
    mamba_state_dim: int | None = None
    mamba_num_groups: int = 1
    mamba_conv_kernel: int = 4
    kv_compression: str | None = None
    output_lora_rank: int | None = None
    output_groups: int = 1
    index_num_heads: int | None = None
    index_head_dim: int | None = None
    index_topk: int | None = None
    num_hash_layers: int = 0
    num_residual_streams: int = 1
    vision_parameters: int | None = None

    @property
    def layer_kinds(self) -> str:
        """One letter per decoder layer, from the first to the last.

        A transformer layer (token mixer plus feed-forward) is ``a`` with full attention, ``w`` with a sliding window
        or ``g`` with a gated delta net; a single-block layer is the letter of ``hybrid_pattern``. Every
        ``full_attention_period``-th layer is the full one.
        """
        if self.hybrid_pattern is not None:
            return self.hybrid_pattern
        other = "g" if self.gdn_num_value_heads else "w"
        period = self.full_attention_period
        return "".join("a" if (i + 1) % period == 0 else other for i in range(self.num_layers))

    @property
    def num_moe_layers(self) -> int:
        """Decoder layers with routed experts."""
        if self.num_experts is None:
            return 0
        return self.hybrid_pattern.count("E") if self.hybrid_pattern else self.num_layers - self.num_dense_layers
