"""Time of HybridEP, and of NCCL EP, which borrows its constants.

    inside a domain   t = start + ((copies' SM time)^p + (NVLink ceiling)^p)^(1/p)
    over domains      t = start + ((copies' SM time)^p + (NIC)^p)^(1/p) + the API's copies

An SM spends time on every copy, whatever its size: an FP8 token costs nearly as much of it as a BF16 one.
"""

from autotune.predict.dispatch_constants import (
    HYBRID_ACROSS_DOMAINS,
    HYBRID_IN_DOMAIN,
    HYBRID_SMS,
    IDLE_SM_COST,
    IDLE_SMS_FROM,
    OPERATIONS,
    PROXY_MESSAGE_US,
    Operation,
)
from autotune.predict.dispatch_load import BF16_BYTES, DispatchEstimate, DispatchLoad, Limit, deduplicated_bytes, p_norm
from autotune.predict.hardware import Hardware


def hybridep_time(hardware: Hardware, load: DispatchLoad, sms: int, *, measured: bool) -> DispatchEstimate:
    """One dispatch and one combine; ``measured`` is false where the constants are another library's."""
    times: dict[Operation, float] = {}
    bound: Limit = "latency"
    for operation in OPERATIONS:
        once = _within if load.num_domains == 1 else _across
        times[operation], limit = once(hardware, load, sms, operation)
        bound = limit if operation == "dispatch" else bound
    ranks, domains = load.visited(load.expert_parallel), load.visited(load.num_domains)
    up, out = deduplicated_bytes(load, ranks, domains)
    notes = tuple(_notes(hardware, load, sms, measured=measured))
    error = 0.10 if not notes else 0.20
    return DispatchEstimate(times["dispatch"], times["combine"], up, out, bound, error if measured else 0.35, notes)


def _within(hardware: Hardware, load: DispatchLoad, sms: int, operation: Operation) -> tuple[float, Limit]:
    constants = HYBRID_IN_DOMAIN[hardware.family]
    ranks, tokens = load.visited(load.expert_parallel), load.tokens * load.imbalance
    token_bytes = load.hidden_size * load.element_bytes(operation)
    per_token_ns = ranks * token_bytes / constants.gb_per_s
    if load.element_bytes(operation) < BF16_BYTES:
        per_token_ns += load.expert_parallel * constants.scales_ns_per_rank
    work = tokens * per_token_ns * 1e-9 / sms
    leaving = tokens * ranks * token_bytes * (1 - 1 / load.expert_parallel)
    crowded = 1 + constants.crowding * max(0.0, 1 - 8 / load.expert_parallel)
    ceiling = leaving * crowded / (constants.ceiling_gb_per_s * 1e9)
    moving = p_norm(work, ceiling, constants.sharpness)
    return constants.start_us * 1e-6 + moving, "sms" if work > ceiling else "nvlink"


def _across(hardware: Hardware, load: DispatchLoad, sms: int, operation: Operation) -> tuple[float, Limit]:
    constants = HYBRID_ACROSS_DOMAINS
    ranks, tokens = load.visited(load.expert_parallel), load.tokens * load.imbalance
    remote = load.visited(load.num_domains) * (1 - 1 / load.num_domains)
    token_bytes = load.hidden_size * load.element_bytes(operation)
    per_token_ns = ranks * constants.near_copy_ns + remote * (
        constants.far_copy_ns + token_bytes / constants.far_gb_per_s
    )
    work = tokens * per_token_ns * 1e-9 / sms
    wire = tokens * remote * token_bytes / (constants.nic_share * hardware.nic_bytes_per_s)
    if hardware.nic_proxied:
        wire = max(wire, tokens * remote * PROXY_MESSAGE_US * 1e-6)
    moving = p_norm(work, wire, constants.sharpness) * (1 + IDLE_SM_COST * max(0, sms - IDLE_SMS_FROM))
    copies = tokens * ranks * token_bytes / (constants.copies_gb_per_s * 1e9)
    return constants.start_us * 1e-6 + moving + copies, "sms" if work > wire else "nic"


def _notes(hardware: Hardware, load: DispatchLoad, sms: int, *, measured: bool) -> list[str]:
    """Where a load leaves the figures behind the constants."""
    if not measured:
        return ["NCCL EP has no published training-size figures: HybridEP's constants stand in"]
    notes = []
    few, many = HYBRID_SMS["in_domain" if load.num_domains == 1 else "across_domains"]
    if not few <= sms <= many:
        notes.append(f"HybridEP with num_sms={sms} is outside the measured {few} to {many}")
    if load.num_domains == 1:
        if hardware.family == "hopper":
            notes.append("HybridEP inside a node of H100 is known from one benchmark of whole layers")
        elif load.expert_parallel > 36:
            notes.append(f"HybridEP was measured with at most 36 ranks in a domain, not {load.expert_parallel}")
    elif hardware.family != "hopper":
        notes.append("HybridEP over several NVLink domains was measured on H100 only")
    elif load.num_domains > 8:
        notes.append(f"HybridEP was measured on at most 8 nodes, not {load.num_domains}")
    if hardware.nic_proxied and load.num_domains > 1:
        notes.append("HybridEP behind a host thread on its way to the NIC was never measured")
    return notes
