"""Environment variables that a policy may set: tuning knobs only, each with the reason why it is one.

A policy is a text file that travels between people. What is not listed here cannot be set by it, so it can
never choose which code runs (``LD_PRELOAD``, ``PATH``, ``PYTHONPATH``), where data goes or who is talked to.
"""

import re
from collections.abc import Mapping

from autotune_policies.errors import PolicyError

ALLOWED: Mapping[str, str] = {
    "CUDA_DEVICE_MAX_CONNECTIONS": "hardware queues: 1 keeps launch order, more lets kernels overlap",
    "CUDA_GRAPHS_USE_NODE_PRIORITY": "keeps stream priorities inside captured CUDA graphs",
    "CUDNNFE_CLUSTER_OVERLAP_MARGIN": "SM clusters that fused cuDNN grouped matrix products leave free",
    "NCCL_CTA_POLICY": "how many thread blocks NCCL collectives take",
    "NCCL_GRAPH_REGISTER": "buffer registration in graphs; must be 0 with expandable segments",
    "NCCL_MAX_NCHANNELS": "upper bound of NCCL channels, hence of the SMs it takes",
    "NCCL_MIN_NCHANNELS": "lower bound of NCCL channels",
    "NCCL_NET_GDR_C2C": "GPUDirect RDMA through the CPU link of GB200 and GB300",
    "NCCL_NET_GDR_LEVEL": "how far apart GPU and NIC may be for GPUDirect RDMA",
    "NCCL_NVLS_ENABLE": "NVLink SHARP collectives, which cost memory",
    "NCCL_P2P_NET_CHUNKSIZE": "chunk size of point-to-point messages, hence of alltoall",
    "NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN": "HybridEP topology, from expert_parallel and the domain",
    "NUM_OF_IN_FLIGHT_S2G_DISPATCH_API": "HybridEP dispatch: writes in flight",
    "NUM_OF_STAGES_DISPATCH_API": "HybridEP dispatch: pipeline depth",
    "NUM_OF_STAGES_G2S_COMBINE_API": "HybridEP combine: pipeline depth of reads",
    "NUM_OF_STAGES_S2G_COMBINE_API": "HybridEP combine: pipeline depth of writes",
    "NUM_OF_TOKENS_PER_CHUNK_COMBINE_API": "HybridEP combine: tokens per chunk",
    "NUM_OF_TOKENS_PER_CHUNK_DISPATCH_API": "HybridEP dispatch: tokens per chunk",
    "NUM_OF_TOKENS_PER_CHUNK_PREPROCESSING_API": "HybridEP preprocessing: tokens per chunk",
    "NVLINK_DOMAIN_SIZE": "GPUs of one NVLink domain",
    "NVTE_ALLOW_NONDETERMINISTIC_ALGO": "faster attention kernels whose sums depend on the order",
    "NVTE_BWD_LAYERNORM_SM_MARGIN": "SMs that backward normalisation leaves to communication",
    "NVTE_CPU_OFFLOAD_V1": "activation offload code path that Megatron-Core needs",
    "NVTE_CUTEDSL_FUSED_GROUPED_MLP": "fused grouped expert kernels",
    "NVTE_FWD_LAYERNORM_SM_MARGIN": "SMs that forward normalisation leaves to communication",
    "NVTE_NORM_BWD_USE_CUDNN": "cuDNN kernels for backward normalisation",
    "NVTE_NORM_FWD_USE_CUDNN": "cuDNN kernels for forward normalisation",
    "OMP_NUM_THREADS": "CPU threads of one rank",
    "PYTORCH_CUDA_ALLOC_CONF": "CUDA allocator: expandable segments, graph capture reuse",
    "TORCH_NCCL_AVOID_RECORD_STREAMS": "when buffers of collectives are freed",
    "TORCH_NCCL_HIGH_PRIORITY": "collectives on high-priority streams",
    "USE_MNNVL": "HybridEP over NVLink that spans nodes",
}
"""Variable name -> what it tunes."""

MAX_VALUE_LENGTH = 1000
"""Characters; far above any legitimate value."""


_COUNTS = re.compile(
    r"CUDA_DEVICE_MAX_CONNECTIONS|NCCL_M(AX|IN)_NCHANNELS|NUM_OF_\w+|NVLINK_DOMAIN_SIZE|NVTE_\w+_SM_MARGIN|OMP_NUM_THREADS"
)
"""Variables that count something; a margin may be 0."""


def check_variable(name: str, value: object) -> str:
    """The value, if a policy may set this variable to it.

    Raises:
        PolicyError: a variable that is not on the list, a value that is no single line of text, or no whole number
            where the variable counts something.
    """
    if name not in ALLOWED:
        import difflib  # only a mistake needs it

        near = difflib.get_close_matches(name, ALLOWED, n=1, cutoff=0.8)
        hint = f"did you mean {near[0]}?" if near else "only listed tuning knobs can"
        raise PolicyError(f"variable {name!r} cannot be set by a policy", hint=hint)
    if not isinstance(value, str):
        raise PolicyError(f"{name}={value!r} is not a text", hint=f'write it in quotes: {name}: "{value}"')
    if not value or len(value) > MAX_VALUE_LENGTH or not value.isprintable():
        raise PolicyError(f"{name}={value[:40]!r} must be one line of 1 to {MAX_VALUE_LENGTH} printable characters")
    least = 0 if name.endswith("_MARGIN") else 1
    if _COUNTS.fullmatch(name) and not (re.fullmatch("[0-9]{1,9}", value) and int(value) >= least):
        raise PolicyError(f"{name}={value[:40]!r} must be a whole number from {least}, of at most 9 digits")
    return value
