"""Version ranges of rules."""

from dataclasses import dataclass
from functools import lru_cache

Version = tuple[int, ...]

_ASSUMED = {"megatron_core": "0.19", "deep_ep": "1.2"}
"""What is taken for granted while nobody knows better: the newest supported release, and the DeepEP generation that
it can use."""


@dataclass(frozen=True)
class Versions:
    """A range of versions.

    Attributes:
        minimum: First version in it; empty = from the beginning.
        below: First version beyond it; empty = no end.
    """

    minimum: Version = ()
    below: Version = ()

    def hold_for(self, name: str, version: str | None) -> bool:
        """Whether a version is in the range; one that is not known is taken for the usual one."""
        known = version or _ASSUMED.get(name)
        if known is None:
            return True
        number = parse_version(known)
        return number >= self.minimum and (not self.below or number < self.below)

    def __str__(self) -> str:
        parts = [(">= ", self.minimum), ("< ", self.below)]
        return " and ".join(sign + ".".join(map(str, bound)) for sign, bound in parts if bound) or "all"


@lru_cache(maxsize=256)
def parse_version(text: str) -> Version:
    """The leading numbers of a version, at most three: ``"2.6.0a1+cu128"`` -> ``(2, 6, 0)``."""
    numbers = []
    for part in text.split("+")[0].split(".")[:3]:
        digits = ""
        for character in part:
            if not character.isdigit():
                break
            digits += character
        numbers.append(int(digits) if digits else 0)
    return tuple(numbers)
