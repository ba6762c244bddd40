"""Activations that wait in host memory: how many bytes a rank copies per micro-batch, and what does not hide."""

from collections.abc import Mapping
from functools import lru_cache

from autotune.predict.activations import Share, block_activations, mtp_activations
from autotune.predict.hardware import Family
from autotune.predict.layers import Chunk
from autotune.predict.memory_plan import MemoryPlan
from autotune.predict.static import rank_contents
from autotune_trials.spec import ModelShape

HOST_BYTES_PER_S: Mapping[Family, float] = {"hopper": 50e9, "blackwell": 50e9, "grace_blackwell": 200e9}
"""Copies between a GPU and its host, one direction at a time, never measured inside a step.

Source: PCIe 5.0 x16, 64 GB/s, of which copies reach about 50; NVIDIA's data sheet of GB200: one Grace has 512 GB/s of
memory bandwidth for two GPUs, which is less than NVLink-C2C, and 0.8 of that is taken to be reached.
"""

HIDDEN_SHARE = 0.8
"""Share of a pass beside which copies run: in the forward pass the last layers' have nothing left to run beside, in the
backward pass the first ones' are waited for."""


def offloaded_bytes(plan: MemoryPlan) -> tuple[float, ...]:
    """Bytes that each pipeline rank sends to the host in one micro-batch's forward pass, and fetches back after it."""
    contents = rank_contents(plan.model, plan.pipeline, plan.virtual, plan.layout)
    # Many chunks are alike, and alike ones are one object: each is worked out once.
    distinct = {id(chunk): chunk for own in contents for chunk in own.chunks}
    how = (plan.share, plan.recompute, plan.offload)
    sizes = {key: _chunk_bytes(plan.model, chunk, *how) for key, chunk in distinct.items()}
    return tuple(sum(sizes[id(chunk)] for chunk in own.chunks) for own in contents)


@lru_cache(maxsize=8192)
def _chunk_bytes(
    model: ModelShape, chunk: Chunk, share: Share, recompute: tuple[str, ...], offload: tuple[str, ...]
) -> float:
    sent = 0.0
    for block, count in chunk.blocks:
        kept = block_activations(model, block, share, recompute).kept
        sent += count * (kept - block_activations(model, block, share, recompute, offload).kept)
    if chunk.mtp_layers:
        kept = mtp_activations(model, share, recompute).kept
        sent += chunk.mtp_layers * (kept - mtp_activations(model, share, recompute, offload).kept)
    return sent


def exposed_time(family: Family, sent_bytes: float, forward_s: float, backward_s: float) -> float:
    """Seconds per micro-batch by which the copies outlast the passes that they run beside."""
    copying = sent_bytes / HOST_BYTES_PER_S[family]
    return max(0.0, copying - HIDDEN_SHARE * forward_s) + max(0.0, copying - HIDDEN_SHARE * backward_s)
