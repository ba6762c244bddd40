"""The configuration of a bridge trial: the recipe, the user's overrides, the trial's settings, the study's contract."""

import importlib
import importlib.metadata
import re
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

from autotune_policies.bridge_fields import model_path
from autotune_policies.documents import read_document
from autotune_policies.errors import PolicyError
from autotune_policies.megatron_bridge import apply_container
from autotune_policies.resolved import Resolved
from autotune_policies.settings import closest
from autotune_trials.native.refusal import MIN_STEPS, Rejected
from autotune_trials.programs import BRIDGE_ENTRY
from autotune_trials.spec import TrialSpec

NEWEST_RELEASE = "0.6.2"
"""Whose fields a container has that is trained by an entry of the user's own, without Megatron-Bridge."""

_SHAPE = {
    "num_layers": "num_layers",
    "hidden_size": "hidden_size",
    "num_moe_experts": "num_experts",
    "moe_router_topk": "router_topk",
}
"""What the rules and predictions judge the model by: field of the recipe and of the model file."""

REAL_DATA = "real"
_EXPONENT = re.compile(r"[-+]?\d+[eE][-+]?\d+")


def named(function: str) -> Any:
    """The object behind ``module:function``.

    Raises:
        ImportError: no such module.
        Rejected: the module has no such function.
    """
    module_name, _, path = function.partition(":")
    found: Any = importlib.import_module(module_name)
    for name in path.split("."):
        if not hasattr(found, name):
            raise Rejected(f"{function}: {module_name} has no {path!r}; {closest(name, dir(found))}")
        found = getattr(found, name)
    return found


def configured(spec: TrialSpec, save_to: Path) -> Any:
    """The recipe's configuration as this trial runs it.

    Args:
        spec: A bridge trial.
        save_to: Where rank 0 saves the configuration that is in force.

    Raises:
        Rejected: an override of a field that does not exist, another model than the study's, or data that are not
            the contract's.
        PolicyError: the installed releases cannot express a setting.
        Exception: whatever the recipe itself raises.
    """
    recipe = spec.recipe
    assert recipe is not None, "a bridge trial has a recipe"
    _check_contract(spec)
    config = named(recipe.function)()
    for word in recipe.overrides:
        override(config, word)
    _check_shape(config, spec)
    _check_data(config, spec)
    core, bridge = releases(recipe.entry)
    apply_container(config, spec.settings, spec.env, megatron_core=core, megatron_bridge=bridge)
    _apply_contract(config, spec, save_to)
    return config


def releases(entry: str) -> tuple[str, str]:
    """Installed versions of Megatron-Core and Megatron-Bridge."""
    try:
        bridge = importlib.metadata.version("megatron-bridge")
    except importlib.metadata.PackageNotFoundError:
        if entry == BRIDGE_ENTRY:
            raise
        bridge = NEWEST_RELEASE
    return importlib.metadata.version("megatron-core"), bridge


def override(config: Any, word: str) -> None:
    """Set one field by ``KEY=VALUE``; the key is dotted, the value is YAML.

    Raises:
        Rejected: no such field, or no YAML.
    """
    key, _, text = word.partition("=")
    *sections, last = key.lstrip("+").split(".")
    try:
        value = read_document(text, "value").value
    except PolicyError as error:
        raise Rejected(f"override {word!r}: the value is not YAML: {error.message}") from error
    if isinstance(value, str) and _EXPONENT.fullmatch(value):
        value = float(value)  # YAML takes 1e-3 for a text
    owner = config
    for name in sections:
        owner = _field(owner, name, word)
    if isinstance(owner, MutableMapping):
        owner[last] = value
    else:
        _field(owner, last, word)
        setattr(owner, last, value)


def _field(owner: Any, name: str, word: str) -> Any:
    if isinstance(owner, MutableMapping) and name in owner:
        return owner[name]
    if owner is None or not hasattr(owner, name):
        known = [] if owner is None else [known for known in vars(owner) if not known.startswith("_")]
        hint = f"; {closest(name, known)}" if known else ""
        raise Rejected(f"override {word!r}: the recipe's configuration has no field {name!r} there{hint}")
    return getattr(owner, name)


def _check_contract(spec: TrialSpec) -> None:
    contract = spec.contract
    if contract.steps < MIN_STEPS:
        raise Rejected(f"contract.steps={contract.steps}, but peak memory needs at least {MIN_STEPS} optimizer steps")
    if contract.routing.token_policy != "dropless":
        raise Rejected(f"routing.token_policy={contract.routing.token_policy!r}; the bridge program knows dropless")


def _transformer(config: Any) -> Any:
    """The part of the configuration that has the transformer's fields."""
    view = Resolved(config)
    return view.raw(model_path(view))


def _check_shape(config: Any, spec: TrialSpec) -> None:
    for field, name in _SHAPE.items():
        built, wanted = getattr(_transformer(config), field, None), getattr(spec.model, name)
        dense = field.startswith(("num_moe", "moe_")) and spec.model.num_experts is None
        if built is not None and not dense and built != wanted:
            raise Rejected(
                f"the recipe has model.{field}={built}, but the model file says {wanted}, by which rules and "
                "predictions judge; tune with a model file of the recipe's shape"
            )


def _check_data(config: Any, spec: TrialSpec) -> None:
    asked = spec.contract.routing.data_condition
    found = "mock_arange" if _is_mock(config.dataset) else REAL_DATA
    if asked != found:
        kind = type(config.dataset).__name__
        raise Rejected(f"routing.data_condition={asked!r}, but the recipe's dataset {kind} is {found!r}")


def _is_mock(dataset: Any) -> bool:
    """Whether the tokens are made up: Bridge's mock data count upwards, and stand in where nobody names real ones."""
    if "Mock" in type(dataset).__name__ or getattr(dataset, "mock", False):
        return True
    named = [getattr(dataset, name, ()) for name in ("blend", "blend_per_split")]
    return all(value is None for value in named)


def _apply_contract(config: Any, spec: TrialSpec, save_to: Path) -> None:
    contract = spec.contract
    config.train.train_iters = contract.steps
    config.train.global_batch_size = contract.global_batch_size
    optional: dict[str, object] = {
        "model.seq_length": contract.seq_length,
        "model.transformer.seq_length": contract.seq_length,
        "dataset.seq_length": contract.seq_length,
        "dataset.sequence_length": contract.seq_length,
        "dataset.random_seed": contract.seed,
        "rng.seed": contract.seed,
        "checkpoint.save": None,
        # Evaluation is no part of a step; releases differ in where they keep it.
        "validation.eval_iters": 0,
        "train.eval_iters": 0,
        "logger.log_interval": 1,
        "logger.save_config_filepath": str(save_to),
        "logger.tensorboard_dir": None,
        "logger.wandb_project": None,
        # A profiler slows the steps that it watches; a profiled run has the trial's own.
        "profiling": None,
    }
    if spec.model.num_experts is not None:
        _transformer(config).moe_router_force_load_balancing = contract.routing.source == "forced_balance"
    for path, value in optional.items():
        *sections, last = path.split(".")
        owner = config
        for name in sections:
            owner = getattr(owner, name, None)
        if owner is not None and hasattr(owner, last):
            setattr(owner, last, value)
