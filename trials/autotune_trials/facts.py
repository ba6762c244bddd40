"""What one node is: everything about its software and hardware that can change the speed of a trial.

Nothing is imported to find out: versions come from the installed distributions' metadata. Standard library only;
GPUs are asked for through NVML where its Python binding is installed.
"""

import hashlib
import json
import os
import platform
import socket
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from autotune_trials.nvml import ask, handles, number, nvlinks, opened, text

Facts = dict[str, Any]

_NO_GPUS: Facts = {"gpus": [], "gpu_driver": None, "gpu_topology": None}

_APPTAINER_LABELS = Path("/.singularity.d/labels.json")
_LIBRARY_FOLDERS = (
    "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/local/lib", "/usr/local/cuda/lib64",
)  # fmt: skip

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


def node_facts(*, ask_driver: bool = True) -> Facts:
    """What this node is, as a JSON-able mapping.

    Args:
        ask_driver: Whether to look for GPUs, which may take for ever where their driver is in trouble.

    Keys: ``host``, ``python``, ``machine``, ``cpu``, ``cpu_count`` (cores this process may use), ``versions`` (those
    installed), ``system`` (the operating system's name), ``container`` (what identifies the image; None where nothing
    does), ``nccl_library`` (file of a NCCL that no distribution brought; None without one), ``gpus`` (names, empty
    without NVML), ``gpu_driver`` (None without NVML) and ``gpu_topology`` (per pair of GPUs how far they are apart on
    the bus, per GPU its active NVLinks; None where NVML does not say).
    """
    return {
        "host": socket.gethostname(),
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cpu": _cpu_model(),
        "cpu_count": len(os.sched_getaffinity(0)),
        "versions": _versions(),
        "system": platform.freedesktop_os_release().get("PRETTY_NAME", "") if Path("/etc/os-release").exists() else "",
        "container": container(os.environ),
        "nccl_library": _nccl_library(),
        **(_gpus() if ask_driver else _NO_GPUS),
    }


def fingerprint(facts: Facts) -> str:
    """Twelve hexadecimal digits that are equal exactly for equal stacks: all facts but the host name."""
    stack = {name: value for name, value in facts.items() if name != "host"}
    canonical = json.dumps(stack, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:12]


def gpu_names() -> list[str]:
    """Names of this node's GPUs, in NVML's order; empty without a GPU, its driver or the binding of NVML."""
    return list(_gpus()["gpus"])


def container(environment: Mapping[str, str]) -> str | None:
    """What identifies the container image, None where nothing does: no file in a container names its digest.

    In this order: what the user or the launcher says (``AUTOTUNE_CONTAINER``, best a digest), the build number that
    images of NVIDIA's registry carry, the build labels of an Apptainer image, its file.
    """
    if said := environment.get("AUTOTUNE_CONTAINER"):
        return said
    if build := environment.get("NVIDIA_BUILD_ID"):
        return f"nvidia-build-{build}"
    if _APPTAINER_LABELS.exists():
        return f"apptainer-labels-{hashlib.sha256(_APPTAINER_LABELS.read_bytes()).hexdigest()[:12]}"
    return environment.get("APPTAINER_CONTAINER") or environment.get("SINGULARITY_CONTAINER")


def _nccl_library() -> str | None:
    """File name, and with it the version, of the NCCL that the loader would find outside of Python's packages."""
    folders = [*os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep), *_LIBRARY_FOLDERS]
    found = (Path(folder) / "libnccl.so.2" for folder in folders if folder)
    return next((path.resolve().name for path in found if path.exists()), None)


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
    with opened() as nvml:
        gpus = list(handles(nvml).values())
        return {
            "gpus": [text(ask(nvml, "nvmlDeviceGetName", gpu)) or "a GPU without a name" for gpu in gpus],
            "gpu_driver": text(ask(nvml, "nvmlSystemGetDriverVersion")),
            "gpu_topology": _topology(nvml, gpus) if gpus else None,
        }


def _topology(nvml: Any, gpus: list[Any]) -> dict[str, Any] | None:
    distances = [
        [number(ask(nvml, "nvmlDeviceGetTopologyCommonAncestor", one, other)) for other in gpus[:index]]
        for index, one in enumerate(gpus)
    ]
    if any(distance is None for row in distances for distance in row):  # an older driver, or an older binding
        return None
    return {"distances": distances, "nvlinks": [sum(nvlinks(nvml, gpu)) for gpu in gpus]}
