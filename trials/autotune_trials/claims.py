"""What a rank shows of what it built: equal claims are merged, so that a thousand ranks cost one document.

A claim is read back from the rank's own objects. Rank 0's ``resolved`` document describes the whole gang; the claims
prove that every other rank built the same.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Claim:
    """What some ranks showed alike.

    Attributes:
        ranks: Which, ascending.
        shown: Their claim: ``settings`` in force, ``dispatcher_class``, ``precision``, ``schedule``, ``environment``
            (the trial's variables that have another value there; null = not set), and at the end
            ``graphs_captured`` and ``graph_replays``.
    """

    ranks: tuple[int, ...]
    shown: Mapping[str, Any]


def merged(claims: Iterable[Claim]) -> tuple[Claim, ...]:
    """The same claims, each document once, ordered by its lowest rank."""
    found: list[tuple[Mapping[str, Any], set[int]]] = []
    for claim in claims:
        ranks = next((ranks for shown, ranks in found if shown == claim.shown), None)
        if ranks is None:
            found.append((claim.shown, ranks := set()))
        ranks.update(claim.ranks)
    return tuple(sorted((Claim(tuple(sorted(ranks)), shown) for shown, ranks in found), key=lambda claim: claim.ranks))
