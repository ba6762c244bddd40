"""Program: puts policies into the real recipes of the installed megatron-bridge and prints what came of it as JSON.

It runs in a process of its own, because stand-ins for kernel libraries must not be seen by any other test.
Usage: ``python prove_recipes.py FOLDER``; model configurations are written to the folder.
"""

import contextlib
import dataclasses
import enum
import functools
import importlib
import inspect
import os
import pkgutil
import random
import traceback
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from autotune_policies.bridge_changes import Change
from autotune_policies.bridge_fields import GROUPS, effective, same_meaning
from autotune_policies.container_facts import contract_of
from autotune_policies.hydra import override_word
from autotune_policies.importing import left_out, policy_from
from autotune_policies.megatron_bridge import apply_container, overrides_of, read_container
from autotune_policies.policy import Policy
from autotune_policies.resolved import Resolved
from autotune_policies.settings import SETTINGS, Settings, resolve
from autotune_policies.surroundings import HYBRID_EP_TOPOLOGY, environment_of, topology_of
from tests.support.answers import answer_with
from tests.support.bridge_stubs import install_stubs, use_local_models

PACKAGES = ("perf_recipes", "recipes")
VERSIONS = {"megatron_core": "0.19.2", "megatron_bridge": "0.6.2"}
FAMILIES = ("deepseek_v3", "qwen3_30b_a3b", "qwen3_235b_a22b", "gpt_oss_20b", "gpt_oss_120b")
GPUS = ("h100", "b200", "gb200", "gb300")

EVERYTHING: Settings = {
    "micro_batch_size": 3, "tensor_parallel": 2, "pipeline_parallel": 2,
    "virtual_pipeline": 2, "context_parallel": 2, "expert_parallel": 4, "expert_tensor_parallel": 2,
    "num_sms_preprocessing": 64, "num_sms": 24, "rank_capacity_factor": 1.75,
    "manual_gc_interval": 7, "layernorm_sm_margin": 12, "cuda_device_max_connections": 2,
    "tokens_per_chunk": 32, "dispatcher": "hybridep", "permute_fusion_into_hybridep": True, "num_blocks_permute": 12,
    "cuda_graph_impl": "transformer_engine", "cuda_graph_modules": ["moe_router"],
    "recompute_granularity": "selective", "recompute_modules": ["core_attn", "shared_experts"],
    "offload_modules": ["qkv_linear"], "cuda_allocator": "fixed_segments",
}  # fmt: skip
"""With the switches of a recipe turned over, this differs from every recipe in every group of settings."""


def main(folder: Path) -> dict[str, Any]:
    """Everything that was found, as plain data."""
    install_stubs()
    importlib.import_module("transformer_engine.pytorch")
    use_local_models(folder)
    report: dict[str, Any] = {"failed": {}, "recipes": {}, "launched": {}, "dense": 0}
    for name, function in _functions():
        try:
            recipe = function()
        except Exception as error:
            report["failed"][name] = f"{type(error).__name__}: {error}"
            continue
        if not getattr(getattr(recipe, "model", None), "num_moe_experts", None):
            report["dense"] += 1
            continue
        outcome = _attempt(_prove, recipe, function)
        if "error" in outcome:
            outcome["untouched"] = _start(function())
        report["recipes"][name] = outcome
        family, gpu = _workload(name)
        if family and not report["launched"].get(f"{family} {gpu}"):
            report["launched"][f"{family} {gpu}"] = _attempt(_launch, recipe, function)
    report["quoting"] = _attempt(_quoting)
    return report


def _prove(recipe: Any, function: Callable[[], Any]) -> dict[str, Any]:
    """Import and apply to the same recipe; then a policy that changes everything, and back."""
    before = _flat(recipe)
    policy, given = _imported(recipe)
    fresh = function()
    with _own_environment():
        policy.apply(fresh)
    changed = _differences(before, _flat(fresh))
    other, variables = _everything(policy.settings)
    apply_container(fresh, other, variables, **VERSIONS)
    found = read_container(fresh, **VERSIONS)
    wrong = [name for name, value in other.items() if name in found and found[name] != value]
    again = apply_container(fresh, other, variables, **VERSIONS)
    apply_container(fresh, policy.settings, policy.env, **VERSIONS)
    back = _differing(policy.settings, read_container(fresh, **VERSIONS))
    kept = [group[0] for group in GROUPS if same_meaning(group, other, effective(policy.settings))]
    return {"given": given, "changed": changed, "wrong": wrong, "again": list(again), "back": back, "kept": kept}


