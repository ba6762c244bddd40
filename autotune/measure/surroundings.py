"""What a run finds where it runs: machines, software, backends."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Surroundings:
    """What preflight found out: which machines, which software, which backends.

    Attributes:
        fingerprint: Digest of everything that can change speed; numbers of different fingerprints are not compared.
        stack: Versions by distribution name.
        unavailable: Reason by backend that cannot be used on every node.
        pinned: Settings that every trial has here, the baseline included, whatever its point says.
    """

    fingerprint: str
    stack: Mapping[str, str]
    unavailable: Mapping[str, str]
    pinned: Mapping[str, Any] = field(default_factory=dict)
