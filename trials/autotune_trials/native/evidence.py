"""What was really built, read back from the objects: the proof that a trial ran what was asked for."""

import importlib.metadata
import os
import platform
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer
from megatron.core.transformer.moe.moe_layer import BaseMoELayer
from megatron.core.utils import unwrap_model

from autotune_policies.layout import layout_stages
from autotune_policies.megatron_core import read_back
from autotune_policies.settings import FLEX_DISPATCHERS, SETTINGS, Settings, Value
from autotune_trials.native.model import Built
from autotune_trials.native.surroundings import surroundings

_DISTRIBUTIONS = ("megatron-core", "torch", "transformer-engine", "deep-ep", "triton", "numpy")


def resolved(built: Built, schedule: Callable[..., Any], asked: Settings) -> dict[str, Any]:
    """The ``resolved`` document of the ``built`` event; a collective call, with the same answer on every rank.

    Args:
        built: What this rank built.
        schedule: The forward-backward function that will run.
        asked: The trial's settings.
    """
    stages = _stages(built)
    layers = list(_moe_layers(built))
    classes = sorted({_dispatcher_class(layer) for layer in layers})
    return {
        "settings": _settings(built, layers, stages, asked),
        "dispatcher_class": ", ".join(classes) or None,
        "schedule": schedule.__name__,
        "stages": stages,
        "precision": _precision(built),
        "megatron_core": built.release,
        "torch": torch.__version__,
        "versions": {"python": platform.python_version(), **_versions()},
        "world_size": dist.get_world_size(),
        "num_parameters": _num_parameters(built),
    }


def config_of(chunk: Any) -> Any:
    """The configuration that the decoder of a model chunk holds; a vision model has its decoder inside."""
    return _language_model(unwrap_model(chunk)).config


def _language_model(model: Any) -> Any:
    return getattr(model, "language_model", None) or model


def _settings(built: Built, layers: list[Any], stages: list[list[str]], asked: Settings) -> Settings:
    """Canonical settings: the configuration that the model holds, corrected by the objects themselves."""
    chunk = built.chunks[0]
    settings = read_back(config_of(chunk), built.release)
    settings |= surroundings(asked, os.environ)
    settings |= {
        "micro_batch_size": built.micro_batch_size,
        "tensor_parallel": parallel_state.get_tensor_model_parallel_world_size(),
        "pipeline_parallel": parallel_state.get_pipeline_model_parallel_world_size(),
        "virtual_pipeline": len(built.chunks),
        "context_parallel": parallel_state.get_context_parallel_world_size(),
        "expert_parallel": parallel_state.get_expert_model_parallel_world_size(),
        "expert_tensor_parallel": parallel_state.get_expert_tensor_parallel_world_size(),
        "pipeline_layout": _layout(settings["pipeline_layout"], stages),
        "distributed_optimizer": all(isinstance(part, DistributedOptimizer) for part in _optimizers(built)),
        "overlap_grad_reduce": chunk.ddp_config.overlap_grad_reduce,
        "overlap_param_gather": chunk.ddp_config.overlap_param_gather,
    }
    settings |= _recompute(built, settings)
    if layers:
        settings |= _dispatcher(layers)
        settings["grouped_gemm"] = all("Grouped" in type(layer.experts).__name__ for layer in layers)
        settings["shared_expert_overlap"] = all(layer.shared_expert_overlap for layer in layers)
    return {name: settings[name] for name in SETTINGS}


def _dispatcher(layers: list[Any]) -> Settings:
    """Dispatcher of the MoE layers by their class, and the SMs its backend borrows; they are all built alike."""
    dispatcher = layers[0].token_dispatcher
    name = type(dispatcher).__name__
    if "Flex" not in name:
        return {"dispatcher": "allgather" if "AllGather" in name else "alltoall", "num_sms": None}
    manager = type(dispatcher._comm_manager).__name__.lower()
    backend = next((item for item in FLEX_DISPATCHERS if item in manager), manager)
    config = layers[0].config
    # 0.19 has one field for all backends, earlier releases one for each.
    sms = getattr(config, "moe_flex_dispatcher_num_sms", None) or getattr(config, f"moe_{backend}_num_sms", None)
    if backend == "deepep":
        from deep_ep import Buffer

        sms = Buffer.num_sms
    return {"dispatcher": backend, "num_sms": sms}


def _dispatcher_class(layer: Any) -> str:
    dispatcher = layer.token_dispatcher
    manager = getattr(dispatcher, "_comm_manager", None)
    name = type(dispatcher).__name__
    return f"{name}({type(manager).__name__.lstrip('_')})" if manager is not None else name


