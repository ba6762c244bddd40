"""Whether a predicted peak fits into memory, as sure as the prediction is.

``MemoryEstimate.fits`` asks whether the expected need is within the device; a need that is within it by less than the
estimate's own standard deviation may well not be.
"""

from typing import Literal

from autotune.predict.memory import MemoryEstimate

Fit = Literal["fits", "may not fit", "does not fit"]


def fit_of(memory: MemoryEstimate, device_bytes: int | None, limit_bytes: int | None = None) -> Fit | None:
    """Fits with a standard deviation to spare, is expected to fit but by less, or is expected not to; null = no bound.

    Args:
        memory: The prediction.
        device_bytes: Memory of one GPU; holds what the allocator and everything outside it need. Null = not known.
        limit_bytes: What the peak alone must stay within; null = no limit.
    """
    spread = memory.uncertainty * memory.peak_memory_bytes
    bounds = ((memory.device_memory_bytes, device_bytes), (memory.peak_memory_bytes, limit_bytes))
    room = [bound - need for need, bound in bounds if bound is not None]
    if not room:
        return None
    if min(room) < 0:
        return "does not fit"
    return "fits" if min(room) >= spread else "may not fit"
