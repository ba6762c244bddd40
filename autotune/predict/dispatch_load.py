"""What expert parallelism moves in one direction of one layer, and how often a token is copied."""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from autotune.predict.dispatch_constants import Operation

Limit = Literal["latency", "sms", "nvlink", "nic"]
"""What sets the time of a dispatch."""

FP8_BYTES = 1 + 4 / 128
"""Bytes of one FP8 element with its share of the FP32 scale of a block of 128."""

BF16_BYTES = 2.0


@dataclass(frozen=True)
class DispatchLoad:
    """What one MoE layer moves in one direction, seen from one rank.

    Attributes:
        tokens: Tokens on this rank.
        hidden_size: Elements of a token.
        topk: Experts per token.
        num_experts: Routed experts of the layer.
        expert_parallel: Ranks of the group.
        num_domains: NVLink domains (or nodes) over which the group spreads.
        dispatch_element_bytes: 2 for BF16, ``FP8_BYTES`` for FP8; combine is BF16 always.
        imbalance: Tokens of the fullest rank over the mean.
        router_groups: Expert groups of group-limited routing; 1 = free choice.
        router_group_topk: Groups that a token may visit.
    """

    tokens: int
    hidden_size: int
    topk: int
    num_experts: int
    expert_parallel: int
    num_domains: int = 1
    dispatch_element_bytes: float = BF16_BYTES
    imbalance: float = 1.0
    router_groups: int = 1
    router_group_topk: int = 1

    def element_bytes(self, operation: Operation) -> float:
        """Bytes of one element on its way; results come back in BF16."""
        return self.dispatch_element_bytes if operation == "dispatch" else BF16_BYTES

    def visited(self, groups: int) -> float:
        """How many of so many equal groups of ranks a token visits on average, itself included."""
        free = expected_groups(self.num_experts, self.topk, groups)
        if self.router_groups <= 1 or self.router_group_topk >= self.router_groups or groups < self.router_groups:
            return free
        share, left = divmod(groups * self.router_group_topk, self.router_groups)
        experts = self.num_experts * self.router_group_topk // self.router_groups
        if left or experts % share or self.topk > experts:
            return free
        return min(free, expected_groups(experts, self.topk, share))


@dataclass(frozen=True)
class DispatchEstimate:
    """Predicted time of one dispatch and one combine.

    Attributes:
        dispatch_time_s: Tokens to experts.
        combine_time_s: Results back.
        scale_up_bytes: NVLink bytes of the dispatch per rank, one direction, the rank's own tokens included.
        scale_out_bytes: NIC bytes of the dispatch per rank, one direction.
        bound: What sets the dispatch time.
        relative_error: Mean error on measured rows of this kind, or a wider guess where there are none.
        notes: Where the estimate leaves what was measured.
    """

    dispatch_time_s: float
    combine_time_s: float
    scale_up_bytes: float
    scale_out_bytes: float
    bound: Limit
    relative_error: float
    notes: tuple[str, ...] = ()


@lru_cache(maxsize=4096)
def expected_groups(num_experts: int, topk: int, groups: int) -> float:
    """How many of the equal groups of experts a token visits on average, under uniform routing.

    Raises:
        ValueError: the experts cannot be split so, or a token wants more experts than there are.
    """
    if groups < 1 or num_experts % groups:
        raise ValueError(f"num_experts={num_experts} cannot be split into {groups} equal groups")
    if not 1 <= topk <= num_experts:
        raise ValueError(f"topk={topk} must be between 1 and num_experts={num_experts}")
    outside = num_experts - num_experts // groups
    return groups * (1 - math.comb(outside, topk) / math.comb(num_experts, topk))


def p_norm(first: float, second: float, sharpness: float) -> float:
    """The larger of two times, rounded off where they are close: neither limit is reached alone."""
    larger = max(first, second)
    if larger <= 0:
        return 0.0
    return float(larger * ((first / larger) ** sharpness + (second / larger) ** sharpness) ** (1 / sharpness))


def deduplicated_bytes(load: DispatchLoad, ranks: float, domains: float) -> tuple[float, float]:
    """NVLink and NIC bytes of one dispatch per rank, one direction, when a token goes to every rank once."""
    volume = load.tokens * load.hidden_size * load.dispatch_element_bytes
    out = volume * domains * (1 - 1 / load.num_domains) if load.num_domains > 1 else 0.0
    return volume * ranks, out
