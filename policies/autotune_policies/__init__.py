"""Reads, checks and applies exported policies; needs PyYAML and the standard library only.

``load_policy("dsv3-gb300.yaml").apply(config, model="dsv3", cluster="gb300")`` is all that a recipe needs.
"""

from typing import Any

from autotune_policies.apply import Applied
from autotune_policies.errors import PolicyError, PolicyFormatError, PolicyMismatch
from autotune_policies.policy import Policy, dump_policy, load_policy, parse_policy

__all__ = [
    "Applied",
    "Policy",
    "PolicyError",
    "PolicyFormatError",
    "PolicyMismatch",
    "dump_policy",
    "find",
    "load_policy",
    "parse_policy",
]


def __getattr__(name: str) -> Any:
    """What a recipe seldom needs is imported when it is asked for."""
    if name == "find":
        from autotune_policies.selection import find

        return find
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
