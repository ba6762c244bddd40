"""What happens to a node's GPUs and links while a trial runs on it: sampled beside the ranks, summed up at the end.

Clocks, the reasons why they were lowered, temperature, processes of others; and counters that should not move: Xid,
ECC, row remapping, NVLink, InfiniBand. Every reading that this driver or GPU does not have is left out. Standard
library only; NVML is asked through its Python binding where that is installed.
"""

import contextlib
import ctypes
import os
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from autotune_trials.nvml import ask, close, load, nvlinks, users
from autotune_trials.processes import environment_words
from autotune_trials.visible import entries

THROTTLE_REASONS = {
    0x08: "hardware slowdown",
    0x20: "software thermal limit",
    0x40: "hardware thermal limit",
    0x80: "power brake",
}
"""Bits of NVML's clock event reasons that disturb a measurement. The power cap (0x04) is a GPU's normal life."""

INTERVAL_S = 1.0

_INFINIBAND = Path("/sys/class/infiniband")
_PORT_COUNTERS = ("link_downed", "link_error_recovery", "symbol_error")
_NVLINK_COUNTERS = 4
_XID_EVENT = 8  # nvmlEventTypeXidCriticalError
_USER_XIDS = {13, 31, 43, 45, 68, 137}
"""Xid that a program causes by itself (bad addresses, its own end): they blame the settings, not the node."""


class _Gpu:
    """Readings of one GPU, added up."""

    def __init__(self, index: int, handle: Any) -> None:
        self.index = index
        self.handle = handle
        self.samples = 0
        self.throttled: dict[str, int] = {}
        self.clocks_mhz: list[int] = []
        self.temperature_c_max: int | None = None
        self.strangers: set[int] = set()
        self.xids: list[int] = []
        self.before: dict[str, int] = {}
        self.after: dict[str, int] = {}


