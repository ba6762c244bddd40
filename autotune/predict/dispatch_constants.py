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
# a part). Blackwell's ceiling is not seen in a sweep that ends at 24 SMs: 700 GB/s is from DeepEP's README (64 SMs).
IN_DOMAIN: Mapping[tuple[Family, Operation], InDomain] = {
    ("hopper", "dispatch"): InDomain(25.2, 0.140, 76.0, 31.3, 287.0, 44.7, 382.0, 4),
    ("hopper", "combine"): InDomain(25.7, 0.713, 37.0, 42.4, 14.0, 8.10, 378.0, 4),
    ("blackwell", "dispatch"): InDomain(33.4, 0.184, 95.4, 33.5, 402.0, 179.0, 700.0, 2),
    ("blackwell", "combine"): InDomain(31.7, 0.835, 143.0, 80.0, 0.1, 8.63, 700.0, 2),
    ("grace_blackwell", "dispatch"): InDomain(31.6, 0.136, 253.0, 80.0, 322.0, 73.4, 700.0, 2),
    ("grace_blackwell", "combine"): InDomain(29.0, 0.740, 253.0, 80.0, 290.0, 17.4, 700.0, 2),
}

# H100, 2 and 4 nodes, 400 Gbit/s InfiniBand: 3.6 % mean error; forwarding constants are the kernel's, so other
# families borrow them and bring their own NIC.
ACROSS_DOMAINS: Mapping[Operation, AcrossDomains] = {
    "dispatch": AcrossDomains(15.3, 5.56, 6.85, 15.8, 23.4, 0.958, 18.7, 8),
    "combine": AcrossDomains(37.8, 4.88, 8.33, 13.3, 14.8, 0.946, 16.9, 8),
}

# HybridEP moves tokens by TMA with one thread per SM: logical GB/s per SM and what its API leaves of the kernel's
# speed (B200, GB200: 16 SMs 630-735 GB/s kernel, 485-536 GB/s API; H100 InfiniBand saturates at 8 SMs: DeepEP,
# branch hybrid-ep, README). NCCL EP has no published training-size figures: the same with a wider error.
HYBRID_GB_PER_S_PER_SM: Mapping[Family, float] = {"hopper": 24.0, "blackwell": 46.0, "grace_blackwell": 40.0}
# On 8 H100 its layers are as fast as DeepEP's (Megatron-LM's MoE-layer benchmark), so little is lost there.
HYBRID_API_SHARE: Mapping[Family, float] = {"hopper": 0.95, "blackwell": 0.75, "grace_blackwell": 0.75}
HYBRID_START_S = 40e-6
HYBRID_NIC_GB_PER_S_PER_SM = 6.0

# Over a NIC that is saturated, more SMs only poll more: HybridEP on 16 H100 loses 5.7 % of a step from 32 to 48 SMs and
# 20 % to 108 (Qwen3.5-35B, Megatron-Bridge PR #5098).
IDLE_SMS_FROM = 32
IDLE_SM_COST = 0.012

# A token is one message; where a host thread forwards it, that thread is the limit (Megatron-Bridge runs over EFA,
# awslabs/awsome-distributed-ai: 0.4 to 2 us a message, NVSHMEM and UCCL).
PROXY_MESSAGE_US = 0.7

DEFAULT_SMS = 20
