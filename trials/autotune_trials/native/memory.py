"""Peak memory of this rank over the whole run, measured the same way in every trial."""

import contextlib
import os
import resource
from pathlib import Path

import torch

_STATUS = Path("/proc/self/status")


def resident_bytes() -> int:
    """Memory this process occupies now."""
    value = _status_bytes("VmRSS")
    return value if value is not None else _peak_since_start()


class PeakMemory:
    """Watches memory from its creation (after the imports, before anything is allocated) to the end of the run.

    On a CPU the kernel keeps the high-water mark of this process image; it is lowered to the present use first, so
    that neither the imports nor the parent process are counted. On a GPU it is what torch allocated.
    """

    def __init__(self, device: str) -> None:
        self._cuda = device == "cuda"
        self.kind = "cuda_allocated" if self._cuda else "rss_over_imports"
        if not self._cuda:
            # Where this is not allowed, a peak of the imports themselves would count if it were above all others.
            with contextlib.suppress(OSError):
                Path("/proc/self/clear_refs").write_text("5")
        self.rss_bytes = resident_bytes()

    def peak_bytes(self) -> int:
        """Largest use so far, in bytes: above that at creation on a CPU, of the allocator on a GPU."""
        if self._cuda:
            return int(torch.cuda.max_memory_allocated())
        peak = _status_bytes("VmHWM")
        return max(0, (peak if peak is not None else _peak_since_start()) - self.rss_bytes)


def _status_bytes(field: str) -> int | None:
    try:
        for line in _STATUS.read_text().splitlines():
            if line.startswith(field + ":"):
                return int(line.split()[1]) * 1024
    except OSError:
        return None
    return None


def _peak_since_start() -> int:
    # Kibibytes on Linux, bytes on macOS.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if os.uname().sysname == "Darwin" else 1024)
