"""Dispatcher backends: the one table that a new backend is added to.

A row says what carries the tokens, which library that is, what must be importable, and which limits the library has.
Everything else reads it: the legal values of the setting ``dispatcher``, the preflight probe, the legality rules, the
versions that a policy pins. Limits are data here and predicates in the rules, so a backend with new numbers needs
no new rule.

Standard library only: this module runs inside foreign training containers.
"""

from collections.abc import Mapping
from typing import NamedTuple

Release = tuple[int, int]


class Limits(NamedTuple):
    """What a backend's library can carry; the default of every field is "no limit".

    A group is the ranks that exchange tokens: expert_parallel x expert_tensor_parallel.

    Attributes:
        min_group: Fewest ranks of a group.
        group_sizes: Legal ranks of a group; empty = any.
        whole_domains: Whether a group larger than an NVLink domain must be whole domains.
        max_domain_ranks: Ranks of a group inside one NVLink domain.
        domain_experts_multiple: Experts of one NVLink domain are a multiple of it.
        sm_multiple: ``num_sms`` is a multiple of it.
        queue_pairs: Queue pairs per rank that Megatron-Core opens between nodes. Two SMs are one channel; every SM
            needs a pair of its own, unless the pairs are exactly one per channel.
        node_peers: Ranks of a node that a group between nodes is built for.
        hidden_multiple: ``hidden_size`` is a multiple of it.
        max_topk: Experts per token.
        max_local_experts: Experts of one rank.
        max_tokens_across_domains: Tokens of one rank and micro-batch, once a group spans NVLink domains.
        token_multiple: Tokens of one rank and micro-batch are a multiple of it.
        tested_group: Largest group that its authors report.
        equal_chunks: Whether the tokens per chunk of all kernels must be equal while permutation is fused into them.
        static_shapes: Whether expert buffers may have a fixed size (rank capacity), so that whole iterations can be
            captured in CUDA graphs.
        needs_rank_capacity: Whether it only works with a rank capacity.
    """

    min_group: int = 1
    group_sizes: tuple[int, ...] = ()
    whole_domains: bool = False
    max_domain_ranks: int | None = None
    domain_experts_multiple: int = 1
    sm_multiple: int = 1
    queue_pairs: int | None = None
    node_peers: int | None = None
    hidden_multiple: int = 1
    max_topk: int | None = None
    max_local_experts: int | None = None
    max_tokens_across_domains: int | None = None
    token_multiple: int = 1
    tested_group: int | None = None
    equal_chunks: bool = False
    static_shapes: bool = False
    needs_rank_capacity: bool = False


class Call(NamedTuple):
    """A call that Megatron-Core makes into a backend's library.

    Attributes:
        function: ``module:name.name``; of a method, ``self`` counts as a positional argument.
        positional: How many arguments are given by position.
        keywords: Arguments that are given by name.
        since: First Megatron-Core release that calls it so.
        setting: Only this setting asks for the call; Megatron-Core does without where the library does not take it.
    """

    function: str
    positional: int = 0
    keywords: tuple[str, ...] = ()
    since: Release = (0, 16)
    setting: str | None = None


class Backend(NamedTuple):
    """One way to bring tokens to their experts.

    Attributes:
        name: Value of the setting ``dispatcher``.
        library: Its word in the stack (``deep_ep``, ...); None = torch's own collectives.
        imports: What Megatron-Core imports of it: (module, names).
        flag: Megatron-Core's own word, in ``fused_a2a``, on whether those imports worked.
        extensions: Modules of compiled code that those imports load.
        calls: What Megatron-Core calls of it.
        compiles: Whether it compiles its kernels when it is first used, for which it needs CUDA's compiler.
        since: First Megatron-Core release that knows it.
        fields: Megatron-Core's further fields of it that are no setting: (field, first release, class default).
        limits: What it can carry.
        source: Where the limits come from.
    """

    name: str
    library: str | None = None
    imports: tuple[tuple[str, tuple[str, ...]], ...] = ()
    flag: str | None = None
    extensions: tuple[str, ...] = ()
    calls: tuple[Call, ...] = ()
    compiles: bool = False
    since: Release = (0, 16)
    fields: tuple[tuple[str, Release, bool | int | None], ...] = ()
    limits: Limits = Limits()
    source: str = ""

    @property
    def flex(self) -> bool:
        """Whether Megatron-Core builds it as the ``flex`` dispatcher: CUDA kernels that borrow SMs."""
        return self.library is not None


_ASYNC = ("previous_event", "async_finish", "allocate_on_comm_stream")
_COUNTS = ("num_tokens_per_rank", "num_tokens_per_rdma_rank", "is_token_in_rank", "num_tokens_per_expert")
_EP_SIZES = ("max_tokens_per_rank", "recv_capacity_per_rank", "hidden_dim")

