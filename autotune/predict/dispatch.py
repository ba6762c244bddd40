"""Time of moving tokens to their experts and back, by backend.

DeepEP's kernels were fitted on 7,900 measured rows (SM count x tokens x hidden x top-k x experts) of
ai-dynamo/aiconfigurator (``wideep_deepep_normal_perf``, Apache-2.0): inside one NVLink domain

    t = start + latency * bytes_per_token * sqrt(U) + ((work per SM)^p + (NVLink ceiling)^p)^(1/p)

where U is the expected number of distinct ranks that a token visits: a token goes to a rank once, however many of
its experts live there. Across domains the ceiling is the NIC's and the forwarding inside the domain is SM work.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from autotune.predict.dispatch_constants import (
    ACROSS_DOMAINS,
    DEFAULT_SMS,
    HYBRID_API_SHARE,
    HYBRID_GB_PER_S_PER_SM,
    HYBRID_NIC_GB_PER_S_PER_SM,
    HYBRID_START_S,
    IDLE_SM_COST,
    IDLE_SMS_FROM,
    IN_DOMAIN,
    OPERATIONS,
    PROXY_MESSAGE_US,
    Operation,
)
from autotune.predict.hardware import LINKS, Hardware

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
    bound: Literal["latency", "sms", "nvlink", "nic"]
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


@lru_cache(maxsize=65536)
def dispatch_time(hardware: Hardware, backend: str, load: DispatchLoad, num_sms: int | None) -> DispatchEstimate:
    """Time of one dispatch and one combine of one layer.

    ``num_sms`` matters to DeepEP, HybridEP and NCCL EP; null means 20, DeepEP's own default.

    Raises:
        ValueError: an unknown backend, or a group that does not divide the experts.
    """
    sms = num_sms or DEFAULT_SMS
    if load.expert_parallel == 1:
        return DispatchEstimate(0.0, 0.0, 0.0, 0.0, "latency", 0.0)
    if backend == "deepep":
        return _deepep(hardware, load, sms)
    if backend in ("hybridep", "ncclep"):
        return _hybridep(hardware, load, sms, measured=backend == "hybridep")
    if backend in ("alltoall", "allgather"):
        return _nccl(hardware, load, gather=backend == "allgather")
    raise ValueError(f"no dispatcher {backend!r}; known: alltoall, allgather, deepep, hybridep, ncclep")


def smallest_good_sms(
    hardware: Hardware,
    load: DispatchLoad,
    operation: Operation,
    budgets: Sequence[int] = (4, 8, 12, 16, 20, 24),
    tolerance: float = 0.03,
) -> int:
    """The smallest SM budget of DeepEP whose time is within ``tolerance`` of the best budget's."""
    times = {sms: getattr(_deepep(hardware, load, sms), f"{operation}_time_s") for sms in budgets}
    best = min(times.values())
    return min(sms for sms, time_s in times.items() if time_s <= (1 + tolerance) * best)


def _p_norm(first: float, second: float, sharpness: float) -> float:
    """The larger of two times, rounded off where they are close: neither limit is reached alone."""
    larger = max(first, second)
    if larger <= 0:
        return 0.0
    return float(larger * ((first / larger) ** sharpness + (second / larger) ** sharpness) ** (1 / sharpness))


def _element_bytes(load: DispatchLoad, operation: Operation) -> float:
    return load.dispatch_element_bytes if operation == "dispatch" else BF16_BYTES


def _deepep(hardware: Hardware, load: DispatchLoad, sms: int) -> DispatchEstimate:
    ranks = load.visited(load.expert_parallel)
    domains = load.visited(load.num_domains)
    tokens = load.tokens * load.imbalance
    times: dict[Operation, float] = {}
    bound: Literal["latency", "sms", "nvlink", "nic"] = "latency"
    for operation in OPERATIONS:
        token_bytes = load.hidden_size * _element_bytes(load, operation)
        kilobytes = token_bytes / 1e3
        if load.num_domains == 1:
            near = IN_DOMAIN[hardware.family, operation]
            start = near.start_us + near.latency_us_per_kb * kilobytes * math.sqrt(ranks)
            per_token_ns = near.token_ns + token_bytes / near.token_gb_per_s
            per_token_ns += ranks * (near.copy_ns + token_bytes / near.copy_gb_per_s)
            work = tokens * per_token_ns * 1e-3 / sms
            ceiling = tokens * ranks * token_bytes / near.ceiling_gb_per_s * 1e-3
            total, sharpness, wall = start, near.sharpness, "nvlink"
        else:
            far = ACROSS_DOMAINS[operation]
            filled = load.tokens / sms / (load.tokens / sms + far.fill_tokens)
            start = far.start_us + far.start_us_per_domain * load.num_domains
            start += far.latency_us_per_kb * kilobytes * filled
            work = tokens / sms * kilobytes * (ranks / far.forward_gb_per_s + domains / far.send_gb_per_s)
            remote = domains * (1 - 1 / load.num_domains)
            ceiling = tokens * remote * token_bytes / (far.nic_share * hardware.nic_bytes_per_s) * 1e6
            if hardware.nic_proxied:
                ceiling = max(ceiling, tokens * remote * PROXY_MESSAGE_US)
            total, sharpness, wall = start, far.sharpness, "nic"
        moving = _p_norm(work, ceiling, sharpness)
        times[operation] = (total + moving) * 1e-6
        if operation == "dispatch" and moving > start:
            bound = "sms" if work > ceiling else ("nvlink" if wall == "nvlink" else "nic")
    notes = []
    if load.num_domains > 1 and hardware.nic_proxied:
        notes.append("tokens pass a host thread on their way to the NIC: known to within a factor of two")
    if not 4 <= sms <= 24:
        notes.append(f"num_sms={sms} is outside the measured 4 to 24")
    measured_ranks = hardware.gpus_per_node * load.num_domains
    if load.num_domains > 1 and hardware.family != "hopper":
        notes.append("DeepEP over several domains was measured on H100 only")
    elif load.num_domains > 4:
        notes.append(f"DeepEP was measured on at most 4 nodes, not {load.num_domains}")
    elif load.num_domains == 1 and load.expert_parallel > measured_ranks:
        notes.append(f"DeepEP was measured with {measured_ranks} ranks per domain, not {load.expert_parallel}")
    up, out = _deduplicated_bytes(load, ranks, domains)
    return DispatchEstimate(
        times["dispatch"], times["combine"], up, out, bound, 0.06 if not notes else 0.25, tuple(notes)
    )


