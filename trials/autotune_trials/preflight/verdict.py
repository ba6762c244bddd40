"""What a probe says of one dispatcher on one node."""

from typing import Any

Verdict = dict[str, Any]
"""``backend``, ``available``, ``reason`` (one line), ``error`` (class name or kind), ``fix`` (may be empty),
``level`` (where it failed, or the last one that it passed), ``provider`` (whose package), ``notes``, ``seconds``."""


def verdict(
    backend: str,
    seconds: float,
    *,
    level: str = "",
    error: str = "",
    reason: str = "",
    fix: str = "",
    provider: str = "",
    notes: list[str] | None = None,
) -> Verdict:
    """A verdict; it is good exactly when there is no error."""
    return {
        "backend": backend,
        "available": not error,
        "reason": reason,
        "error": error,
        "fix": fix,
        "level": level,
        "provider": provider,
        "notes": notes or [],
        "seconds": round(seconds, 3),
    }
