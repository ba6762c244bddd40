"""What NVML says of this node's GPUs: how they are joined, shared and divided. Every reading may be unknown (None)."""

import contextlib
import importlib
import os
from collections.abc import Callable, Iterator
from ctypes import byref
from dataclasses import dataclass
from typing import Any

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


@contextlib.contextmanager
def opened() -> Iterator[Any]:
    """NVML's binding, initialised; None without the binding, its library or a driver."""
    try:
        nvml: Any = importlib.import_module("pynvml")
        nvml.nvmlInit()
    except Exception:  # each of them has its own error, and all mean "no GPU to be seen"
        yield None
        return
    try:
        yield nvml
    finally:
        nvml.nvmlShutdown()


def read_gpus() -> tuple[Gpu, ...]:
    """This node's GPUs, in NVML's order; empty when there is none to be seen."""
    with opened() as nvml:
        if nvml is None:
            return ()
        count = _reading(nvml, nvml.nvmlDeviceGetCount) or 0
        handles = {index: _reading(nvml, nvml.nvmlDeviceGetHandleByIndex, index) for index in range(count)}
        return tuple(_gpu(nvml, index, handles) for index in handles if handles[index] is not None)


def _gpu(nvml: Any, index: int, handles: dict[int, Any]) -> Gpu:
    handle = handles[index]
    mig = _reading(nvml, nvml.nvmlDeviceGetMigMode, handle)
    capability = _reading(nvml, nvml.nvmlDeviceGetCudaComputeCapability, handle)
    links = _links(nvml, handle)
    processes = _reading(nvml, nvml.nvmlDeviceGetComputeRunningProcesses, handle) or ()
    return Gpu(
        index=index,
        name=_text(_reading(nvml, nvml.nvmlDeviceGetName, handle)) or "a GPU without a name",
        uuid=_text(_reading(nvml, nvml.nvmlDeviceGetUUID, handle)),
        compute_capability=None if capability is None else (int(capability[0]), int(capability[1])),
        mig=None if mig is None else bool(mig[0]),
        uncorrected_ecc_errors=_reading(
            nvml,
            nvml.nvmlDeviceGetTotalEccErrors,
            handle,
            nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
            nvml.NVML_VOLATILE_ECC,
        ),
        nvlinks_active=sum(links) if links else None,
        nvlinks=len(links) if links else None,
        unreachable=tuple(
            other for other in handles
            if other != index
            and handles[other] is not None
            and _reading(nvml, nvml.nvmlDeviceGetP2PStatus, handle, handles[other], _NVLINK) not in (None, _P2P_OK)
        ),
        strangers=tuple(process.pid for process in processes if process.pid != os.getpid()),
        **_fabric(nvml, handle),
    )  # fmt: skip


def _links(nvml: Any, handle: Any) -> list[bool]:
    """The state of each NVLink; NVML answers with an error from the first link on that the GPU does not have."""
    states: list[bool] = []
    for link in range(nvml.NVML_NVLINK_MAX_LINKS):
        state = _reading(nvml, nvml.nvmlDeviceGetNvLinkState, handle, link)
        if state is None:
            break
        states.append(bool(state))
    return states


def _fabric(nvml: Any, handle: Any) -> dict[str, Any]:
    kind = getattr(nvml, "c_nvmlGpuFabricInfo_v3_t", None)
    if kind is None:  # a binding from before multi-node NVLink
        return {}
    info = kind()
    try:
        nvml.nvmlDeviceGetGpuFabricInfoV(handle, byref(info))
    except nvml.NVMLError:
        return {}
    state, uuid = int(info.state), bytes(info.clusterUuid)
    if state != COMPLETED or not any(uuid):
        return {"fabric_state": state}
    healthy = {1: True, 2: False, 3: False}.get(int(info.healthSummary))
    return {
        "fabric_state": state,
        "fabric_domain": f"{uuid.hex()}.{int(info.cliqueId)}",
        "fabric_healthy": healthy if int(info.status) == 0 else False,
    }


def _reading(nvml: Any, ask: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return ask(*arguments)
    except nvml.NVMLError:
        return None


def _text(value: str | bytes | None) -> str | None:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
