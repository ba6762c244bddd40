"""Time of single kernels and collectives: a roofline with measured efficiencies. Seconds, bytes, FLOP."""

import math

from autotune.predict.hardware import KERNELS, LINKS, Hardware


def matrix_rate(hardware: Hardware, precision: str, *, wgrad: bool = False) -> float:
    """FLOP/s that a large matrix product reaches inside a training step."""
    constants = KERNELS[hardware.accelerator]
    rate = hardware.bf16_flops_per_s * (constants.gemm_wgrad if wgrad else constants.gemm)
    if precision.startswith("fp8"):
        return rate * constants.fp8_gain
    if precision.endswith("fp4"):
        return rate * constants.fp4_gain
    return rate


def gemm_time(hardware: Hardware, precision: str, m: float, n: float, k: float) -> tuple[float, float]:
    """Forward and backward time of one linear layer: ``m`` tokens, ``k`` inputs, ``n`` outputs.

    Backward is the product for the input's gradient plus the one for the weight's, which accumulates into FP32.
    """
    flops = 2.0 * m * n * k
    forward = flops / matrix_rate(hardware, precision)
    wgrad = flops / matrix_rate(hardware, precision, wgrad=True)
    bandwidth = streaming_rate(hardware)
    moved = 2.0 * (m * k + k * n + m * n) / bandwidth
    accumulated = (2.0 * m * (k + n) + 8.0 * k * n) / bandwidth
    start = KERNELS[hardware.accelerator].kernel_s
    cast = quantisation_bytes(precision) / bandwidth
    return (
        start + math.hypot(forward, moved) + m * k * cast,
        2 * start + math.hypot(forward, moved) + math.hypot(wgrad, accumulated) + m * n * cast,
    )


def quantisation_bytes(precision: str) -> float:
    """Bytes moved per element that is cast before a product: read as BF16, written row-wise and column-wise."""
    if precision.startswith("fp8"):
        return 4.0
    return 3.0 if precision.endswith("fp4") else 0.0


def grouped_gemm_time(
    hardware: Hardware, precision: str, experts: int, tokens: float, n: float, k: float, *, fused: bool = False
) -> tuple[float, float]:
    """Forward and backward time of one linear layer of all local experts, ``tokens`` of them in all.

    Few tokens per expert make it bound by weights read (and FP32 gradients read and written), and every expert costs
    a launch: 108 shapes on B200 (SimuMax system file) are met with a mean error of 12 %. ``fused`` (Transformer
    Engine's op fuser) is one kernel for all experts, which casts its output as it writes it.
    """
    flops = 2.0 * tokens * n * k
    bandwidth = streaming_rate(hardware)
    weights = float(experts) * n * k
    activations = 2.0 * tokens * (n + k)
    constants = KERNELS[hardware.accelerator]
    launches = constants.kernel_s if fused else experts * constants.per_expert_s
    product = flops / matrix_rate(hardware, precision)
    forward = launches + math.hypot(product, (2 * weights + activations) / bandwidth)
    wgrad = launches + math.hypot(
        flops / matrix_rate(hardware, precision, wgrad=True), (8 * weights + activations) / bandwidth
    )
    cast = 0.0 if fused else tokens * quantisation_bytes(precision) / bandwidth
    return forward + k * cast, forward + wgrad + n * cast


def attention_time(hardware: Hardware, flops: float, rows: float, *, uneven_heads: bool) -> tuple[float, float]:
    """Forward and backward time of causal attention.

    ``flops`` are the forward pass's causal FLOPs; ``rows`` is heads x tokens / 4096, which fills the SMs. Heads whose
    query and value sizes differ (multi-latent attention) run at 0.78 of the backward rate (B200, 32 shapes).
    """
    constants = KERNELS[hardware.accelerator]
    peak = hardware.bf16_flops_per_s
    forward = flops / (peak * constants.attention_forward * rows / (rows + constants.attention_half_rows))
    slower = 0.78 if uneven_heads else 1.0
    backward = 2.5 * flops / (peak * constants.attention_backward * slower * rows / (rows + 2.0))
    return forward + constants.kernel_s, backward + 2 * constants.kernel_s


def streaming_rate(hardware: Hardware) -> float:
    """Bytes per second of a kernel that only moves data."""
    return hardware.hbm_bytes_per_s * KERNELS[hardware.accelerator].hbm


def ring_time(hardware: Hardware, ranks: int, moved_bytes: float, *, across: bool, per_node: int = 1) -> float:
    """One all-gather or reduce-scatter: ``moved_bytes`` is the gathered size; an all-reduce is two of them.

    A ring over nodes that has ``per_node`` members on each uses all their NICs.
    """
    if ranks <= 1:
        return 0.0
    links = LINKS[hardware.family]
    sent = moved_bytes * (ranks - 1) / ranks
    near = hardware.nvlink_bytes_per_s * links.nvlink_ring
    if across:
        return links.nic_start_s + sent / min(near, per_node * hardware.nic_bytes_per_s * links.nic_ring)
    return links.nvlink_start_s + sent / near


def tensor_group_time(hardware: Hardware, ranks: int, moved_bytes: float) -> float:
    """One all-gather or reduce-scatter of ranks that are neighbours, as those that split a layer or an expert are.

    A group larger than an NVLink domain leaves it through the NICs of all its GPUs there, with a network's start-up.
    """
    domain = hardware.nvlink_domain_gpus
    return ring_time(hardware, ranks, moved_bytes, across=ranks > domain, per_node=min(ranks, domain))


def point_to_point_time(hardware: Hardware, moved_bytes: float, *, across: bool) -> float:
    """One message between neighbours of a pipeline or of a context-parallel ring."""
    links = LINKS[hardware.family]
    if across:
        return links.nic_start_s / 2 + moved_bytes / (hardware.nic_bytes_per_s * links.nic_ring)
    return links.nvlink_start_s + moved_bytes / (hardware.nvlink_bytes_per_s * links.nvlink_ring)
