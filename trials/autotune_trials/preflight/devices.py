"""What a node's GPUs, network devices and device files mean for dispatchers: findings, each with its way out."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from autotune_trials.preflight.nvml import COMPLETED, IN_PROGRESS, NOT_STARTED, Gpu

State = Literal["ok", "warn", "fail", "unknown"]


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        name: What was looked at.
        state: ``fail`` = dispatchers with kernels of their own (DeepEP, HybridEP, NCCL EP) cannot run here;
            ``warn`` = some of their uses cannot, or numbers may be disturbed.
        says: What was found, one line.
        fix: The way out; empty when there is none to name, or none needed.
    """

    name: str
    state: State
    says: str
    fix: str = ""


def gpu_findings(gpus: Sequence[Gpu], absence: str = "", root: Path = Path("/")) -> tuple[Finding, ...]:
    """What the GPUs of a node mean; one finding ``gpus`` when there is nothing to complain of.

    Args:
        gpus: What NVML shows.
        absence: Why NVML cannot be used, in words that follow "NVML"; empty when it can.
        root: Where the file system begins.
    """
    if not gpus:
        return (_unseen(absence, root),)
    found = [finding for gpu in gpus for finding in _of_gpu(gpu)] + [*_together(gpus)]
    return tuple(found) or (Finding("gpus", "ok", _summary(gpus)),)


def network_findings(root: Path = Path("/")) -> tuple[Finding, ...]:
    """What joins this node to others: InfiniBand, GDRCopy and the IMEX channels of multi-node NVLink.

    Args:
        root: Where the file system begins.
    """
    adapters = _names(root / "sys/class/infiniband")
    verbs = _names(root / "dev/infiniband")
    channels = [name for name in _names(root / "dev/nvidia-caps-imex-channels") if name.startswith("channel")]
    return (
        _adapters(adapters, verbs),
        Finding("gdrcopy", "ok", "/dev/gdrdrv is there")
        if (root / "dev/gdrdrv").exists()
        else Finding(
            "gdrcopy", "warn", "no /dev/gdrdrv: NVSHMEM cannot write to the GPU from the host",
            "load the gdrdrv module on the host and pass /dev/gdrdrv into the container",
        ),
        Finding("imex", "ok", f"{len(channels)} IMEX channels")
        if channels
        else Finding(
            "imex", "warn", "no IMEX channel: GPUs of other nodes cannot be reached over NVLink",
            "start nvidia-imex on every node and pass /dev/nvidia-caps-imex-channels into the container",
        ),
    )  # fmt: skip


def _unseen(absence: str, root: Path) -> Finding:
    says = f"no GPU to be seen: NVML {absence or 'shows none'}"
    files = [name for name in _names(root / "dev") if re.fullmatch(r"nvidia\d+", name)]
    state: State = "warn" if files else "unknown"
    if files:
        says += f", but there is /dev/{files[0]}"
    if "binding" in absence or "imported" in absence:
        return Finding("gpus", state, says, "pip install nvidia-ml-py, where GPUs are")
    return Finding("gpus", state, says, "load NVIDIA's driver and pass it into the container, where GPUs are")


def _adapters(adapters: list[str], verbs: list[str]) -> Finding:
    if not adapters:
        return Finding(
            "infiniband", "warn", "no InfiniBand or EFA device: dispatchers cannot leave this node",
            "load the NIC's driver on the host",
        )  # fmt: skip
    if not any(name.startswith("uverbs") for name in verbs):
        return Finding(
            "infiniband", "warn", f"{len(adapters)} devices ({', '.join(adapters)}), but no /dev/infiniband/uverbs*",
            "pass /dev/infiniband into the container",
        )  # fmt: skip
    return Finding("infiniband", "ok", f"{len(adapters)} devices: {', '.join(adapters)}")


def _of_gpu(gpu: Gpu) -> Iterator[Finding]:
    who = f"GPU {gpu.index}"
    if gpu.mig:
        yield Finding(
            "mig", "fail", f"{who} is divided into instances (MIG), which cannot reach one another",
            f"nvidia-smi -i {gpu.index} -mig 0",
        )  # fmt: skip
    if gpu.nvlinks is not None and gpu.nvlinks_active is not None and gpu.nvlinks_active < gpu.nvlinks:
        down = gpu.nvlinks - gpu.nvlinks_active
        yield Finding(
            "nvlink", "warn" if gpu.nvlinks_active else "fail", f"{down} of {gpu.nvlinks} NVLinks of {who} are down",
            "see nvidia-smi nvlink -s; reset the GPUs or take the node out",
        )  # fmt: skip
    if gpu.fabric_state in (NOT_STARTED, IN_PROGRESS):
        yield Finding(
            "fabric", "fail", f"{who} has not joined the NVLink fabric yet",
            "start nvidia-fabricmanager on the host and wait until nvidia-smi -q says Fabric State: Completed",
        )  # fmt: skip
    if gpu.fabric_state == COMPLETED and gpu.fabric_healthy is False:
        yield Finding("fabric", "warn", f"the NVLink fabric of {who} says that it is not healthy", "see nvidia-smi -q")
    if gpu.uncorrected_ecc_errors:
        yield Finding(
            "ecc", "warn", f"{who} has {gpu.uncorrected_ecc_errors} uncorrected memory errors since its driver started",
            "reset the GPU, or take the node out",
        )  # fmt: skip
    if gpu.strangers:
        pids = ", ".join(map(str, gpu.strangers[:5]))
        yield Finding(
            "neighbours", "warn", f"{who} is used by other processes: {pids}", "end them before measuring anything"
        )


def _together(gpus: Sequence[Gpu]) -> Iterator[Finding]:
    apart = [(gpu.index, other) for gpu in gpus for other in gpu.unreachable if gpu.index < other]
    if apart:
        pairs = ", ".join(f"{one} and {other}" for one, other in apart[:3]) + (", ..." if len(apart) > 3 else "")
        yield Finding(
            "p2p", "fail", f"no NVLink path between {len(apart)} pairs of GPUs: {pairs}",
            "use alltoall or allgather on such nodes",
        )  # fmt: skip
    domains = sorted({gpu.fabric_domain for gpu in gpus if gpu.fabric_domain})
    if len(domains) > 1:
        yield Finding(
            "fabric", "fail", f"the node's GPUs are in {len(domains)} NVLink domains: {', '.join(domains)}",
            "see nvidia-smi -q; the fabric manager's partitions are wrong",
        )  # fmt: skip


def _summary(gpus: Sequence[Gpu]) -> str:
    names = ", ".join(dict.fromkeys(gpu.name for gpu in gpus))
    links = "" if gpus[0].nvlinks is None else f", {gpus[0].nvlinks_active} NVLinks each"
    domain = f", NVLink domain {gpus[0].fabric_domain}" if gpus[0].fabric_domain else ""
    return f"{len(gpus)} x {names}{links}{domain}"


def _names(folder: Path) -> list[str]:
    try:
        return sorted(path.name for path in folder.iterdir())
    except OSError:
        return []
