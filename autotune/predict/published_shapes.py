"""Shapes of models in published tables: those that no search space has, and what sidecars write under other names."""

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

from autotune import resources
from autotune.errors import RequestError
from autotune.space.files import load_model
from autotune_trials.spec import ModelShape, SpecError, model_from

_MLA = {
    "attention": "mla", "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_head_dim": 128, "qk_pos_emb_head_dim": 64,
    "v_head_dim": 128, "qk_layernorm": True, "num_attention_heads": 128,
}  # fmt: skip

PUBLISHED: Mapping[str, Mapping[str, Any]] = {
    # DeepSeek-V2 and -V3 cut short, as SimuMax's launch scripts have them: one dense layer.
    "deepseekv2": {
        **_MLA, "hidden_size": 5120, "ffn_hidden_size": 12288, "vocab_size": 102400, "num_experts": 160,
        "router_topk": 6, "moe_ffn_hidden_size": 1536, "shared_expert_size": 3072, "num_dense_layers": 1,
    },
    "deepseekv3": {
        **_MLA, "hidden_size": 7168, "ffn_hidden_size": 18432, "vocab_size": 129280, "num_experts": 256,
        "router_topk": 8, "moe_ffn_hidden_size": 2048, "shared_expert_size": 2048, "num_dense_layers": 1,
    },
    # Layers of Megatron-LM's MoE-layer benchmark (tests/functional_tests/test_cases/common/moe_perf/test_cases.py).
    "deepseek": {
        "num_layers": 1, "hidden_size": 7168, "num_attention_heads": 8, "vocab_size": 1024, "ffn_hidden_size": 2048,
        "num_experts": 32, "router_topk": 8, "moe_ffn_hidden_size": 2048, "shared_expert_size": 2048,
        "router_num_groups": 8, "router_group_topk": 4,
    },
    "mixtral": {
        "num_layers": 1, "hidden_size": 4096, "num_attention_heads": 8, "vocab_size": 1024, "ffn_hidden_size": 14336,
        "num_experts": 8, "router_topk": 2, "moe_ffn_hidden_size": 14336,
    },
}  # fmt: skip
"""Fields of model shapes by the names that public tables give the models."""

_FIELD_OF: Mapping[str, str] = {
    "layers": "num_layers", "heads": "num_attention_heads", "kv_heads": "num_query_groups", "experts": "num_experts",
    "topk": "router_topk", "qk_rope_head_dim": "qk_pos_emb_head_dim", "dense_layers": "num_dense_layers",
    "head_dim": "kv_channels",
}  # fmt: skip
"""Names that sidecars use for fields of a shape."""


def shape_of(name: str, sidecar: Mapping[str, Mapping[str, Any]], num_layers: int | None = None) -> ModelShape:
    """The architecture of a table's model: the sidecar's, completed by what is published, or a search space's.

    Args:
        name: The table's name of the model.
        sidecar: Shapes of the sidecar by model name.
        num_layers: The row's own layer count, of a model cut short.

    Raises:
        RequestError: nobody knows the shape, or a size is missing.
    """
    if name in sidecar or name in PUBLISHED:
        fields = {**PUBLISHED.get(name, {}), **_fields(sidecar.get(name, {}))}
        if num_layers is not None:
            fields["num_layers"] = num_layers
        try:
            return model_from({"name": name, **fields})
        except SpecError as error:
            raise RequestError(f"model {name}: {error}") from error
    shape = _shipped(name)
    if shape is None:
        raise RequestError(f"model {name}: no shape of it is known")
    return shape if num_layers is None else replace(shape, num_layers=num_layers)


@lru_cache(maxsize=64)
def _shipped(name: str) -> ModelShape | None:
    return load_model(name).model_shape() if name in resources.names("models") else None


def _fields(raw: Mapping[str, Any]) -> dict[str, Any]:
    """A sidecar's sizes as fields of a shape; what it calls unknown is left out."""
    given: dict[str, Any] = {}
    for name, value in raw.items():
        if isinstance(value, str) and not re.fullmatch(r"\w+", value):
            continue
        given[_FIELD_OF.get(name, name)] = value
    shared = given.pop("shared_experts", None)
    if isinstance(shared, int) and "moe_ffn_hidden_size" in given:
        given["shared_expert_size"] = shared * given["moe_ffn_hidden_size"]
    return given
