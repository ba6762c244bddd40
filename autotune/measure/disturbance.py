"""What disturbed a run from outside, and what on a node is broken: from the samples of its node workers."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

from autotune.measure.run import GangRun
from autotune.measure.steady import SteadySteps

THROTTLED_SHARE = 0.1
"""Share of a GPU's samples with slowed clocks from which on a run is disturbed; a single one is a spike."""

DISTURBED_SHARE = 1 / 3
"""Share of the measured steps on another level than most from which on they are no measurement."""

_FEWEST_STEPS = 20
"""Measured steps from which on a stretch on another level is told from scatter."""

SLOW_NODE = 1.05
"""A node whose ranks take this much longer than the median node is named."""

_BROKEN = {
    "xid_errors": "Xid {}",
    "ecc_uncorrected": "{} uncorrected ECC errors",
    "remapped_rows_failed": "a failed row remapping",
    "nvlink_errors": "{} NVLink errors",
}
_BROKEN_LINK = {
    "link_downed": "InfiniBand port {} went down {} times",
    "link_error_recovery": "InfiniBand port {} recovered from errors {} times",
    "symbol_error": "InfiniBand port {} had {} symbol errors",
}
_FEWEST_SYMBOL_ERRORS = 100
"""Below that they are the cable's normal life (a bit error rate of 1e-12 on a fast port)."""


@dataclass(frozen=True)
class Sick:
    """A node that should run nothing more until somebody has looked at it.

    Attributes:
        host: Its host name.
        reason: What was counted there, on one line.
    """

    host: str
    reason: str


def disturbance(run: GangRun, steady: SteadySteps) -> str:
    """What disturbed the run, on one line; empty when nothing did.

    Args:
        run: What came back.
        steady: Which of its steps after warm-up count; those on another level speak against it, set aside or not.
    """
    found = [f"{host}: {said}" for host, health in _nodes(run) for said in _of_node(health)]
    if not found and steady.steps >= _FEWEST_STEPS and steady.off_level > DISTURBED_SHARE * steady.steps:
        found.append(f"{steady.off_level} of {steady.steps} measured steps ran at another speed than the rest")
    return "; ".join(found)


def sick_nodes(run: GangRun) -> list[Sick]:
    """The nodes on which something is broken: Xid, ECC, NVLink, InfiniBand."""
    sick = []
    for host, health in _nodes(run):
        reasons = [f"GPU {gpu['index']}: {said}" for gpu in health.get("gpus", ()) for said in _broken(gpu)]
        for port, counters in health.get("infiniband", {}).items():
            for name, words in _BROKEN_LINK.items():
                count = counters.get(name, 0)
                if count >= (_FEWEST_SYMBOL_ERRORS if name == "symbol_error" else 1):
                    reasons.append(words.format(port, count))
        if reasons:
            sick.append(Sick(host, "; ".join(reasons)))
    return sick


def slow_nodes(run: GangRun) -> list[str]:
    """The nodes whose ranks are slower than the others', each in words; needs three nodes to have an opinion."""
    by_node: dict[int, list[float]] = {}
    for rank in run.ranks:
        if rank.median_step_time_s:
            by_node.setdefault(rank.node, []).append(rank.median_step_time_s)
    if len(by_node) < 3:
        return []
    own = {node: median(times) for node, times in by_node.items()}
    usual = median(own.values())
    return [
        f"{run.hosts[node] if node < len(run.hosts) else f'node {node}'} is {own[node] / usual - 1:.0%} slower"
        for node in sorted(own)
        if own[node] > SLOW_NODE * usual
    ]


def _nodes(run: GangRun) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for host, health in zip(run.hosts, run.health, strict=False):
        if health:
            yield host, health


def _of_node(health: Mapping[str, Any]) -> Iterator[str]:
    for gpu in health.get("gpus", ()):
        for reason, share in gpu.get("throttled", {}).items():
            if share >= THROTTLED_SHARE:
                hottest = gpu.get("temperature_c_max")
                heat = f", up to {hottest} C" if hottest is not None else ""
                yield f"GPU {gpu['index']} was slowed ({reason}) in {share:.0%} of the samples{heat}"
        strangers = gpu.get("foreign_processes", 0)
        if strangers:
            yield f"GPU {gpu['index']} was shared with {strangers} process{'es' * (strangers != 1)} of others"


def _broken(gpu: Mapping[str, Any]) -> Iterator[str]:
    for name, words in _BROKEN.items():
        value = gpu.get(name)
        if value:
            yield words.format(", ".join(map(str, value)) if isinstance(value, list) else value)
