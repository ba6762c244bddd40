"""Settings that no configuration object holds, read back from the process itself: environment, binding, collector."""

import gc
import os
from collections.abc import Mapping
from pathlib import Path

from autotune_policies.settings import Settings, Value
from autotune_policies.surroundings import ENVIRONMENT_SETTINGS, read_environment

_NODES = Path("/sys/devices/system/node")


def surroundings(asked: Mapping[str, Value], environment: Mapping[str, str], nodes: Path = _NODES) -> Settings:
    """What is in force of the settings that live around the program; what nobody asked for stays null.

    Args:
        asked: The trial's settings.
        environment: Variables of this rank.
        nodes: Where the kernel describes its NUMA nodes.
    """
    found = read_environment(environment)
    settings = {name: found[name] if asked[name] is not None else None for name in ENVIRONMENT_SETTINGS}
    settings["gpus_per_numa_node"] = _binding(asked["gpus_per_numa_node"], environment, nodes)
    settings["manual_gc_interval"] = None if gc.isenabled() else asked["manual_gc_interval"]
    return settings


def _binding(asked: Value, environment: Mapping[str, str], nodes: Path) -> Value:
    """The number that was asked for if this process may run on its node's cores only, else null."""
    if not isinstance(asked, int):
        return None
    node = nodes / f"node{int(environment['LOCAL_RANK']) // asked}" / "cpulist"
    return asked if node.is_file() and os.sched_getaffinity(0) <= _cores(node.read_text(encoding="ascii")) else None


def _cores(text: str) -> set[int]:
    """The kernel's list form: ``0-3,8`` -> {0, 1, 2, 3, 8}."""
    ranges = [part.split("-") for part in text.strip().split(",") if part]
    return {core for first, *last in ranges for core in range(int(first), int((last or [first])[0]) + 1)}