def _recompute(built: Built, settings: Settings) -> Settings:
    """Selective recomputation as the layers will do it; full recomputation is the block's, from its configuration."""
    if settings["recompute_granularity"] != "selective":
        return {"recompute_modules": []}  # whatever names the configuration holds, nobody looks at them
    found: set[str] = set()
    for layer in _layers(built):
        attention, mlp = layer.self_attention, layer.mlp
        marks = {
            "core_attn": getattr(attention, "checkpoint_core_attention", False),
            "mla_up_proj": getattr(attention, "recompute_up_proj", False),
            "layernorm": layer.recompute_input_layernorm or layer.recompute_pre_mlp_layernorm,
            "mlp": layer.recompute_mlp,
            "moe": getattr(mlp, "moe_layer_recompute", False),
            "shared_experts": getattr(mlp, "shared_experts_recompute", False),
            "moe_act": getattr(getattr(mlp, "experts", None), "activation_recompute", False),
        }
        found |= {name for name, on in marks.items() if on}
    asked = settings["recompute_modules"]
    assert isinstance(asked, list)
    # Modules that only other stages or layer kinds have leave no mark here; the configuration speaks for them.
    present = [name for name in asked if name in found or not _can_show(built, name)]
    return {"recompute_modules": [*present, *sorted(found.difference(asked))]}


def _can_show(built: Built, module: str) -> bool:
    """Whether this rank has a layer that would show that the module is recomputed."""
    layers = list(_layers(built))
    moe = any(isinstance(layer.mlp, BaseMoELayer) for layer in layers)
    dense = any(not isinstance(layer.mlp, BaseMoELayer) for layer in layers)
    shown = {"core_attn": bool(layers), "layernorm": bool(layers), "mla_up_proj": bool(layers), "mlp": dense}
    return shown.get(module, moe and module != "gdn_norm_out")


def _stages(built: Built) -> list[list[str]]:
    """The built stages in the layout grammar: one list per pipeline rank, one text per model chunk."""
    own = [_stage_text(_language_model(chunk)) for chunk in unwrap_model(built.chunks)]
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, (parallel_state.get_pipeline_model_parallel_rank(), own))
    by_rank = dict(everyone)
    return [by_rank[rank] for rank in sorted(by_rank)]


def _stage_text(chunk: Any) -> str:
    mtp = "m" * len(chunk.mtp.layers) if getattr(chunk, "mtp", None) is not None else ""
    return "E" * chunk.pre_process + "t" * len(chunk.decoder.layers) + mtp + "L" * chunk.post_process


def _layout(asked: Value, stages: list[list[str]]) -> Value:
    """The layout text that was asked for if that is what was built, else the text of what was built."""
    if not isinstance(asked, str):
        return asked
    built = tuple(stages[rank][chunk] for chunk in range(len(stages[0])) for rank in range(len(stages)))
    return asked if layout_stages(asked) == built else "|".join(built)


def _num_parameters(built: Built) -> int:
    """Parameters of the whole model, each counted once however often it is held."""
    first_tensor = parallel_state.get_tensor_model_parallel_rank() == 0
    first_data = parallel_state.get_data_parallel_rank(with_context_parallel=True) == 0
    first_expert_data = parallel_state.get_expert_data_parallel_rank() == 0
    count = 0
    for chunk in built.chunks:
        for parameter in chunk.parameters():
            dense = getattr(parameter, "allreduce", True)
            copy = getattr(parameter, "shared_embedding", False) and not parallel_state.is_pipeline_first_stage()
            split = getattr(parameter, "tensor_model_parallel", False)
            if not copy and (first_expert_data if not dense else first_data and (split or first_tensor)):
                count += parameter.numel()
    device = next(built.chunks[0].parameters()).device
    total = torch.tensor([count], dtype=torch.int64, device=device)
    dist.all_reduce(total)
    return int(total)


def _precision(built: Built) -> str:
    """Low-precision recipe in force, else the type of most parameters."""
    config = built.config
    if config.fp8:
        return f"fp8_{config.fp8_recipe}"
    if getattr(config, "fp4", None):
        return f"fp4_{config.fp4_recipe}"
    types = [parameter.dtype for chunk in built.chunks for parameter in chunk.parameters()]
    return {torch.bfloat16: "bf16", torch.float32: "fp32"}.get(max(set(types), key=types.count), "mixed")


def _optimizers(built: Built) -> list[Any]:
    return list(getattr(built.optimizer, "chained_optimizers", [built.optimizer]))


def _layers(built: Built) -> Iterator[Any]:
    for chunk in unwrap_model(built.chunks):
        for layer in _language_model(chunk).decoder.layers:
            # A hybrid model also has layers of a single block.
            if hasattr(layer, "self_attention") and hasattr(layer, "mlp"):
                yield layer


def _moe_layers(built: Built) -> Iterator[Any]:
    for chunk in built.chunks:
        for module in chunk.modules():
            if isinstance(module, BaseMoELayer):
                yield module


def _versions() -> dict[str, str]:
    found = {}
    for name in _DISTRIBUTIONS:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
