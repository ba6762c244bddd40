"""Fitted constants of the expert-parallel libraries, by GPU family, with their sources."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from autotune.predict.hardware import Family

Operation = Literal["dispatch", "combine"]
OPERATIONS: tuple[Operation, Operation] = ("dispatch", "combine")


@dataclass(frozen=True)
class InDomain:
    """DeepEP inside one domain: microseconds, nanoseconds per token (or copy) and SM, GB/s per SM, GB/s."""

    start_us: float
    latency_us_per_kb: float
    copy_ns: float
    copy_gb_per_s: float
    token_ns: float
    token_gb_per_s: float
    ceiling_gb_per_s: float
    sharpness: float


@dataclass(frozen=True)
class AcrossDomains:
    """DeepEP over nodes: the same units; ``fill_tokens`` per SM until the pipeline of one token's hops is full."""

    start_us: float
    start_us_per_domain: float
    latency_us_per_kb: float
    forward_gb_per_s: float
    send_gb_per_s: float
    nic_share: float
    fill_tokens: float
    sharpness: float


# Least squares on the logarithm, leave-one-shape-out error 4-6 % (tests/unit/predict/test_dispatch.py repeats it on
# a part). Blackwell's ceiling is not seen in a sweep that ends at 24 SMs and has FP8 dispatch only: there 30 figures of
# DeepEP's hybrid-ep branch (16 to 32 SMs, BF16 and FP8) and its README (64 SMs) were fitted together with the sweep.
IN_DOMAIN: Mapping[tuple[Family, Operation], InDomain] = {
    ("hopper", "dispatch"): InDomain(25.2, 0.140, 76.0, 31.3, 287.0, 44.7, 382.0, 4),
    ("hopper", "combine"): InDomain(25.7, 0.713, 37.0, 42.4, 14.0, 8.10, 378.0, 4),
    ("blackwell", "dispatch"): InDomain(33.6, 0.155, 118.3, 33.5, 396.5, 265.0, 780.0, 3),
    ("blackwell", "combine"): InDomain(31.6, 0.837, 145.2, 64.6, 0.1, 8.66, 759.0, 3),
    ("grace_blackwell", "dispatch"): InDomain(31.6, 0.136, 253.0, 80.0, 322.0, 73.4, 700.0, 2),
    ("grace_blackwell", "combine"): InDomain(29.0, 0.740, 253.0, 80.0, 290.0, 17.4, 700.0, 2),
}

# H100, 2 and 4 nodes, 400 Gbit/s InfiniBand: 3.6 % mean error; forwarding constants are the kernel's, so other
# families borrow them and bring their own NIC.
ACROSS_DOMAINS: Mapping[Operation, AcrossDomains] = {
    "dispatch": AcrossDomains(15.3, 5.56, 6.85, 15.8, 23.4, 0.958, 18.7, 8),
    "combine": AcrossDomains(37.8, 4.88, 8.33, 13.3, 14.8, 0.946, 16.9, 8),
}


@dataclass(frozen=True)
class HybridInDomain:
    """HybridEP inside one NVLink domain.

    An FP8 token's scales cost an SM a look at every rank of the group, beside the bytes that it copies. The ceiling is
    of bytes that leave the GPU, and is lost by ``crowding`` once a group of eight is a small part of all ranks.
    """

    gb_per_s: float
    scales_ns_per_rank: float
    ceiling_gb_per_s: float
    crowding: float
    start_us: float
    sharpness: float


@dataclass(frozen=True)
class HybridAcrossDomains:
    """HybridEP over nodes: a copy over NVLink, and a copy to another node with its bytes; then the API's own copies."""

    near_copy_ns: float
    far_copy_ns: float
    far_gb_per_s: float
    nic_share: float
    copies_gb_per_s: float
    start_us: float
    sharpness: float


# Blackwell: 30 figures of HybridEP's torch API on GB200, 8 to 36 ranks, 16 and 32 SMs, 4,096 tokens of 7,168 (DeepEP,
# branch hybrid-ep, docs/README_Hybrid-EP.md): mean error 4 %, with one group size left out 3 to 6 %, fitted to 24 ranks
# at most 4 % on the larger groups; the three figures of B200 were not fitted and are met to 2 %. Hopper inside a node
# has no such figures: its bytes per SM are those that make HybridEP's layers as fast as DeepEP's in Megatron-LM's
# MoE-layer benchmark on 8 H100.
HYBRID_IN_DOMAIN: Mapping[Family, HybridInDomain] = {
    "hopper": HybridInDomain(22.8, 0.0, 318.0, 0.0, 40.0, 4),
    "blackwell": HybridInDomain(105.5, 87.2, 512.2, 0.0986, 38.2, 3),
    "grace_blackwell": HybridInDomain(105.5, 87.2, 512.2, 0.0986, 38.2, 3),
}

# 27 figures of the same source on H100 over InfiniBand, 2 to 8 nodes, 4 to 16 SMs: 5.5 %, with one number of nodes left
# out 7 to 13 %. The SM costs are the kernel's, so other families borrow them and bring their own NIC.
HYBRID_ACROSS_DOMAINS = HybridAcrossDomains(142.0, 558.0, 37.7, 0.84, 593.0, 100.0, 8)

HYBRID_SMS = {"in_domain": (16, 32), "across_domains": (4, 32)}
"""SM budgets between which something was measured: the figures above, over nodes also whole steps (PR #5098)."""

# Over a NIC that is saturated, more SMs only poll more: HybridEP on 16 H100 loses 5.7 % of a step from 32 to 48 SMs and
# 20 % to 108 (Qwen3.5-35B, Megatron-Bridge PR #5098).
IDLE_SMS_FROM = 32
IDLE_SM_COST = 0.012

# A token is one message; where a host thread forwards it, that thread is the limit (Megatron-Bridge runs over EFA,
# awslabs/awsome-distributed-ai: 0.4 to 2 us a message, NVSHMEM and UCCL).
PROXY_MESSAGE_US = 0.7

DEFAULT_SMS = 20

DEEPEP_MEASURED = ("H100", "B200", "GB200")
"""GPUs of the sweep; the others borrow their family's constants."""

NCCL_DOMAINS = 32
"""Nodes of the largest all-to-all that nccl-tests rows of B300 and H100 over EFA know (2 to 32): the share of the NIC
in :data:`autotune.predict.hardware.LINKS`, start-up included, meets their 64 MiB messages within 17 %, bias +3 %."""
