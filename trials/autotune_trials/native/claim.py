"""What this rank shows of what it built: its own part of the proof that a trial ran what was asked for."""

import os
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from autotune_policies.settings import Value
from autotune_trials.native.graphs import Replays, captured

_SET_BY_THE_LAUNCHER = {"PYTHONPATH"}
_SHOWN = ("settings", "dispatcher_class", "precision", "schedule")


def claim(
    resolved: Mapping[str, Any], env: Mapping[str, str], chunks: Iterable[Any], replays: Replays | None
) -> dict[str, Any]:
    """This rank's claim (see ``autotune_trials.claims``), as things stand now.

    Args:
        resolved: What this rank read back when it was built.
        env: The trial's variables.
        chunks: Its model chunks.
        replays: Counter of graph replays; None before the first step, when graphs prove nothing yet.
    """
    shown = {name: resolved[name] for name in _SHOWN}
    shown["environment"] = {
        name: os.environ.get(name)
        for name, asked in env.items()
        if name not in _SET_BY_THE_LAUNCHER and os.environ.get(name) != asked
    }
    if replays is not None:
        shown["settings"] = {**resolved["settings"], **_sms_in_force(resolved["settings"]["dispatcher"])}
        shown |= {"graphs_captured": captured(chunks), "graph_replays": replays.count}
    return shown


def _sms_in_force(dispatcher: Value) -> dict[str, Value]:
    """SMs that the backend's own buffer says it borrows; it is made in the first step, so the proof comes after."""
    fused = sys.modules.get("megatron.core.transformer.moe.fused_a2a")
    if dispatcher == "deepep" and getattr(fused, "_buffer", None) is not None:
        return {"num_sms": type(fused._buffer).num_sms}  # type: ignore[union-attr]
    sms = getattr(getattr(fused, "_hybrid_ep_buffer", None), "num_sms_dispatch_api", None)
    return {"num_sms": sms} if dispatcher == "hybridep" and isinstance(sms, int) else {}
