"""What the time model knows of a GPU: the cluster file's facts plus constants that were fitted or published.

Units: seconds, bytes, FLOP; a rate is per GPU and per direction.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from autotune.cluster import Cluster
from autotune.errors import RequestError

Family = Literal["hopper", "blackwell", "grace_blackwell"]

_FAMILIES: Mapping[str, Family] = {
    "H100": "hopper",
    "H200": "hopper",
    "B200": "blackwell",
    "B300": "blackwell",
    "GB200": "grace_blackwell",
    "GB300": "grace_blackwell",
}

# NVIDIA data sheets, bytes/s.
_HBM_BYTES_PER_S = {"H100": 3.35e12, "H200": 4.8e12, "B200": 8.0e12, "B300": 8.0e12, "GB200": 8.0e12, "GB300": 8.0e12}

# Dense peaks where the cluster file has none, FLOP/s (NVIDIA data sheets).
_PEAK_FLOPS_PER_S: Mapping[str, Mapping[str, float]] = {
    "H100": {"bf16": 0.989e15, "fp8": 1.979e15},
    "H200": {"bf16": 0.989e15, "fp8": 1.979e15},
    "B200": {"bf16": 2.25e15, "fp8": 4.5e15, "fp4": 9.0e15},
    "B300": {"bf16": 2.25e15, "fp8": 4.5e15, "fp4": 14.0e15},
    "GB200": {"bf16": 2.5e15, "fp8": 5.0e15, "fp4": 10.0e15},
    "GB300": {"bf16": 2.5e15, "fp8": 5.0e15, "fp4": 15.0e15},
}


@dataclass(frozen=True)
class Hardware:
    """One GPU and the links around it, as the time model sees them.

    Attributes:
        name: Cluster name.
        family: Which fitted constants of links and dispatchers apply.
        accelerator: GPU, by which compute kernels are looked up.
        gpus_per_node: GPUs of one node.
        nvlink_domain_gpus: GPUs that reach each other over NVLink.
        sm_count: Streaming multiprocessors.
        hbm_bytes_per_s: Peak memory bandwidth.
        nvlink_bytes_per_s: Peak, per direction.
        nic_bytes_per_s: Peak, per direction.
        bf16_flops_per_s: Dense peak.
        fp8_flops_per_s: Dense peak.
        fp4_flops_per_s: Dense peak; the FP8 one where the GPU has no FP4.
        nic_proxied: Whether messages that a GPU starts pass a host thread (EFA).
    """

    name: str
    family: Family
    accelerator: str
    gpus_per_node: int
    nvlink_domain_gpus: int
    sm_count: int
    hbm_bytes_per_s: float
    nvlink_bytes_per_s: float
    nic_bytes_per_s: float
    bf16_flops_per_s: float
    fp8_flops_per_s: float
    fp4_flops_per_s: float
    nic_proxied: bool = False

    def peak_flops_per_s(self, precision: str) -> float:
        """Dense peak of the matrix units in a contract's precision."""
        if precision.startswith("fp8"):
            return self.fp8_flops_per_s
        if precision.endswith("fp4"):
            return self.fp4_flops_per_s
        return self.bf16_flops_per_s


@dataclass(frozen=True)
class KernelConstants:
    """Efficiency of compute kernels of one GPU family.

    ``gemm`` and ``grouped`` are shares of the dense BF16 peak that large products reach inside a training step (power
    limits included), ``attention_*`` of causal FLOPs; ``hbm`` is the share of memory bandwidth that streaming kernels
    reach. Hopper's and Blackwell's differ since Blackwell throttles: measured BF16 products on B200 stay near 0.5 of
    the data sheet's peak, from 1e11 to 1e15 FLOP (SimuMax system file b200_bf16_ceperm, 514 shapes; Apache-2.0).

    Attributes:
        gemm: Forward and data-gradient products.
        gemm_wgrad: Weight-gradient products that accumulate into FP32.
        fp8_gain: Speed-up of an FP8 product over BF16, quantisation included.
        fp4_gain: The same for FP4.
        attention_forward: Of the peak, many heads, long sequence.
        attention_backward: The same, backward.
        attention_half_rows: Heads x sequence (in units of 4096) at which forward attention reaches half of it.
        hbm: Streaming kernels.
        per_expert_s: Launch and tail of one expert's product in a grouped GEMM.
        kernel_s: Launch gap and tail of any kernel.
    """

    gemm: float
    gemm_wgrad: float
    fp8_gain: float
    fp4_gain: float
    attention_forward: float
    attention_backward: float
    attention_half_rows: float
    hbm: float
    per_expert_s: float
    kernel_s: float


