"""Which settings a command ran with, from what it printed or saved; never from what it was asked."""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from autotune_policies.settings import Settings
from autotune_trials.command.words import forces_balance, release
from autotune_trials.spec import TrialSpec

_ARGUMENT = re.compile(r"^\s*(\w+) \.+ (.*?)\s*$", re.MULTILINE)

_CONTRACT = ("seq_length", "train_iters", "global_batch_size", "moe_router_force_load_balancing")
_SHAPE = {
    "num_layers": "num_layers",
    "hidden_size": "hidden_size",
    "num_attention_heads": "num_attention_heads",
    "num_experts": "num_experts",
    "num_moe_experts": "num_experts",
    "moe_router_topk": "router_topk",
    "moe_ffn_hidden_size": "moe_ffn_hidden_size",
    "moe_shared_expert_intermediate_size": "shared_expert_size",
    "ffn_hidden_size": "ffn_hidden_size",
}
"""What a program says of the model, and the field of the model file. Experts have two names upstream."""


class RanOtherwise(Exception):  # noqa: N818 - reads as what it is
    """The command trained under another contract than the study's; the message names field, asked and found."""


def from_dump(text: str, spec: TrialSpec) -> dict[str, Any]:
    """The ``resolved`` document of a printed block of arguments.

    Raises:
        RanOtherwise: something that the study holds fixed is another one there: the model, the precision, the routing,
            sequence length, batch or steps.
        PolicyError: the block cannot be read for the installed release.
    """
    from autotune_policies.megatron_lm import read_argument_dump

    printed = {name: _plain(value) for name, value in _ARGUMENT.findall(text)}
    core = release("megatron-core")
    require_contract(spec, {"model": printed}, printed)
    return _document(spec, read_argument_dump(text, core), core, "argument dump", printed.get("world_size"))


def from_container(path: Path, spec: TrialSpec) -> dict[str, Any]:
    """The ``resolved`` document of a saved ConfigContainer.

    Raises:
        RanOtherwise: as :func:`from_dump`.
        PolicyError: the container cannot be read for the installed releases.
        OSError: the file cannot be read.
    """
    from autotune_policies.bridge_fields import model_path
    from autotune_policies.megatron_bridge import read_container
    from autotune_policies.resolved import ABSENT, Resolved, read_resolved

    container = read_resolved(path)
    view = Resolved(container)
    model = model_path(view)
    fields = [f"{model}.{name}" for name in (*_CONTRACT, *_SHAPE)] + ["train.train_iters", "train.global_batch_size"]
    said = {field.rpartition(".")[2]: view.get(field) for field in fields if view.get(field) is not ABSENT}
    require_contract(spec, container, said)
    core, bridge = release("megatron-core"), release("megatron-bridge")
    settings = read_container(container, megatron_core=core, megatron_bridge=bridge)
    return {
        **_document(spec, settings, core, "saved ConfigContainer", None),
        "container": json.loads(json.dumps(container, default=str)),
    }


def require_contract(spec: TrialSpec, container: object, said: Mapping[str, object]) -> None:
    """Nothing, if the command ran what the study holds fixed; what it does not say is not compared.

    Args:
        spec: The trial.
        container: Configuration with the flags of the precision in ``model`` or ``mixed_precision``.
        said: Fields of the model, the training and the batch by their upstream names.

    Raises:
        RanOtherwise: it did not; every differing field is named.
    """
    differing = [
        f"{name} is {found}, not {wanted}"
        for name, found, wanted in _comparable(spec, container, said)
        if found != wanted
    ]
    if differing:
        raise RanOtherwise(f"the command ran outside the study's contract: {'; '.join(differing)}")


def _comparable(spec: TrialSpec, container: object, said: Mapping[str, object]) -> Iterator[tuple[str, object, object]]:
    """Name, value found and value wanted of everything that both sides state."""
    contract, model = spec.contract, spec.model
    wanted: dict[str, object] = {
        "seq_length": contract.seq_length,
        "train_iters": contract.steps,
        "global_batch_size": contract.global_batch_size,
        "moe_router_force_load_balancing": forces_balance(spec),
    }
    for name in _CONTRACT:
        if name in said:
            yield name, said[name], wanted[name]
    for name, field in _SHAPE.items():
        value = getattr(model, field)
        experts = name in ("num_experts", "num_moe_experts")
        if name not in said or (name.startswith("moe_") and model.num_experts is None):
            continue
        if name == "ffn_hidden_size" and model.num_experts is not None and not model.num_dense_layers:
            continue  # no layer has that width
        if value is not None or experts or name == "moe_shared_expert_intermediate_size":
            yield name, said[name] or None, value
    found = _precision(container, contract.precision)
    if found is not None:
        yield "precision", found, contract.precision


def _precision(container: object, wanted: str) -> str | None:
    """The precision in force, by the wanted name where it has several; None where nothing is said of it."""
    from autotune_policies.container_facts import precision_names
    from autotune_policies.resolved import Resolved

    view = Resolved(container)
    names = precision_names(view)
    if not names:
        off = view.get("model.bf16") is False and view.get("model.fp16") is False
        names = ("fp32",) if off else ()
    return wanted if wanted in names else next(iter(names), None)


def _document(spec: TrialSpec, settings: Settings, core: str, proof: str, world_size: object) -> dict[str, Any]:
    return {
        "settings": dict(settings),
        "proof": proof,
        "megatron_core": core,
        "world_size": world_size if isinstance(world_size, int) else spec.gang.world_size,
    }


def _plain(text: str) -> object:
    return int(text) if text.isdecimal() else {"True": True, "False": False, "None": None}.get(text, text)
