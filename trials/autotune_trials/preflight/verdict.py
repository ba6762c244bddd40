"""What a probe says of one dispatcher on one node."""

import math
from typing import Any, TypeGuard

from autotune_trials.lines import one_line

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
        "reason": one_line(reason),
        "error": one_line(error),
        "fix": fix,
        "level": level,
        "provider": one_line(provider),
        "notes": [one_line(note) for note in notes or []],
        "untried": {},
        "seconds": round(seconds, 3),
    }


def is_verdict(value: Any) -> TypeGuard[Verdict]:
    """Whether a value that came from a file or another process has all the words of a verdict."""
    if not isinstance(value, dict) or not value.keys() >= verdict("", 0.0).keys():
        return False
    words = (value[name] for name in ("backend", "reason", "error", "fix", "level", "provider"))
    untried, seconds = value["untried"], value["seconds"]
    return (
        all(isinstance(word, str) for word in words)
        and value["available"] is (not value["error"])
        and isinstance(value["notes"], list)
        and all(isinstance(note, str) for note in value["notes"])
        and isinstance(untried, dict)
        and all(isinstance(word, str) for item in untried.items() for word in item)
        and type(seconds) in (int, float)
        and 0.0 <= seconds < math.inf
    )
