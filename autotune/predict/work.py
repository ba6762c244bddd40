"""What the time of a block depends on, and that time by part."""

from dataclasses import dataclass
from operator import add
from typing import NamedTuple

BF16 = 2.0
"""Bytes of one element."""

# Kernels that eager Megatron-Core launches per block, from counting aten and Triton calls of the layer code; the
# backward pass launches about 1.4 times as many.
LAUNCHES_MIXER = 22
LAUNCHES_DENSE = 8
LAUNCHES_ROUTER = 26
LAUNCHES_EXPERTS = 24
BACKWARD_LAUNCHES = 1.4

KERNEL_FLOOR_S = 2.5e-6
"""What the smallest kernel takes, also inside a CUDA graph."""


@dataclass(frozen=True)
class Work:
    """Everything outside the model that the time of a block depends on.

    Attributes:
        tokens: Tokens of one micro-batch on one context-parallel rank, before sequence parallelism.
        seq_length: Tokens of a whole sequence.
        tensor_parallel: Ranks that split a layer.
        context_parallel: Ranks that split a sequence.
        expert_parallel: Ranks that share out the experts.
        expert_tensor_parallel: Ranks that split one expert.
        num_domains: NVLink domains under one expert group.
        precision: The contract's.
        dispatcher: Backend.
        num_sms: Its SM budget.
        permute_fusion: Fused permutation kernels.
        recompute: Modules recomputed in the backward pass; ``full`` for all.
        imbalance: Tokens of the fullest expert rank over the mean.
        shared_overlap: The shared expert runs beside the dispatcher.
        op_fuser: Routed experts are one fused Transformer Engine operation.
        recompute_layers: Layers per virtual stage to which ``recompute`` applies; null = all.
    """

    tokens: int
    seq_length: int
    tensor_parallel: int = 1
    context_parallel: int = 1
    expert_parallel: int = 1
    expert_tensor_parallel: int = 1
    num_domains: int = 1
    precision: str = "bf16"
    dispatcher: str = "alltoall"
    num_sms: int | None = None
    permute_fusion: bool = False
    recompute: frozenset[str] = frozenset()
    imbalance: float = 1.0
    shared_overlap: bool = False
    op_fuser: bool = False
    recompute_layers: int | None = None


class BlockTime(NamedTuple):
    """Seconds by part; launches are counts. A tuple, since a prediction makes thousands of them.

    Attributes:
        gemm: Dense matrix products.
        grouped_gemm: Routed experts.
        attention: Scores, scans and convolutions.
        elementwise: Norms, activations, residuals, router.
        permutation: Sorting tokens by expert and back.
        tensor_parallel: Collectives of tensor and expert-tensor parallelism.
        context_parallel: What of the ring is not hidden behind attention.
        dispatch: Expert-parallel communication.
        launches_mixer: Kernels of the token mixer and dense parts.
        launches_router: Kernels of router and preprocessing.
        launches_experts: Kernels of dispatch, experts and combine.
    """

    gemm: float = 0.0
    grouped_gemm: float = 0.0
    attention: float = 0.0
    elementwise: float = 0.0
    permutation: float = 0.0
    tensor_parallel: float = 0.0
    context_parallel: float = 0.0
    dispatch: float = 0.0
    launches_mixer: float = 0.0
    launches_router: float = 0.0
    launches_experts: float = 0.0

    def __add__(self, other: "BlockTime") -> "BlockTime":  # type: ignore[override]
        return BlockTime(*map(add, self, other))

    def scaled(self, factor: float) -> "BlockTime":
        """All parts times a factor."""
        return BlockTime(*[value * factor for value in self])

    @property
    def compute_s(self) -> float:
        """What keeps the SMs busy."""
        return self.gemm + self.grouped_gemm + self.attention + self.elementwise + self.permutation

    @property
    def total_s(self) -> float:
        """All but launches, one after the other."""
        return self.compute_s + self.tensor_parallel + self.context_parallel + self.dispatch
