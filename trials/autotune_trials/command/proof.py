"""Which settings a command ran with, from what it printed or saved; never from what it was asked."""

import json
import re
from pathlib import Path
from typing import Any

from autotune_policies.settings import Settings
from autotune_trials.command.words import forces_balance, release
from autotune_trials.spec import TrialSpec

_ARGUMENT = re.compile(r"^\s*(\w+) \.+ (.*?)\s*$", re.MULTILINE)


class RanOtherwise(Exception):  # noqa: N818 - reads as what it is
    """The command trained under another contract than the study's; the message names field, asked and found."""


def from_dump(text: str, spec: TrialSpec) -> dict[str, Any]:
    """The ``resolved`` document of a printed block of arguments.

    Raises:
        RanOtherwise: routing, sequence length or the number of steps are not the contract's.
        PolicyError: the block cannot be read for the installed release.
    """
    from autotune_policies.megatron_lm import read_argument_dump

    printed = dict(_ARGUMENT.findall(text))
    core = release("megatron-core")
    found = {
        name: _plain(printed[name])
        for name in ("seq_length", "train_iters", "moe_router_force_load_balancing", "world_size")
        if name in printed
    }
    _check_contract(spec, found)
    return _document(spec, read_argument_dump(text, core), core, "argument dump", found.get("world_size"))


def from_container(path: Path, spec: TrialSpec) -> dict[str, Any]:
    """The ``resolved`` document of a saved ConfigContainer.

    Raises:
        RanOtherwise: routing, sequence length or the number of steps are not the contract's.
        PolicyError: the container cannot be read for the installed releases.
        OSError: the file cannot be read.
    """
    from autotune_policies.bridge_fields import model_path
    from autotune_policies.megatron_bridge import read_container
    from autotune_policies.resolved import ABSENT, Resolved, read_resolved

    container = read_resolved(path)
    view = Resolved(container)
    model = model_path(view)
    fields = (f"{model}.seq_length", f"{model}.moe_router_force_load_balancing", "train.train_iters")
    _check_contract(spec, {path.rpartition(".")[2]: view.get(path) for path in fields if view.get(path) is not ABSENT})
    core, bridge = release("megatron-core"), release("megatron-bridge")
    settings = read_container(container, megatron_core=core, megatron_bridge=bridge)
    return {
        **_document(spec, settings, core, "saved ConfigContainer", None),
        "container": json.loads(json.dumps(container, default=str)),
    }


def _document(spec: TrialSpec, settings: Settings, core: str, proof: str, world_size: object) -> dict[str, Any]:
    return {
        "settings": dict(settings),
        "proof": proof,
        "megatron_core": core,
        "world_size": world_size if isinstance(world_size, int) else spec.gang.world_size,
    }


def _plain(text: str) -> object:
    return int(text) if text.isdecimal() else {"True": True, "False": False}.get(text, text)


def _check_contract(spec: TrialSpec, found: dict[str, Any]) -> None:
    wanted = {
        "seq_length": spec.contract.seq_length,
        "train_iters": spec.contract.steps,
        "moe_router_force_load_balancing": forces_balance(spec),
    }
    differing = [
        f"{name} is {found[name]}, not {wanted[name]}"
        for name in wanted
        if found.get(name, wanted[name]) != wanted[name]
    ]
    if differing:
        raise RanOtherwise(f"the command ran outside the study's contract: {'; '.join(differing)}")