class HealthSampler:
    """Samples one node from :meth:`start` to :meth:`stop`.

    Args:
        nvml: The NVML binding; None = the installed one, if any.
        gpus: The GPUs to watch, as CUDA_VISIBLE_DEVICES names them: indices or UUIDs.
        mark: ``NAME=value`` in the environment of the processes that may use them.
        infiniband: Where the kernel lists its InfiniBand devices.
    """

    def __init__(
        self,
        gpus: Iterable[str],
        mark: str,
        *,
        nvml: Any = None,
        infiniband: Path = _INFINIBAND,
    ) -> None:
        self._mark = mark
        self._nvml = nvml
        self._wanted = tuple(gpus)
        self._infiniband = infiniband
        self._gpus: list[_Gpu] = []
        self._events: Any = None
        self._ports: dict[str, dict[str, int]] = {}
        self._done = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, interval_s: float = INTERVAL_S) -> None:
        """Take the first reading and go on in a thread of its own; returns at once."""
        self._ports = self._read_ports()
        self._thread = threading.Thread(target=self._run, args=(interval_s,), name="health-sampler", daemon=True)
        self._thread.start()

    def stop(self, wait_s: float = 2.0) -> dict[str, Any]:
        """Take the last reading and sum up; a driver that does not answer is waited for ``wait_s`` at most.

        Returns:
            ``gpus``: per GPU ``index``, ``samples``, ``throttled`` (share of the samples by reason), ``sm_clock_mhz``
            (lowest and highest), ``temperature_c_max``, ``foreign_processes``, ``xid_errors``, and what these counters
            grew by: ``ecc_uncorrected``, ``nvlink_errors``, ``remapped_rows_failed``. ``infiniband``: what the counters
            of each port grew by, those that did.
        """
        self._done.set()
        if self._thread is not None:
            self._thread.join(wait_s)
        return {"gpus": [_summary(gpu) for gpu in self._gpus], "infiniband": self._grown_ports()}

    def sample(self) -> None:
        """One reading of every GPU."""
        for gpu in self._gpus:
            self._sample(gpu)
        self._take_events()

    def open(self) -> None:
        """Find the GPUs and read the counters as they are before the run; finds none where NVML cannot be used."""
        self._nvml = load(self._nvml)
        found = ((place, self._handle(word)) for place, word in enumerate(self._wanted))
        self._gpus = [_Gpu(place, handle) for place, handle in found if handle is not None]
        for gpu in self._gpus:
            gpu.before = dict(self._counters(gpu.handle))
        self._listen()

    def close(self) -> None:
        """Read the counters as they are after the run."""
        for gpu in self._gpus:
            gpu.after = dict(self._counters(gpu.handle))
        close(self._nvml)

    def _run(self, interval_s: float) -> None:
        self.open()
        while self._gpus:
            self.sample()
            if self._done.wait(interval_s):
                break
        self.close()

    def _handle(self, word: str) -> Any:
        if word.isdigit():
            return ask(self._nvml, "nvmlDeviceGetHandleByIndex", int(word))
        return ask(self._nvml, "nvmlDeviceGetHandleByUUID", word)

    def _sample(self, gpu: _Gpu) -> None:
        nvml, handle = self._nvml, gpu.handle
        reasons = ask(nvml, "nvmlDeviceGetCurrentClocksEventReasons", handle)
        if reasons is None:  # its name before driver 535
            reasons = ask(nvml, "nvmlDeviceGetCurrentClocksThrottleReasons", handle)
        if isinstance(reasons, int):
            gpu.samples += 1
            for bit, name in THROTTLE_REASONS.items():
                if reasons & bit:
                    gpu.throttled[name] = gpu.throttled.get(name, 0) + 1
        clock = ask(nvml, "nvmlDeviceGetClockInfo", handle, 1)  # 1: the SMs' clock
        if isinstance(clock, int):
            gpu.clocks_mhz.append(clock)
        heat = ask(nvml, "nvmlDeviceGetTemperature", handle, 0)  # 0: the sensor of the die
        if isinstance(heat, int):
            gpu.temperature_c_max = max(heat, gpu.temperature_c_max or heat)
        gpu.strangers |= {pid for pid in users(nvml, handle) if is_stranger(pid, self._mark)}

    def _counters(self, handle: Any) -> Iterator[tuple[str, int]]:
        nvml = self._nvml
        ecc = ask(nvml, "nvmlDeviceGetTotalEccErrors", handle, 1, 0)  # uncorrected, since the driver was loaded
        if isinstance(ecc, int):
            yield "ecc_uncorrected", ecc
        rows = ask(nvml, "nvmlDeviceGetRemappedRows", handle)
        if isinstance(rows, list | tuple) and len(rows) == 4 and isinstance(rows[3], int):
            yield "remapped_rows_failed", rows[3]
        errors = [
            ask(nvml, "nvmlDeviceGetNvLinkErrorCounter", handle, link, counter)
            for link, up in enumerate(nvlinks(nvml, handle))
            for counter in range(_NVLINK_COUNTERS)
            if up
        ]
        if any(isinstance(value, int) for value in errors):
            yield "nvlink_errors", sum(value for value in errors if isinstance(value, int))

    def _listen(self) -> None:
        """Have Xid errors kept for us; a driver without events shows none."""
        with contextlib.suppress(Exception):
            events = self._nvml.nvmlEventSetCreate()
            for gpu in self._gpus:
                self._nvml.nvmlDeviceRegisterEvents(gpu.handle, _XID_EVENT, events)
            self._events = events

    def _take_events(self) -> None:
        with contextlib.suppress(Exception):  # its time-out, when there is no event, is an error too
            while self._events is not None:
                event = self._nvml.nvmlEventSetWait_v2(self._events, 0)
                for gpu in self._gpus:
                    if _same(gpu.handle, event.device) and int(event.eventData) not in _USER_XIDS:
                        gpu.xids.append(int(event.eventData))

    def _read_ports(self) -> dict[str, dict[str, int]]:
        ports: dict[str, dict[str, int]] = {}
        for folder in sorted(self._infiniband.glob("*/ports/*/counters")):
            name = f"{folder.parts[-4]}/{folder.parts[-2]}"
            for counter in _PORT_COUNTERS:
                with contextlib.suppress(OSError, ValueError):
                    ports.setdefault(name, {})[counter] = int((folder / counter).read_text(encoding="ascii"))
        return ports

    def _grown_ports(self) -> dict[str, dict[str, int]]:
        grown: dict[str, dict[str, int]] = {}
        for port, counters in self._read_ports().items():
            for name, value in counters.items():
                more = value - self._ports.get(port, {}).get(name, value)
                if more > 0:
                    grown.setdefault(port, {})[name] = more
        return grown


def visible_gpus(count: int) -> tuple[str, ...]:
    """The first ``count`` GPUs that a process started here would see, as CUDA_VISIBLE_DEVICES names them."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    return entries(named)[:count] if named is not None else tuple(map(str, range(count)))


def is_stranger(pid: int, mark: str) -> bool:
    """Whether a process that NVML lists is none of ours.

    Inside a container NVML may tell the host's process ids, which mean nothing here or another process: so one whose
    memory can be looked at must have loaded the CUDA driver.

    Args:
        pid: Process id.
        mark: ``NAME=value`` in the environment of all processes that are ours.
    """
    try:
        if mark.encode() in environment_words(pid):
            return False
        return b"libcuda" in Path(f"/proc/{pid}/maps").read_bytes()
    except PermissionError:
        return True
    except OSError:
        return False


def _same(one: Any, other: Any) -> bool:
    """Handles are pointers, and every call makes a new object around them."""
    if isinstance(one, ctypes._Pointer) and isinstance(other, ctypes._Pointer):
        return ctypes.addressof(one.contents) == ctypes.addressof(other.contents)
    return bool(one == other)


def _summary(gpu: _Gpu) -> dict[str, Any]:
    grown = {name: gpu.after[name] - value for name, value in gpu.before.items() if gpu.after.get(name, value) > value}
    clocks = gpu.clocks_mhz
    return {
        "index": gpu.index,
        "samples": gpu.samples,
        "throttled": {name: count / gpu.samples for name, count in gpu.throttled.items()},
        "sm_clock_mhz": [min(clocks), max(clocks)] if clocks else None,
        "temperature_c_max": gpu.temperature_c_max,
        "foreign_processes": len(gpu.strangers),
        "xid_errors": sorted(set(gpu.xids)),
        **grown,
    }
