"""What a GPU holds beside its allocator's peak: fragments, communication buffers, the CUDA context."""

import math
from dataclasses import dataclass

from autotune.cluster import Cluster
from autotune.predict.memory_plan import MemoryPlan
from autotune_policies.settings import Settings

FRAGMENTATION = {"expandable": 0.02, "fixed": 0.06}
"""Memory that the allocator holds but cannot use when the device runs full, relative to the allocated peak.

Source: expandable segments: runs whose allocated peak was 76.1 GiB of an H100's 79.1; fixed segments: a run that ended
at 73.4 GiB. Far from the limit more is reserved (1.025 to 1.045 times the peak), and given back when needed.
"""

CONTEXT_BYTES = int(0.6 * 2**30)
"""CUDA context, loaded kernels and libraries of one process; an estimate, not a measurement."""

NCCL_BYTES_PER_GROUP = 256 * 2**20
"""Buffers of one NCCL communicator: 4 MiB for each of 16 channels and four neighbours in ring and tree; an estimate."""

DEEPEP_NVLINK_TOKENS = 256
DEEPEP_RDMA_TOKENS = 128
"""Receive queue per channel and peer in DeepEP's default configurations; a channel is two streaming multiprocessors."""


@dataclass(frozen=True)
class DeviceOverhead:
    """Bytes outside the allocator's peak.

    Attributes:
        fragmentation: Reserved by the allocator, but not usable.
        dispatcher: Buffers of DeepEP, HybridEP or NCCL EP.
        communication: Buffers of NCCL communicators.
        context: CUDA context and loaded kernels.
    """

    fragmentation: int
    dispatcher: int
    communication: int
    context: int

    @property
    def total(self) -> int:
        """All of them."""
        return self.fragmentation + self.dispatcher + self.communication + self.context


def device_overhead(plan: MemoryPlan, settings: Settings, cluster: Cluster | None, peak_bytes: float) -> DeviceOverhead:
    """What the device holds beside a peak of so many bytes."""
    sizes = (plan.tensor, plan.pipeline, plan.context, plan.dense_shards, plan.expert, plan.expert_tensor)
    groups = 1 + sum(size > 1 for size in sizes) + (plan.expert > 1 and plan.expert_shards > 1)
    return DeviceOverhead(
        fragmentation=int(FRAGMENTATION[_segments(settings, cluster)] * peak_bytes),
        dispatcher=int(dispatcher_bytes(plan, settings, cluster)),
        communication=NCCL_BYTES_PER_GROUP * groups,
        context=CONTEXT_BYTES,
    )


def _segments(settings: Settings, cluster: Cluster | None) -> str:
    """How the CUDA allocator grows: as the settings say, else as the cluster's environment does."""
    chosen = settings.get("cuda_allocator")
    if not isinstance(chosen, str):
        env = cluster.env if cluster is not None else {}
        chosen = env.get("PYTORCH_CUDA_ALLOC_CONF", "") + env.get("PYTORCH_ALLOC_CONF", "")
        return "expandable" if "expandable_segments:True" in chosen else "fixed"
    return "expandable" if chosen.startswith("expandable") else "fixed"


def dispatcher_bytes(plan: MemoryPlan, settings: Settings, cluster: Cluster | None) -> float:
    """Buffers of the expert-parallel dispatcher on one GPU.

    DeepEP: queues per channel and peer, so they grow with the SMs it is lent. HybridEP and NCCL EP: one slot per token
    of every rank in the NVLink domain, for dispatch and for combine.
    """
    dispatcher, ranks = settings.get("dispatcher"), plan.expert * plan.expert_tensor
    if not plan.model.num_experts or ranks == 1 or dispatcher not in ("deepep", "hybridep", "ncclep"):
        return 0.0
    domain = cluster.nvlink_domain_gpus if cluster is not None else 8
    row = (plan.model.moe_latent_size or plan.model.hidden_size) * 2.0
    near = min(ranks, domain)
    far = math.ceil(ranks / domain)
    if dispatcher == "deepep":
        sms = settings.get("num_sms")
        channels = (sms if isinstance(sms, int) else 20) // 2
        nvlink = channels * near * DEEPEP_NVLINK_TOKENS * row
        return nvlink + (channels * far * DEEPEP_RDMA_TOKENS * row * 2 if far > 1 else 0.0)
    slots = plan.share.tokens / plan.tensor * (near if far == 1 else near + far)
    return 2 * slots * row
