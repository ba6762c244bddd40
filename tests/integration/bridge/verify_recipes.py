"""Program: checks policies against real recipes of the installed megatron-bridge, before and after Bridge's start-up.

It runs in a process of its own, because stand-ins for kernel libraries must not be seen by any other test.
Usage: ``python verify_recipes.py FOLDER``; model configurations and saved containers are written to the folder.
"""

import importlib
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from autotune_policies.bridge_fields import effective
from autotune_policies.callback import PolicyGuard
from autotune_policies.errors import PolicyMismatch
from autotune_policies.megatron_bridge import apply_container, read_container
from autotune_policies.policy import Policy, load_policy
from autotune_policies.resolved import read_resolved
from autotune_policies.settings import resolve
from autotune_policies.surroundings import HYBRID_EP_VARIABLES, environment_of
from autotune_policies.verify import inspect_container, verify_container
from tests.support.answers import answer_with
from tests.support.bridge_stubs import install_stubs, use_local_models

VERSIONS = {"megatron_core": "0.19.2", "megatron_bridge": "0.6.2"}
EXAMPLE = Path(__file__).parents[2] / "unit" / "policies" / "example.yaml"
RECIPES = {
    "deepseek.h100.deepseek_v3": "deepseek_v3_pretrain_1024gpu_h100_bf16_config",
    "qwen.h100.qwen3_moe": "qwen3_30b_a3b_pretrain_16gpu_h100_bf16_config",
    "qwen.gb200.qwen3_moe": "qwen3_235b_a22b_pretrain_256gpu_gb200_bf16_config",
}
NO_GPU_NEEDED: dict[str, Any] = {
    "dispatcher": "alltoall", "num_sms": None, "recompute_granularity": "selective", "recompute_modules": ["layernorm"],
    "recompute_method": None, "recompute_num_layers": None, "cuda_graph_impl": "none", "cuda_graph_modules": [],
    "rank_capacity_factor": None, "paged_stash": False, "offload_modules": [], "ep_overlap": False,
    "delay_wgrad": False,
    "shared_expert_overlap": False, "micro_batch_size": 1,
}  # fmt: skip


def main(folder: Path) -> dict[str, Any]:
    """What was found, recipe by recipe."""
    install_stubs()
    importlib.import_module("transformer_engine.pytorch")
    use_local_models(folder)
    report = {}
    for module, name in RECIPES.items():
        recipe = getattr(importlib.import_module(f"megatron.bridge.perf_recipes.{module}"), name)()
        report[name] = _check(recipe, folder / f"{name}.yaml")
    return report


def _check(recipe: Any, path: Path) -> dict[str, Any]:
    own = policy_of(
        {**read_container(recipe, **VERSIONS)}, {name: str(value) for name, value in recipe.env_vars.items()}
    )
    as_built = [row.field for row in verify_container(own, recipe, **VERSIONS)]
    settings = effective(resolve({**own.settings, **NO_GPU_NEEDED}))
    kept = {name: value for name, value in own.env.items() if name not in HYBRID_EP_VARIABLES}
    policy = policy_of(settings, {**kept, **environment_of(settings)})
    before = len(verify_container(policy, recipe, **VERSIONS))
    apply_container(recipe, policy.settings, policy.env, **VERSIONS)
    applied = [row.field for row in verify_container(policy, recipe, **VERSIONS)]
    model = recipe.model
    os.environ |= policy.env
    os.environ["WORLD_SIZE"] = str(
        model.pipeline_model_parallel_size * max(model.tensor_model_parallel_size, model.expert_model_parallel_size)
    )
    importlib.import_module("megatron.bridge.training.config").runtime_config_update(recipe)
    started = [row.field for row in verify_container(policy, recipe, **VERSIONS)]
    recipe.to_yaml(str(path))
    saved = inspect_container(policy, read_resolved(path), **VERSIONS)
    unread = [name for name in saved.unchecked if name.startswith("model.")]
    guard = _train(recipe, policy)
    model.recompute_modules = ["core_attn"]
    model.moe_token_dispatcher_type, model.moe_flex_dispatcher_backend = "allgather", None
    return {
        "as_built": as_built, "before": before, "applied": applied, "started": started,
        "saved": [row.field for row in saved.differences], "unread": unread,
        "checked": len(saved.checked), "guard": guard, "refusal": _train(recipe, policy),
    }  # fmt: skip


def policy_of(settings: dict[str, Any], env: dict[str, str]) -> Policy:
    """A policy with these settings for any run of the installed stack."""
    anything = {"min": 1}
    applies_to = {
        "model": "any", "cluster": "any", "num_gpus": anything, "precision": "bf16", "seq_length": anything,
        "global_batch_size": anything, "stack": dict(VERSIONS),
    }  # fmt: skip
    return load_policy(EXAMPLE)._replace(
        applies_to=applies_to, settings=resolve(settings), env=env, launch={}, name="policy"
    )


def _train(recipe: Any, policy: Policy) -> str:
    """What Bridge's own callback manager hears from the guard when training starts; empty = go on."""
    callbacks = importlib.import_module("megatron.bridge.training.callbacks")
    manager = callbacks.normalize_callbacks([PolicyGuard(policy)])
    assert [event for event in callbacks.VALID_EVENTS if manager.has_callbacks(event)] == ["on_train_start"]
    try:
        manager.fire("on_train_start", callbacks.CallbackContext(state=SimpleNamespace(cfg=recipe), model=[]))
    except PolicyMismatch as error:
        return error.message
    return ""


if __name__ == "__main__":
    answer_with(main)
