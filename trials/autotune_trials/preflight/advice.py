"""The way out of a failure, from what it said; the texts are those that users of these libraries report publicly."""

import re
from typing import NamedTuple

from autotune_trials.preflight.providers import V2


class _Advice(NamedTuple):
    text: str
    fix: str


_BUILD_V1 = "build DeepEP V1, or its hybrid-ep branch, from source"
_BY_TEXT = tuple(
    _Advice(text, fix)
    for text, fix in (
        (
            r"libnvshmem",
            "install the nvidia-nvshmem wheel that DeepEP was built with and put its lib folder on LD_LIBRARY_PATH",
        ),
        (r"IBVERBS_PRIVATE|libibverbs|libmlx5", "give the container the rdma-core release of the host"),
        (
            r"libcudart|libcuda\.so",
            "use the CUDA release that the library was built for, and a container with a driver",
        ),
        (
            r"cannot open shared object file",
            "install the library that is missing, or put its folder on LD_LIBRARY_PATH",
        ),
        (r"GLIBCXX|_ZNSt", "give the process the libstdc++ of the compiler that built the library"),
        (
            r"undefined symbol.*nccl|(?i:nccl).*(too old|version)",
            "install the NCCL release that the library was built with",
        ),
        (r"undefined symbol|\bABI\b", "build the library again, from source, against the torch that is installed"),
        (
            r"no kernel image|named symbol not found|was built for",
            "build the library again with TORCH_CUDA_ARCH_LIST set to this GPU's compute capability",
        ),
        (r"No NVLink connection between GPU (\d+) and GPU \1\b", "let every rank see all GPUs of its node"),
        (r"GIN is unavailable|IBGDA", "enable IBGDA in the NVIDIA driver, or install GDRCopy; see the DeepEP README"),
        (r"'HybridEPBuffer'|no HybridEPBuffer", "build DeepEP from its hybrid-ep branch"),
        (r"'EventOverlap'", _BUILD_V1),
        (r"compil|nvcc", "use a container with CUDA's compiler and set CUDA_HOME to it"),
        (r"megatron-core is not installed|this torch was built", "pip install 'moe-autotune[trial]'"),
        (
            r"Transformer Engine \(TE\)|Please install TE",
            "pip install --no-build-isolation 'transformer-engine[pytorch]'",
        ),
    )
)
_MISSING = {
    "deep_ep": "build it from source; the package of that name in the index is not DeepSeek's",
    "transformer_engine": "pip install --no-build-isolation 'transformer-engine[pytorch]'",
    "megatron": "pip install 'moe-autotune[trial]'",
}


def advice(reason: str, *, error: str = "", provider: str = "") -> str:
    """What to do about a failure; empty when nothing better is known than its own words.

    Args:
        reason: What it said.
        error: Its class, or kind.
        provider: Whose package it was; of one that Megatron-Core does not take, nothing else helps.
    """
    if provider.startswith(V2):
        return _BUILD_V1
    missing = re.search(r"No module named '(\w+)", reason)
    if missing and missing[1] in _MISSING:
        return _MISSING[missing[1]]
    return next((rule.fix for rule in _BY_TEXT if re.search(rule.text, reason)), _BY_KIND.get(error, ""))


_BY_KIND = {
    "Crash": "build the library again against the torch and CUDA that are installed",
    "Hang": "look at the file system and the network that the library waits for; py-spy dump shows where",
}
