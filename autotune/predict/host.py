"""What the host adds to a micro-batch: launches that the GPU waits for, and synchronisations. Seconds."""

from collections.abc import Mapping

from autotune.predict.hardware import Family, Hardware
from autotune.predict.work import BlockTime

# Python, autograd, Transformer Engine's bookkeeping and the launch of one eager kernel: eager micro-batches of one
# sequence take 4 to 9 ms per expert layer whatever the GPU (Megatron-Bridge performance summaries 25.11-26.04:
# Qwen3-30B on 8 B200, Qwen3-235B on 256 B300), which is this much for each of some 200 launches.
LAUNCH_S: Mapping[Family, float] = {"hopper": 20e-6, "blackwell": 20e-6, "grace_blackwell": 22e-6}

SYNC_S = 120e-6
"""GPU idle time of one dropless MoE layer: the host waits for token counts before it can size the experts' inputs."""

OVERLAP_LAUNCHES = 1.15
"""The combined schedule of expert-parallel overlap launches from two streams and checks events between them."""


def host_time(
    hardware: Hardware,
    busy_s: float,
    block: BlockTime,
    moe_layers: int,
    *,
    graph: str,
    modules: frozenset[str],
    static_shapes: bool,
    overlap: bool,
) -> float:
    """Seconds per micro-batch that the GPU waits for the host.

    Captured modules launch nothing; ``full_iteration`` launches nothing at all and needs static shapes. An empty
    ``modules`` with a per-layer implementation means the whole layer.
    """
    if graph == "full_iteration":
        return 0.0
    mixer, router, experts = block.launches_mixer, block.launches_router, block.launches_experts
    if graph != "none":
        whole = not modules
        if whole or "attn" in modules or "mamba" in modules:
            mixer *= 0.15
        if whole or "moe_router" in modules or "moe" in modules:
            router *= 0.2 if whole or "moe_preprocess" in modules else 0.5
        if whole or "moe" in modules:
            experts *= 0.15
    launching = (mixer + router + experts) * LAUNCH_S[hardware.family] * (OVERLAP_LAUNCHES if overlap else 1.0)
    waiting = 0.0 if static_shapes else SYNC_S * moe_layers
    # A queue of launches hides most of the host; what it does not hide shows where both sides are equally busy.
    slower, faster = max(launching, busy_s), min(launching, busy_s)
    exposed = slower - busy_s + 0.15 * faster * (faster / slower) ** 2
    return exposed + waiting
