"""Hydra's override grammar, in which Megatron-Bridge's launcher takes changes to a recipe."""

import re
from typing import Any

from autotune_policies.bridge_changes import Change


def override_word(change: Change, *, added: bool, target: str = "") -> str:
    """One assignment as a word of Hydra's override grammar, unquoted for any shell.

    Args:
        change: The assignment.
        added: Whether the variable is not there yet.
        target: Class to build for a missing ``comm_overlap``, as ``module.Class``.
    """
    if change.remove:
        return f"~{change.path}"
    if change.path == "comm_overlap":
        items = ",".join(f"{name}:{hydra_value(value)}" for name, value in change.value.items())
        return f"comm_overlap={{_target_:{target},{items}}}"
    # Hydra demands ++ for a new key; a field is never new, so a mistyped one stays an error.
    prefix = "++" if change.is_variable and added else ""
    return f"{prefix}{change.path}={hydra_value(change.value)}"


def hydra_value(value: Any) -> str:
    """A value in Hydra's override grammar."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list):
        return "[" + ",".join(hydra_value(item) for item in value) + "]"
    text = str(value)
    if re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", text) and text.lower() not in ("null", "true", "false", "nan", "inf"):
        return text
    # A backslash counts only before a quote, or at the end, where the closing quote would follow it.
    quoted = re.sub(r"(\\*)('|$)", lambda match: match[1] * 2 + ("\\'" if match[2] else ""), text)
    return f"'{quoted}'"