_ROWS = (
    Backend("alltoall"),
    Backend("allgather"),
    Backend(
        "deepep",
        library="deep_ep",
        imports=(("deep_ep", ("Buffer",)), ("deep_ep.utils", ("EventHandle", "EventOverlap"))),
        flag="HAVE_DEEP_EP",
        extensions=("deep_ep_cpp",),
        calls=(
            Call("deep_ep:Buffer", 3),
            Call("deep_ep:Buffer.set_num_sms", 1),
            Call("deep_ep:Buffer.get_dispatch_config", 1),
            Call("deep_ep:Buffer.get_combine_config", 1),
            Call("deep_ep:Buffer.get_dispatch_layout", 3, _ASYNC),
            Call("deep_ep:Buffer.dispatch", 2, ("topk_idx", "topk_weights", *_COUNTS, *_ASYNC)),
            Call("deep_ep:Buffer.dispatch", 2, ("handle", *_ASYNC)),
            Call("deep_ep:Buffer.combine", 3, ("topk_weights", *_ASYNC)),
        ),
        limits=Limits(
            min_group=2,
            group_sizes=(2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 144, 160),
            sm_multiple=2,
            queue_pairs=24,
            node_peers=8,
            hidden_multiple=256,
            max_topk=32,
            max_local_experts=1024,
        ),
        source="DeepEP V1: deep_ep/buffer.py (set_num_sms, get_dispatch_config), csrc/kernels/internode.cu",
    ),
    Backend(
        "hybridep",
        library="deep_ep",
        imports=(("deep_ep", ("HybridEPBuffer",)),),
        flag="HAVE_HYBRIDEP",
        extensions=("deep_ep_cpp", "hybrid_ep_cpp"),
        calls=(
            Call(
                "deep_ep:HybridEPBuffer",
                0,
                (
                    "group", "hidden_dim", "max_num_of_tokens_per_rank", "num_local_experts", "use_fp8",
                    "num_sms_dispatch_api", "num_sms_combine_api",
                ),
            ),
            Call("deep_ep:HybridEPBuffer", 4, ("num_sms_preprocessing_api",), since=(0, 18)),
            Call(
                "deep_ep:HybridEPBuffer.dispatch_with_permute",
                1,
                (
                    "hidden", "routing_map", "probs", "scaling_factor", "num_of_experts_per_rank", "pad_multiple",
                    "num_permuted_tokens", "non_blocking",
                ),
            ),
            Call("deep_ep:HybridEPBuffer.combine_with_unpermute", 1, ("hidden", "probs", "handle", "pad_multiple")),
            Call(
                "deep_ep:HybridEPBuffer.dispatch_with_permute",
                1,
                ("hidden", "fuse_permute_dispatch"),
                since=(0, 17),
                setting="permute_fusion_into_hybridep",
            ),
        ),
        compiles=True,
        fields=(("moe_hybridep_pad_uneven_dispatch_inputs", (0, 19), False),),
        limits=Limits(
            whole_domains=True,
            max_domain_ranks=72,
            domain_experts_multiple=4,
            hidden_multiple=16,
            max_tokens_across_domains=21_844,
            equal_chunks=True,
            static_shapes=True,
        ),
        source="DeepEP, hybrid-ep branch: csrc/hybrid_ep/config.cuh",
    ),
    Backend(
        "ncclep",
        library="transformer_engine",
        imports=(("transformer_engine.pytorch", ("ep",)),),
        flag="HAVE_TE_EP",
        extensions=("transformer_engine_torch",),
        calls=(
            Call(
                "transformer_engine.pytorch.ep:ep_bootstrap",
                1,
                ("num_experts", *_EP_SIZES, "max_num_sms", "zero_copy"),
            ),
            Call("transformer_engine.pytorch.ep:EpBuffer", 0, ("top_k", *_EP_SIZES, "num_local_experts", "alignment")),
            Call("transformer_engine.pytorch.ep:ep_dispatch", 4, ("recv_tokens", "recv_topk_weights")),
            Call("transformer_engine.pytorch.ep:ep_combine", 2, ("num_local_tokens", "grad_out")),
        ),
        since=(0, 19),
        fields=(("moe_ncclep_static_shape", (0, 19), False), ("moe_ncclep_zero_copy", (0, 19), False)),
        limits=Limits(
            min_group=2, token_multiple=2, tested_group=64, static_shapes=True, needs_rank_capacity=True
        ),
        source="nccl_ep README; Megatron-Core core/transformer/moe/token_dispatcher.py:1529-1787",
    ),
)  # fmt: skip

BACKENDS: Mapping[str, Backend] = {row.name: row for row in _ROWS}
"""All dispatcher backends by name, in the order in which people read them."""

DISPATCHERS = tuple(BACKENDS)
FLEX_DISPATCHERS = tuple(name for name, row in BACKENDS.items() if row.flex)
