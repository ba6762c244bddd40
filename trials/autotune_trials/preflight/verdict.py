"""What a probe says of one dispatcher on one node."""

from typing import Any

Verdict = dict[str, Any]
"""``backend``, ``available``, ``reason`` (one line), ``error`` (class name or kind), ``fix`` (may be empty),
``level`` (where it failed, or the last one that it passed), ``provider`` (whose package), ``notes``, ``untried``
(levels that could not be tried here, and why: a good verdict says nothing of those), ``seconds``."""


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
        "untried": {},
        "seconds": round(seconds, 3),
    }