def _launch(recipe: Any, function: Callable[[], Any]) -> dict[str, Any]:
    """The same policy through Python and through overrides, then Bridge's own start-up as far as a CPU goes."""
    process = importlib.import_module("megatron.bridge.training.utils.omegaconf_utils").process_config_with_overrides
    policy, _ = _imported(recipe)
    wanted = {
        **policy.settings, "dispatcher": "alltoall", "num_sms": None, "recompute_granularity": None,
        "recompute_modules": [], "recompute_method": None, "recompute_num_layers": None, "cuda_graph_impl": "none",
        "cuda_graph_modules": [], "rank_capacity_factor": None, "paged_stash": False, "offload_modules": [],
        "ep_overlap": True, "delay_wgrad": False, "micro_batch_size": 1, "shared_expert_overlap": False,
        "manual_gc_interval": 7, "layernorm_sm_margin": 12,
    }  # fmt: skip
    pipelined = policy.settings["pipeline_parallel"] != 1 and policy.settings["virtual_pipeline"] == 1
    wanted = effective(resolve({**wanted, "ep_overlap": not pipelined and policy.settings["expert_parallel"] != 1}))
    outcome: dict[str, Any] = {"untouched": _start(function())}
    hybrid = effective(resolve({**wanted, "dispatcher": "hybridep", "num_sms": 24}))
    for label, settings in (("alltoall", wanted), ("hybridep", hybrid)):
        variables = _variables(settings)
        by_words = function()
        words = overrides_of(settings, variables, **VERSIONS, container=by_words)
        process(by_words, cli_overrides=words)
        by_python = function()
        apply_container(by_python, settings, variables, **VERSIONS)
        process(by_python, cli_overrides=[])  # it rewrites every value in its own form
        python, hydra = _start(by_python), _start(by_words)
        outcome[label] = {
            "words": len(words),
            "unequal": _differences(_flat(by_python), _flat(by_words)),
            "started": python,
            "started_by_words": hydra,
            "differing": _differing(settings, read_container(by_python, **VERSIONS)),
        }
    return outcome


def _start(recipe: Any) -> str:
    """Bridge's start-up of a run on as many ranks as the layout needs: empty, or the error and where it was raised."""
    config = importlib.import_module("megatron.bridge.training.config")
    model = recipe.model
    ranks = model.pipeline_model_parallel_size * max(
        model.tensor_model_parallel_size * model.context_parallel_size,
        model.expert_model_parallel_size * (model.expert_tensor_parallel_size or model.tensor_model_parallel_size),
    )
    with _own_environment():
        os.environ["WORLD_SIZE"] = str(ranks)
        try:
            config.runtime_config_update(recipe)
        except Exception as error:
            functions = [frame.name for frame in traceback.extract_tb(error.__traceback__)]
            return f"{' > '.join(functions[-4:])}: {type(error).__name__}: {error}"
    return ""


@contextlib.contextmanager
def _own_environment() -> Iterator[None]:
    before = dict(os.environ)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _imported(recipe: Any) -> tuple[Policy, list[str]]:
    """The recipe's own policy, and the variables that it left to the launcher."""
    settings = read_container(recipe, **VERSIONS)
    env = {name: str(value) for name, value in recipe.env_vars.items()}
    given = topology_of(settings, nvlink_domain_gpus=72, gpus_per_node=4)
    given = {name: value for name, value in given.items() if not set(HYBRID_EP_TOPOLOGY) & set(env)}
    facts = {"precision": "bf16", "seq_length": 1, "global_batch_size": 1, **contract_of(Resolved(recipe))}
    applies_to = {"model": "x", "cluster": "x", "num_gpus": 1, "stack": VERSIONS, **facts}
    assert not set(left_out(settings, env)) & set(environment_of(settings))
    return policy_from(settings, {**env, **given}, applies_to, "recipe"), sorted(given)


def _everything(settings: Settings) -> tuple[Settings, dict[str, str]]:
    turned = {
        name: not settings[name]
        for name, row in SETTINGS.items()
        if row.kind == "bool" and name not in EVERYTHING and not row.only_with
    }
    values: Settings = {**EVERYTHING, **turned, "sequence_parallel": not settings["sequence_parallel"]}
    for name in (
        "micro_batch_size",
        "tensor_parallel",
        "context_parallel",
        "expert_parallel",
        "expert_tensor_parallel",
    ):
        values[name] = 1 if settings[name] == values[name] else values[name]
    layers = "|".join(["Et", "t", "t", "tL"])
    other = effective(resolve({**values, "pipeline_layout": layers}))
    return other, _variables(other)


