"""From a trace of the profiler to seconds by part of a step. Reads the chrome trace as data; imports no torch.

Host ranges that :mod:`autotune_trials.native.profile` has put on say which part a moment of a thread belongs to. A
backward operator belongs to the part of the forward operator that the trace links it to. A kernel belongs to the part
in which it was launched.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autotune_trials.native.intervals import Interval, exposed_s, shares, without

PREFIX = "autotune:"
STEP = "step"
COMMUNICATION = ("dispatch", "combine")
COMPUTE = ("experts", "permute", "optimizer")

_KERNELS = ("kernel", "gpu_memcpy", "gpu_memset")
_LAUNCHES = ("cuda_runtime", "cuda_driver")
_LINK = "fwdbwd"
_US_PER_S = 1e6


class TraceError(ValueError):
    """The trace does not show what it was made for; the message is one line."""


@dataclass(frozen=True)
class _Range:
    """A stretch of one host thread, in microseconds; ``part`` is empty where it is nobody's own."""

    start: float
    end: float
    part: str


class _Owners:
    """Which part each moment of each thread belongs to: the innermost range's."""

    def __init__(self, ranges: Mapping[int, Sequence[_Range]]) -> None:
        self.segments = {thread: _flat(of) for thread, of in ranges.items()}
        self._starts = {thread: [segment.start for segment in of] for thread, of in self.segments.items()}

    def at(self, thread: int, moment: float) -> str:
        """The part; empty outside all ranges."""
        index = bisect_right(self._starts.get(thread, []), moment) - 1
        if index < 0:
            return ""
        segment = self.segments[thread][index]
        return segment.part if moment < segment.end else ""


def seconds_by_part(trace: Mapping[str, Any]) -> dict[str, float]:
    """Seconds per step of each part, mean over the profiled steps.

    Every instant of a step counts once. Where work overlaps it counts for computation before communication, so that
    communication is what nothing hides. On a GPU the parts are times of kernels and ``host_s`` is the time in which
    none ran. Without kernels in the trace (a CPU) they are times of the calling thread and ``host_s`` is the time
    outside all operators.

    Returns:
        ``step_time_s`` and its parts ``exposed_dispatch_s``, ``exposed_combine_s``, ``permute_s``, ``experts_s``,
        ``optimizer_s``, ``other_s`` (operators outside these), ``exposed_other_communication_s`` (NCCL kernels outside
        dispatch and combine) and ``host_s``; beside them ``dispatch_s`` and ``combine_s``, hidden time included.

    Raises:
        TraceError: no profiled step is in it.
    """
    events = [event for event in trace.get("traceEvents", ()) if "ts" in event]
    spans = [event for event in events if event.get("ph") == "X" and "dur" in event]
    # The GPU's copies of the ranges are of another category.
    ranges = [event for event in spans if event.get("cat") == "user_annotation" and _part(event)]
    steps = [event for event in ranges if _part(event) == STEP]
    if not steps:
        raise TraceError("the profiler's trace holds no step")
    windows = [_interval(step) for step in steps]
    owners = _owners(events, spans, [event for event in ranges if _part(event) != STEP])
    kernels = [event for event in spans if event.get("cat") in _KERNELS]
    work = _kernels_by_part(kernels, spans, owners) if kernels else _calls_by_part(steps[0]["tid"], spans, owners)
    order = (*COMPUTE, "other", *COMMUNICATION, "other_communication")
    found = shares(windows, {part: work[part] for part in order}, "host")
    each = _US_PER_S * len(steps)
    seconds = {"step_time_s": sum(end - start for start, end in windows) / each}
    for part in order:
        exposed = "exposed_" if part in (*COMMUNICATION, "other_communication") else ""
        seconds[f"{exposed}{part}_s"] = found[part] / each
    for part in COMMUNICATION:
        seconds[f"{part}_s"] = exposed_s(work[part], ()) / each
    return {**seconds, "host_s": found["host"] / each}


def _owners(
    events: Iterable[Mapping[str, Any]], spans: Iterable[Mapping[str, Any]], named: Iterable[Mapping[str, Any]]
) -> _Owners:
    """Ranges of the forward pass, and those of the backward pass that follow from them."""
    ranges: dict[int, list[_Range]] = defaultdict(list)
    for event in named:
        ranges[event["tid"]].append(_Range(*_interval(event), _part(event)))
    forward = _Owners(ranges)
    links = [event for event in events if event.get("cat") == _LINK]
    part_of = {link["id"]: forward.at(link["tid"], link["ts"]) for link in links if link["ph"] == "s"}
    backward = {(link["tid"], link["ts"]): part_of.get(link["id"], "") for link in links if link["ph"] == "f"}
    for event in spans:
        # Also one without a part: what a part's backward recomputes of others is not the part's.
        part = backward.get((event["tid"], event["ts"])) if event.get("cat") == "cpu_op" else None
        if part is not None:
            ranges[event["tid"]].append(_Range(*_interval(event), part))
    return _Owners(ranges)


def _kernels_by_part(
    kernels: Iterable[Mapping[str, Any]], spans: Iterable[Mapping[str, Any]], owners: _Owners
) -> Mapping[str, list[Interval]]:
    launched = {
        event["args"]["correlation"]: (event["tid"], event["ts"])
        for event in spans
        if event.get("cat") in _LAUNCHES and "correlation" in event.get("args", {})
    }
    work: dict[str, list[Interval]] = defaultdict(list)
    for kernel in kernels:
        launch = launched.get(kernel.get("args", {}).get("correlation"))
        part = owners.at(*launch) if launch else ""
        if part not in COMMUNICATION and "nccl" in kernel["name"].lower():
            part = "other_communication"
        work[part or "other"].append(_interval(kernel))
    return work


def _calls_by_part(thread: int, spans: Iterable[Mapping[str, Any]], owners: _Owners) -> Mapping[str, list[Interval]]:
    """On a CPU the thread that runs the step does the work itself, so its own time is what the step takes."""
    work: dict[str, list[Interval]] = defaultdict(list)
    for segment in owners.segments.get(thread, ()):
        work[segment.part or "other"].append((segment.start, segment.end))
    # What a part of communication covers is its own, whatever operators it calls.
    owned = [interval for part in COMMUNICATION for interval in work[part]]
    operators = [_interval(event) for event in spans if event.get("cat") == "cpu_op" and event["tid"] == thread]
    work["other"] = without([*work["other"], *operators], owned)
    return work


def _flat(ranges: Iterable[_Range]) -> list[_Range]:
    """Disjoint stretches of one thread in order, each with the innermost of the nested ranges that cover it."""
    flat: list[_Range] = []
    open_ranges: list[_Range] = []
    at = 0.0

    def close(until: float) -> None:
        nonlocal at
        while open_ranges and open_ranges[-1].end <= until:
            last = open_ranges.pop()
            if last.end > at:
                flat.append(_Range(at, last.end, last.part))
                at = last.end

    for item in sorted(ranges, key=lambda item: (item.start, -item.end)):
        close(item.start)
        if open_ranges and item.start > at:
            flat.append(_Range(at, item.start, open_ranges[-1].part))
        at = max(at, item.start)
        open_ranges.append(item)
    close(float("inf"))
    return flat


def _part(event: Mapping[str, Any]) -> str:
    name = str(event.get("name", ""))
    return name.removeprefix(PREFIX) if name.startswith(PREFIX) else ""


def _interval(event: Mapping[str, Any]) -> Interval:
    return float(event["ts"]), float(event["ts"]) + float(event["dur"])