def _hybridep(hardware: Hardware, load: DispatchLoad, sms: int, *, measured: bool) -> DispatchEstimate:
    ranks = load.visited(load.expert_parallel)
    domains = load.visited(load.num_domains)
    tokens = load.tokens * load.imbalance
    per_sm = HYBRID_GB_PER_S_PER_SM[hardware.family] * 1e9
    ceiling_rate = IN_DOMAIN[hardware.family, "dispatch"].ceiling_gb_per_s * 1e9
    times: dict[Operation, float] = {}
    bound: Literal["latency", "sms", "nvlink", "nic"] = "nvlink"
    for operation in OPERATIONS:
        volume = tokens * load.hidden_size * _element_bytes(load, operation)
        # An FP8 token is half the bytes and nearly the same descriptors: an SM moves 1.2 times fewer bytes per second.
        slower = 1.2 if _element_bytes(load, operation) < BF16_BYTES else 1.0
        work = volume * ranks * slower / (per_sm * sms)
        near = volume * ranks / ceiling_rate
        moving = _p_norm(work, near, 4)
        if load.num_domains > 1:
            remote = volume * domains * (1 - 1 / load.num_domains)
            sending = remote / min(HYBRID_NIC_GB_PER_S_PER_SM * 1e9 * sms, 0.9 * hardware.nic_bytes_per_s)
            if operation == "dispatch" and sending > moving:
                bound = "nic"
            if hardware.nic_proxied:
                messages = tokens * domains * (1 - 1 / load.num_domains)
                sending = max(sending, messages * PROXY_MESSAGE_US * 1e-6)
            moving = _p_norm(moving, sending, 4) * (1 + IDLE_SM_COST * max(0, sms - IDLE_SMS_FROM))
        if operation == "dispatch" and bound != "nic":
            bound = "sms" if work > near else "nvlink"
        times[operation] = HYBRID_START_S + moving / HYBRID_API_SHARE[hardware.family]
    up, out = _deduplicated_bytes(load, ranks, domains)
    note = "HybridEP's constants come from a few published figures, not from a sweep"
    if not measured:
        note = "NCCL EP has no published training-size figures: HybridEP's constants stand in"
    return DispatchEstimate(times["dispatch"], times["combine"], up, out, bound, 0.2 if measured else 0.35, (note,))


def _nccl(hardware: Hardware, load: DispatchLoad, *, gather: bool) -> DispatchEstimate:
    """NCCL moves a token once per expert (all-to-all) or everywhere (all-gather); no deduplication, no SM budget."""
    links = LINKS[hardware.family]
    group, domains = load.expert_parallel, load.num_domains
    here = group // domains
    copies = float(load.topk) if not gather else float(group)
    up_share, out_share = (here - 1) / group, 1 - here / group
    up_rate = hardware.nvlink_bytes_per_s * (links.nvlink_ring if gather else links.nvlink_alltoall)
    out_rate = hardware.nic_bytes_per_s * (links.nic_ring if gather else links.nic_alltoall)
    start = links.nvlink_start_s + (links.nic_start_s * math.log2(domains) if domains > 1 else 0.0)
    times: dict[Operation, float] = {}
    for operation in OPERATIONS:
        # Combine of the NCCL dispatchers and dispatch alike carry the training precision's BF16 tokens.
        volume = load.tokens * load.imbalance * load.hidden_size * BF16_BYTES * copies
        times[operation] = start + max(volume * up_share / up_rate, volume * out_share / out_rate)
    bound: Literal["nic", "nvlink"] = "nic" if out_share / out_rate > up_share / up_rate else "nvlink"
    volume = load.tokens * load.hidden_size * BF16_BYTES * copies
    return DispatchEstimate(times["dispatch"], times["combine"], volume * up_share, volume * out_share, bound, 0.15)


def _deduplicated_bytes(load: DispatchLoad, ranks: float, domains: float) -> tuple[float, float]:
    """NVLink and NIC bytes of one dispatch per rank, one direction."""
    volume = load.tokens * load.hidden_size * load.dispatch_element_bytes
    out = volume * domains * (1 - 1 / load.num_domains) if load.num_domains > 1 else 0.0
    return volume * ranks, out
