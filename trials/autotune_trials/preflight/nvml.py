"""What NVML says of this node's GPUs: how they are joined, shared and divided. Every reading may be unknown (None)."""

import os
from ctypes import byref
from dataclasses import dataclass
from typing import Any

from autotune_trials.nvml import absence, ask, handles, number, nvlinks, opened, text, users

NOT_STARTED, IN_PROGRESS, COMPLETED = 1, 2, 3
"""States of a GPU's registration with the NVLink fabric; 0 = it has none."""

_P2P_OK = 0
_NVLINK = 2


@dataclass(frozen=True)
class Gpu:
    """One GPU.

    Attributes:
        index: NVML's number of it.
        name: Product name.
        uuid: Its own.
        compute_capability: Major and minor number.
        mig: Whether it is divided into instances.
        uncorrected_ecc_errors: Since the driver was loaded.
        nvlinks_active: NVLinks that are up; None where it has none.
        nvlinks: NVLinks that it has.
        fabric_state: See :data:`COMPLETED`.
        fabric_domain: Cluster UUID and clique, ``uuid.clique``, once it is registered.
        fabric_healthy: What the fabric says of itself.
        unreachable: Indices of GPUs of this node whose memory it cannot reach.
        strangers: Processes that use it and are not ours to start: none of them is this process.
    """

    index: int
    name: str
    uuid: str | None = None
    compute_capability: tuple[int, int] | None = None
    mig: bool | None = None
    uncorrected_ecc_errors: int | None = None
    nvlinks_active: int | None = None
    nvlinks: int | None = None
    fabric_state: int | None = None
    fabric_domain: str | None = None
    fabric_healthy: bool | None = None
    unreachable: tuple[int, ...] = ()
    strangers: tuple[int, ...] = ()


def look() -> tuple[tuple[Gpu, ...], str]:
    """This node's GPUs, and why NVML cannot show any; empty when it can, whether there are any or not."""
    gpus = read_gpus()
    return gpus, "" if gpus else absence()


def read_gpus() -> tuple[Gpu, ...]:
    """This node's GPUs, in NVML's order; empty when there is none to be seen."""
    with opened() as nvml:
        found = handles(nvml)
        return tuple(_gpu(nvml, index, found) for index in found)


def _gpu(nvml: Any, index: int, gpus: dict[int, Any]) -> Gpu:
    handle = gpus[index]
    mig = _numbers(ask(nvml, "nvmlDeviceGetMigMode", handle))
    links = nvlinks(nvml, handle)
    kind = (getattr(nvml, "NVML_MEMORY_ERROR_TYPE_UNCORRECTED", 1), getattr(nvml, "NVML_VOLATILE_ECC", 0))
    return Gpu(
        index=index,
        name=text(ask(nvml, "nvmlDeviceGetName", handle)) or "a GPU without a name",
        uuid=text(ask(nvml, "nvmlDeviceGetUUID", handle)),
        compute_capability=_numbers(ask(nvml, "nvmlDeviceGetCudaComputeCapability", handle)),
        mig=None if mig is None else bool(mig[0]),
        uncorrected_ecc_errors=number(ask(nvml, "nvmlDeviceGetTotalEccErrors", handle, *kind)),
        nvlinks_active=sum(links) if links else None,
        nvlinks=len(links) if links else None,
        unreachable=tuple(
            other for other in gpus
            if other != index
            and number(ask(nvml, "nvmlDeviceGetP2PStatus", handle, gpus[other], _NVLINK)) not in (None, _P2P_OK)
        ),
        strangers=tuple(pid for pid in users(nvml, handle) if pid != os.getpid()),
        **_fabric(nvml, handle),
    )  # fmt: skip


def _fabric(nvml: Any, handle: Any) -> dict[str, Any]:
    info = ask(nvml, "c_nvmlGpuFabricInfo_v3_t")
    if info is None:  # a binding from before multi-node NVLink
        return {}
    try:
        nvml.nvmlDeviceGetGpuFabricInfoV(handle, byref(info))
        state, uuid, clique = int(info.state), bytes(info.clusterUuid), int(info.cliqueId)
        summary, status = int(info.healthSummary), int(info.status)
    except Exception:  # NVML's own error, or fields of another release
        return {}
    if state != COMPLETED or not any(uuid):
        return {"fabric_state": state}
    return {
        "fabric_state": state,
        "fabric_domain": f"{uuid.hex()}.{clique}",
        "fabric_healthy": {1: True, 2: False, 3: False}.get(summary) if status == 0 else False,
    }


def _numbers(value: Any) -> tuple[int, int] | None:
    """A pair of numbers; None for anything else."""
    if not isinstance(value, list | tuple) or len(value) != 2:
        return None
    one, other = number(value[0]), number(value[1])
    return None if one is None or other is None else (one, other)
