"""Every module of Megatron-Bridge where it is not installed: a recipe, a forward step, and how overrides are read."""

from types import SimpleNamespace
from typing import Any

import containers
import yaml

_SETTINGS: dict[str, Any] = {
    "expert_parallel": 16, "dispatcher": "hybridep", "num_sms": 32, "permute_fusion": True, "grouped_gemm": True,
    "cuda_graph_impl": "transformer_engine", "cuda_graph_modules": ["moe_router", "moe_preprocess"],
}  # fmt: skip


def qwen3_30b_a3b_pretrain_16gpu_h100_bf16_config() -> Any:
    """A container with the sections and fields of the real recipe's, and another choice of settings."""
    container = containers.container_of("0.19", _SETTINGS)
    container.train.global_batch_size = 1024
    container.env_vars = {**containers.TOPOLOGY, "NUM_OF_TOKENS_PER_CHUNK_COMBINE_API": 128}
    container.logger = SimpleNamespace(save_config_filepath=None)
    return container


qwen3_30b_a3b_pretrain_config = qwen3_30b_a3b_pretrain_16gpu_h100_bf16_config


def forward_step() -> None:
    """Never called: nothing is trained."""


def process_config_with_overrides(config: Any, cli_overrides: list[str]) -> Any:
    """The container with ``KEY=VALUE`` words in force: ``++`` adds, ``~`` deletes, a name that is not there fails."""
    for word in cli_overrides:
        path, _, text = word.removeprefix("++").removeprefix("~").partition("=")
        *sections, name = path.split(".")
        holder = config
        for section in sections:
            holder = getattr(holder, section)
        known = holder if isinstance(holder, dict) else vars(holder)
        if not word.startswith("++") and name not in known:
            raise KeyError(f"no such field: {path}")
        if word.startswith("~"):
            del known[name]
        else:
            known[name] = yaml.safe_load(text)
    return config