def _variables(settings: Settings) -> dict[str, str]:
    return {**topology_of(settings, nvlink_domain_gpus=8, gpus_per_node=8), **environment_of(settings)}


def _differing(wanted: Settings, found: Settings) -> list[str]:
    """Settings of which something is said and something else found; lists have no order."""
    names = [
        name for name, row in SETTINGS.items() if name in found and not (row.home == "env" and wanted[name] is None)
    ]
    return [name for name in names if _loose(wanted[name]) != _loose(found[name])]


def _loose(value: Any) -> Any:
    return sorted(value) if isinstance(value, list) else value


def _quoting() -> int:
    """How many values Hydra's own parser reads as they were meant; every one, or an error."""
    parser = importlib.import_module("hydra.core.override_parser.overrides_parser").OverridesParser.create()
    chance = random.Random(0)
    letters = "ab1 '\"\\,:=|()*[]{}$~%+-_.@/<>äEtmL"
    texts = ["".join(chance.choice(letters) for _ in range(chance.randint(0, 12))) for _ in range(2000)]
    values: list[Any] = [
        *(text for text in texts if "${" not in text),
        "null",
        "true",
        "1e3",
        "0x1",
        "inf",
        None,
        True,
        7,
        1.5,
        [],
    ]
    values += [[text, "x"] for text in texts[:200] if "${" not in text]
    for value in values:
        word = override_word(Change("a.b", value), added=False)
        read = parser.parse_override(word).value()
        if type(read) is not type(value) and not isinstance(read, str):
            raise ValueError(f"{value!r} became {read!r}")
        if _unquoted(read) != value:
            raise ValueError(f"{value!r} became {read!r}")
    return len(values)


def _unquoted(value: Any) -> Any:
    if isinstance(value, list):
        return [_unquoted(item) for item in value]
    return getattr(value, "text", value)


def _attempt(work: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return work(*arguments)
    except Exception as error:
        lines = traceback.format_exception(error)
        return {"error": f"{type(error).__name__}: {error}", "where": "".join(lines[-3:])}


def _functions() -> Iterator[tuple[str, Callable[[], Any]]]:
    for package in PACKAGES:
        root = importlib.import_module(f"megatron.bridge.{package}")
        for info in pkgutil.walk_packages(root.__path__, root.__name__ + "."):
            module = importlib.import_module(info.name)
            for name, value in list(vars(module).items()):
                own = inspect.isfunction(value) and value.__module__ == info.name
                if own and name.endswith("_config") and not name.startswith("_") and _needs_nothing(value):
                    yield f"{info.name}:{name}".removeprefix("megatron.bridge."), value


def _needs_nothing(function: Callable[..., Any]) -> bool:
    loose = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    parameters = inspect.signature(function).parameters.values()
    return all(row.default is not row.empty or row.kind in loose for row in parameters)


def _workload(name: str) -> tuple[str, str]:
    function = name.partition(":")[2]
    family = next((family for family in FAMILIES if function.startswith(f"{family}_pretrain")), "")
    gpu = next((gpu for gpu in GPUS if f"gpu_{gpu}_" in function), "")
    return (family, gpu) if family and gpu and name.startswith("perf_recipes") else ("", "")


def _flat(value: Any, path: str = "", seen: tuple[int, ...] = ()) -> dict[str, str]:
    """Everything that an object holds, all the way down, by dotted path."""
    if isinstance(value, type | types.FunctionType | types.BuiltinFunctionType | types.MethodType):
        return {path: f"{value.__module__}.{value.__qualname__}"}
    if isinstance(value, functools.partial):
        return {path: type(value).__name__, **_flat([value.func, value.args, value.keywords], f"{path}()", seen)}
    if id(value) in seen or isinstance(value, enum.Enum | int | float | str | None):
        return {path: "again" if id(value) in seen else f"{type(value).__name__} {value!r}"}
    parts: dict[Any, Any] | None = None
    if isinstance(value, dict):
        parts = value
    elif isinstance(value, list | tuple):
        parts = dict(enumerate(value))
    elif dataclasses.is_dataclass(value) or hasattr(value, "__dict__"):
        parts = vars(value)
    if parts is None:
        return {path: repr(value)}
    flat = {path: f"{type(value).__name__} of {len(parts)}"}
    for name, part in parts.items():
        flat |= _flat(part, f"{path}.{name}", (*seen, id(value)))
    return flat


def _differences(one: dict[str, str], two: dict[str, str]) -> list[str]:
    return sorted(path for path in one.keys() | two.keys() if one.get(path) != two.get(path))


if __name__ == "__main__":
    answer_with(main)