_HOPPER = KernelConstants(0.65, 0.63, 1.5, 1.5, 0.55, 0.42, 8.0, 0.75, 5.0e-6, 4.0e-6)
_BLACKWELL = KernelConstants(0.47, 0.44, 2.2, 2.5, 0.54, 0.38, 16.0, 0.60, 6.0e-6, 4.0e-6)
# GB300 has the same dense peaks as GB200 but 1,400 W for 1,200 W, and twice the rate of exponentials (NVIDIA's data
# sheets): the shares of the peak are those at which 36 rows of Megatron-Bridge's summaries are as fast as predicted.
KERNELS: Mapping[str, KernelConstants] = {
    "H100": _HOPPER,
    "H200": _HOPPER,
    "B200": _BLACKWELL,
    "B300": _BLACKWELL,
    "GB200": KernelConstants(0.60, 0.56, 2.0, 2.3, 0.60, 0.45, 16.0, 0.60, 6.0e-6, 4.0e-6),
    "GB300": KernelConstants(0.70, 0.65, 2.0, 2.3, 0.80, 0.60, 16.0, 0.60, 6.0e-6, 4.0e-6),
}
"""By accelerator."""


@dataclass(frozen=True)
class LinkConstants:
    """Shares of a link's peak that NCCL collectives reach, and their start-up times.

    Attributes:
        nvlink_ring: All-gather, reduce-scatter, all-reduce inside a domain (0.67-0.74 on B200: SimuMax system file).
        nvlink_alltoall: All-to-all inside a domain (0.60 on B200, same source).
        nic_ring: Rings over nodes.
        nic_alltoall: All-to-all over nodes (45 of 50 GB/s at 4 H100 nodes: nccl-tests runs in ep_backends notes).
        nvlink_start_s: Start of one collective inside a domain.
        nic_start_s: Start of one collective over nodes.
    """

    nvlink_ring: float
    nvlink_alltoall: float
    nic_ring: float
    nic_alltoall: float
    nvlink_start_s: float
    nic_start_s: float


# H100: all-to-all as the MoE-layer benchmark of Megatron-LM shows it (8 GPUs, 1.2 ms for 410 MB). Blackwell: rings as
# tensor parallelism inside a training step shows them (0.67 alone).
LINKS: Mapping[Family, LinkConstants] = {
    "hopper": LinkConstants(0.70, 0.78, 0.85, 0.80, 30e-6, 60e-6),
    "blackwell": LinkConstants(0.50, 0.60, 0.85, 0.80, 35e-6, 60e-6),
    "grace_blackwell": LinkConstants(0.50, 0.60, 0.85, 0.80, 35e-6, 60e-6),
}


@lru_cache(maxsize=64)
def _hardware(
    name: str,
    accelerator: str,
    gpus_per_node: int,
    nvlink_domain_gpus: int,
    sm_count: int,
    nvlink: float,
    nic: float,
    nic_proxied: bool,
    peaks: tuple[tuple[str, float], ...],
) -> Hardware:
    given = {**_PEAK_FLOPS_PER_S[accelerator], **dict(peaks)}
    return Hardware(
        name=name,
        family=_FAMILIES[accelerator],
        accelerator=accelerator,
        gpus_per_node=gpus_per_node,
        nvlink_domain_gpus=nvlink_domain_gpus,
        sm_count=sm_count,
        hbm_bytes_per_s=_HBM_BYTES_PER_S[accelerator],
        nvlink_bytes_per_s=nvlink,
        nic_bytes_per_s=nic,
        bf16_flops_per_s=given["bf16"],
        fp8_flops_per_s=given["fp8"],
        fp4_flops_per_s=given.get("fp4", given["fp8"]),
        nic_proxied=nic_proxied,
    )


def hardware_of(cluster: Cluster) -> Hardware:
    """The facts of a cluster that the time model needs.

    Raises:
        RequestError: a GPU without constants (or a CPU), or a cluster file that lacks SMs, NVLink or NIC.
    """
    accelerator = cluster.accelerator
    if accelerator not in _FAMILIES:
        raise RequestError(
            f"cluster {cluster.name}: no time model for accelerator {accelerator!r}",
            hint=f"known: {', '.join(_FAMILIES)}",
        )
    if cluster.sm_count is None or cluster.nvlink_bytes_per_s is None or cluster.nic_bytes_per_s is None:
        raise RequestError(
            f"cluster {cluster.name}: the time model needs sm_count, nvlink_bytes_per_s and nic_bytes_per_s"
        )
    return _hardware(
        cluster.name,
        accelerator,
        cluster.gpus_per_node,
        cluster.nvlink_domain_gpus,
        cluster.sm_count,
        cluster.nvlink_bytes_per_s,
        cluster.nic_bytes_per_s,
        cluster.nic_proxied,
        tuple(sorted(cluster.peak_flops_per_s.items())),
    )
