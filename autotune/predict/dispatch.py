"""Time of moving tokens to their experts and back, by backend.

DeepEP's kernels were fitted on 7,900 measured rows (SM count x tokens x hidden x top-k x experts) of
ai-dynamo/aiconfigurator (``wideep_deepep_normal_perf``, Apache-2.0): inside one NVLink domain

    t = start + latency * bytes_per_token * sqrt(U) + ((work per SM)^p + (NVLink ceiling)^p)^(1/p)

where U is the expected number of distinct ranks that a token visits: a token goes to a rank once, however many of
its experts live there. Across domains the ceiling is the NIC's and the forwarding inside the domain is SM work.
"""

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Literal

from autotune.predict.dispatch_constants import (
    ACROSS_DOMAINS,
    DEEPEP_MEASURED,
    DEFAULT_SMS,
    IN_DOMAIN,
    NCCL_DOMAINS,
    OPERATIONS,
    PROXY_MESSAGE_US,
    Operation,
)
from autotune.predict.dispatch_load import (
    BF16_BYTES,
    DispatchEstimate,
    DispatchLoad,
    Limit,
    deduplicated_bytes,
    p_norm,
)
from autotune.predict.hardware import LINKS, Hardware
from autotune.predict.hybridep import hybridep_time


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
        return hybridep_time(hardware, load, sms, measured=backend == "hybridep")
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


def _deepep(hardware: Hardware, load: DispatchLoad, sms: int) -> DispatchEstimate:
    ranks = load.visited(load.expert_parallel)
    domains = load.visited(load.num_domains)
    tokens = load.tokens * load.imbalance
    times: dict[Operation, float] = {}
    bound: Limit = "latency"
    for operation in OPERATIONS:
        token_bytes = load.hidden_size * load.element_bytes(operation)
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
        moving = p_norm(work, ceiling, sharpness)
        times[operation] = (total + moving) * 1e-6
        if operation == "dispatch" and moving > start:
            bound = "sms" if work > ceiling else ("nvlink" if wall == "nvlink" else "nic")
    notes = []
    if hardware.accelerator not in DEEPEP_MEASURED:
        notes.append(f"DeepEP was not measured on {hardware.accelerator}: constants of its family stand in")
    elif load.num_domains == 1 and load.expert_parallel < min(8, hardware.gpus_per_node):
        notes.append(f"DeepEP was measured with {hardware.gpus_per_node} ranks, not {load.expert_parallel}")
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
    up, out = deduplicated_bytes(load, ranks, domains)
    return DispatchEstimate(
        times["dispatch"], times["combine"], up, out, bound, 0.06 if not notes else 0.25, tuple(notes)
    )


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
    notes: tuple[str, ...] = ()
    if domains > NCCL_DOMAINS:
        notes = (f"NCCL's all-to-all was measured on at most {NCCL_DOMAINS} nodes, not {domains}",)
    error = 0.15 if not notes else 0.35
    return DispatchEstimate(
        times["dispatch"], times["combine"], volume * up_share, volume * out_share, bound, error, notes
    )
