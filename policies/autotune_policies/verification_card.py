"""One verified run of a Megatron-Bridge model-verification card, as what a policy can say.

A card names a recipe and the command that ran it. The recipe is built by the installed Megatron-Bridge with the
command's overrides; the card's own numbers are repeated in a note as reported, never as evidence.
"""

import importlib
import pkgutil
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from autotune_policies.bridge_import import imported_from
from autotune_policies.documents import read_document
from autotune_policies.errors import PolicyError, PolicyFormatError
from autotune_policies.importing import Imported
from autotune_policies.settings import Settings, closest
from autotune_policies.shell_text import read_commands

_SECTIONS = ("model", "ddp", "comm_overlap", "train", "mixed_precision", "optimizer", "env_vars")
"""Parts of a container that settings and the contract are in; overrides of data, checkpoints and logs are not."""

_OVERRIDE = re.compile(r"(?:\+\+?|~)?(\w+)(\.[\w.]+)?=.*", re.DOTALL)
_FIELDS: Mapping[tuple[str, ...], tuple[str, ...]] = {
    ("-gb", "--global_batch_size"): ("train.global_batch_size",),
    ("-mb", "--micro_batch_size"): ("train.micro_batch_size",),
    ("-sl", "--seq_length"): ("model.seq_length",),
    ("-tp", "--tensor_model_parallel_size"): ("model.tensor_model_parallel_size",),
    ("-pp", "--pipeline_model_parallel_size"): ("model.pipeline_model_parallel_size",),
    ("-cp", "--context_parallel_size"): ("model.context_parallel_size",),
    ("-vp", "--virtual_pipeline_model_parallel_size"): ("model.virtual_pipeline_model_parallel_size",),
    ("-ep", "--expert_model_parallel_size"): ("model.expert_model_parallel_size",),
    ("-etp", "--expert_tensor_parallel_size"): ("model.expert_tensor_parallel_size",),
}
"""Options of Megatron-Bridge's ``scripts/training/run_recipe.py`` that stand for overrides."""


@dataclass(frozen=True)
class CardRun:
    """One run of a card.

    Attributes:
        name: Item and GPU, such as ``pretrain_performance.H100``.
        line: Where it stands in the card, from 1.
        recipe: Name of the recipe function.
        overrides: Hydra words that concern settings or the contract, in order.
        contract: ``num_gpus`` and ``precision``, as far as the card says.
        features: What the card says is on: ``moe_dispatcher``, ``cuda_graph``.
        notes: Status, commit and reported numbers.
    """

    name: str
    line: int
    recipe: str
    overrides: tuple[str, ...]
    contract: dict[str, Any]
    features: dict[str, Any]
    notes: tuple[str, ...]


def read_card(text: str, name: str, item: str | None, versions: Mapping[str, str]) -> Imported:
    """What one run of a card was configured with.

    Args:
        text: The card.
        name: File name for messages.
        item: Which run, such as ``pretrain_performance.H100``; None = the only one.
        versions: Of ``megatron_core`` and ``megatron_bridge``.

    Raises:
        PolicyFormatError: no card, or a run that cannot be read; the message begins with ``name:line:``.
        PolicyError: no such run, or the installed Megatron-Bridge cannot build its recipe.
    """
    run = choose_run(card_runs(text, name), item)
    container = _build(run)
    found = imported_from(container, f"{name}, {run.name}", versions)
    notes = (*found.notes, *run.notes, *_differences(run.features, found.settings))
    return replace(found, contract={**run.contract, **found.contract}, notes=notes)


def choose_run(runs: Sequence[CardRun], item: str | None) -> CardRun:
    """The named run, or the only one.

    Raises:
        PolicyError: no such run, or several and none named.
    """
    names = [run.name for run in runs]
    if item is None and len(runs) == 1:
        return runs[0]
    if item is None:
        raise PolicyError(f"the card has {len(runs)} runs of a recipe", hint=f"say which: --item {'|'.join(names)}")
    if item not in names:
        raise PolicyError(f"the card has no run {item!r}", hint=closest(item, names))
    return runs[names.index(item)]


def card_runs(text: str, name: str) -> list[CardRun]:
    """All verified runs of a recipe in a card.

    Raises:
        PolicyFormatError: not such a card, or a command that cannot be read; the message begins with ``name:line:``.
    """
    document = read_document(text, name)
    items = document.value.get("items") if isinstance(document.value, dict) else None
    if not isinstance(items, dict):
        raise PolicyFormatError(f"{name}: no model-verification card", hint="it has 'items' with a command each")
    runs = []
    for path, entry in _entries(items):
        command = entry.get("command")
        if entry.get("status") != "verified" or not isinstance(command, str) or "--recipe" not in command:
            continue
        where = document.at(("items", *path, "command"))
        runs.append(_run(".".join(path), int(where.rpartition(":")[2]), where, command, entry))
    return runs


