"""Sets of time intervals: what was covered, and what of it by nothing else. Pure; the unit is the caller's."""

from collections.abc import Iterable, Mapping, Sequence

Interval = tuple[float, float]


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """The same instants as disjoint intervals in order; empty and backward ones are none."""
    merged: list[Interval] = []
    for start, end in sorted(intervals):
        if end <= start:
            continue
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def without(intervals: Iterable[Interval], covered: Iterable[Interval]) -> list[Interval]:
    """What of the first is in none of the second, as disjoint intervals in order."""
    left: list[Interval] = []
    others, index = union(covered), 0
    for start, end in union(intervals):
        while index < len(others) and others[index][1] <= start:
            index += 1
        at = index
        while at < len(others) and others[at][0] < end:
            if others[at][0] > start:
                left.append((start, others[at][0]))
            start = max(start, others[at][1])
            at += 1
        if start < end:
            left.append((start, end))
    return left


def length(intervals: Iterable[Interval]) -> float:
    """Time that is in at least one of them."""
    return sum(end - start for start, end in union(intervals))


def exposed_s(communication: Iterable[Interval], compute: Iterable[Interval]) -> float:
    """Time of communication that no computation hides, in the unit of the intervals (seconds give seconds)."""
    return length(without(communication, compute))


def shares(windows: Sequence[Interval], parts: Mapping[str, Sequence[Interval]], rest: str) -> dict[str, float]:
    """How the windows divide among the parts: every instant counts once, for the first part that covers it.

    Args:
        windows: What is divided.
        parts: Intervals by part, the part that takes precedence first; what is outside the windows does not count.
        rest: Name for the time that no part covers.

    Returns:
        Time by part and ``rest``; together they are the length of the windows.
    """
    found, left = {}, union(windows)
    for name, intervals in parts.items():
        found[name] = length(left)
        left = without(left, intervals)
        found[name] -= length(left)
    return {**found, rest: length(left)}
