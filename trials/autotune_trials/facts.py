"""What one node is: everything about its software and hardware that can change the speed of a trial.

Nothing is imported to find out: versions come from the installed distributions' metadata. Standard library only;
GPUs are asked for through NVML where its Python binding is installed.
"""

import hashlib
import importlib
import json
import os
import platform
import socket
from importlib import metadata
from pathlib import Path
from typing import Any

Facts = dict[str, Any]

_DISTRIBUTIONS = {
    "torch": ("torch",),
    "megatron_core": ("megatron-core",),
    "megatron_bridge": ("megatron-bridge",),
    "transformer_engine": ("transformer-engine", "transformer-engine-torch"),
    "deep_ep": ("deep-ep",),
    "triton": ("triton",),
    "nccl": ("nvidia-nccl-cu13", "nvidia-nccl-cu12"),
    "cudnn": ("nvidia-cudnn-cu13", "nvidia-cudnn-cu12"),
}
"""Distributions whose version is part of the stack; the first one that is installed counts."""


def node_facts() -> Facts:
    """What this node is, as a JSON-able mapping.

    Keys: ``host``, ``python``, ``machine``, ``cpu``, ``cpu_count`` (cores this process may use), ``versions`` (those
    installed), ``gpus`` (names, empty without NVML) and ``gpu_driver`` (None without NVML).
    """
    return {
        "host": socket.gethostname(),
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cpu": _cpu_model(),
        "cpu_count": len(os.sched_getaffinity(0)),
        "versions": _versions(),
        **_gpus(),
    }


def fingerprint(facts: Facts) -> str:
    """Twelve hexadecimal digits that are equal exactly for equal stacks: all facts but the host name."""
    stack = {name: value for name, value in facts.items() if name != "host"}
    canonical = json.dumps(stack, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:12]


def gpu_names() -> list[str]:
    """Names of this node's GPUs, in NVML's order; empty without a GPU, its driver or the binding of NVML."""
    return list(_gpus()["gpus"])


def _versions() -> dict[str, str]:
    found = {}
    for name, distributions in _DISTRIBUTIONS.items():
        for distribution in distributions:
            try:
                found[name] = metadata.version(distribution)
                break
            except metadata.PackageNotFoundError:
                continue
    return found


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")


def _gpus() -> dict[str, Any]:
    none: dict[str, Any] = {"gpus": [], "gpu_driver": None}
    try:
        nvml: Any = importlib.import_module("pynvml")
        nvml.nvmlInit()
    except Exception:  # no binding, no library, no driver: each has its own error, all mean "no GPU to be seen"
        return none
    try:
        handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
        names = [_text(nvml.nvmlDeviceGetName(handle)) for handle in handles]
        return {"gpus": names, "gpu_driver": _text(nvml.nvmlSystemGetDriverVersion())}
    except nvml.NVMLError:
        return none
    finally:
        nvml.nvmlShutdown()


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