def _entries(items: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], dict[str, Any]]]:
    for key, value in items.items():
        if isinstance(value, dict):
            if "status" in value:
                yield (*path, str(key)), value
            else:
                yield from _entries(value, (*path, str(key)))


def _run(name: str, line: int, where: str, command: str, entry: Mapping[str, Any]) -> CardRun:
    try:
        found = read_commands(command, name)
    except PolicyFormatError as error:
        raise PolicyFormatError(f"{where}: {error.message}") from error
    words = [word for word in found[0].words if isinstance(word, str)] if len(found) == 1 else []
    if len(found) != 1 or len(words) != len(found[0].words):
        raise PolicyFormatError(f"{where}: the command of {name} is not one command of plain words")
    said = dict(pairwise(words))
    counts = [said.get("--nodes", ""), said.get("--gpus-per-node", "")]
    contract: dict[str, Any] = {}
    if all(count.isdecimal() for count in counts):
        contract["num_gpus"] = int(counts[0]) * int(counts[1])
    if isinstance(entry.get("precision"), str):
        contract["precision"] = entry["precision"]
    notes = [f"recipe {said['--recipe']}"]
    if entry.get("bridge_commit"):
        notes.append(f"ran on Megatron-Bridge commit {entry['bridge_commit']}")
    metrics = entry.get("metrics")
    if isinstance(metrics, dict) and metrics:
        listed = ", ".join(f"{key} {value}" for key, value in metrics.items())
        notes.append(f"reported by the card, not measured here: {listed}")
    features = entry.get("enabled_features")
    return CardRun(
        name, line, said["--recipe"], tuple(_overrides(words)), contract,
        features if isinstance(features, dict) else {}, tuple(notes),
    )  # fmt: skip


def _overrides(words: Sequence[str]) -> Iterator[str]:
    """Options first, then the command's own overrides: the order in which Megatron-Bridge applies them."""
    said = dict(pairwise(words))
    for names, fields in _FIELDS.items():
        for value in (said[name] for name in names if name in said):
            yield from (f"{field}={value}" for field in fields)
    for word in words:
        match = _OVERRIDE.fullmatch(word)
        if match and match.group(1) in _SECTIONS:
            yield word


def _build(run: CardRun) -> Any:
    """The container of the run's recipe, by the installed Megatron-Bridge and its own code for overrides."""
    function = _recipe_function(run.recipe)
    try:
        container = function()
        if run.overrides:
            overriding = importlib.import_module("megatron.bridge.training.utils.omegaconf_utils")
            container = overriding.process_config_with_overrides(container, cli_overrides=list(run.overrides))
    except Exception as error:
        lines = str(error).strip().splitlines() or [""]
        raise PolicyError(f"recipe {run.recipe} of {run.name} fails: {type(error).__name__}: {lines[0]}") from error
    return container


def _recipe_function(name: str) -> Any:
    try:
        packages = [importlib.import_module("megatron.bridge.recipes")]
        flat = importlib.import_module("megatron.bridge.perf_recipes")
    except ImportError as error:
        raise PolicyError(
            f"a card names a recipe of Megatron-Bridge, which cannot be imported here: {error}",
            hint="run this where Megatron-Bridge is installed",
        ) from error
    for package in packages:
        if hasattr(package, name):
            return getattr(package, name)
    for found in pkgutil.iter_modules(flat.__path__):
        module = importlib.import_module(f"megatron.bridge.perf_recipes.{found.name}")
        if hasattr(module, name):
            return getattr(module, name)
    raise PolicyError(
        f"the installed Megatron-Bridge has no recipe {name!r}", hint="recipes come and go between releases"
    )


def _differences(features: Mapping[str, Any], settings: Settings) -> Iterator[str]:
    """What the card says was on and the installed Megatron-Bridge builds otherwise."""
    graphs = features.get("cuda_graph")
    said = {"dispatcher": features.get("moe_dispatcher")}
    if isinstance(graphs, dict):
        said |= {"cuda_graph_impl": graphs.get("implementation"), "cuda_graph_modules": graphs.get("scopes")}
    for name, value in said.items():
        if value is not None and value != settings[name]:
            yield f"the card says {name} {value}, but this Megatron-Bridge builds {settings[name]}"
