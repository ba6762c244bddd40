"""The canonical settings: one row per knob, with its type, legal values and where it lives in a recipe.

These names are what search spaces, trial specifications, measurement tables and policies all use.
They are the product's own because Megatron-Core renames its fields between releases; how a setting is
written for one release is in :mod:`autotune_policies.megatron_core`.

Standard library only: this module runs inside foreign training containers.
"""

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from autotune_policies.errors import PolicyError

Value = None | bool | int | float | str | list[str]
Settings = dict[str, Value]
Kind = Literal["int", "bool", "str", "list"]
Home = Literal["transformer", "ddp", "training"]

FLEX_DISPATCHERS = ("deepep", "hybridep", "ncclep")
"""Dispatchers that Megatron-Core builds as ``moe_token_dispatcher_type="flex"``, each from its own library."""

DISPATCHERS = ("alltoall", "allgather", *FLEX_DISPATCHERS)


@dataclass(frozen=True)
class Setting:
    """One knob of a training run.

    Attributes:
        name: Canonical name, also the column name in measurement tables.
        kind: Python type of a non-null value; ``list`` is a list of strings.
        default: Value when nobody asked for another one: Megatron-Core's behaviour without the knob.
        doc: One line for people.
        home: Which part of a training configuration holds it: the transformer (model) configuration,
            the distributed-data-parallel one, or the training loop.
        choices: Legal values (of the elements for a list); empty when any value of the kind may be legal.
        minimum: Smallest legal integer.
        optional: Whether null is legal, meaning "not used".
    """

    name: str
    kind: Kind
    default: Value
    doc: str
    home: Home = "transformer"
    choices: tuple[str, ...] = ()
    minimum: int = 1
    optional: bool = False


_ROWS = (
    Setting("micro_batch_size", "int", 1, "sequences per forward pass on one data-parallel rank", "training"),
    Setting("tensor_parallel", "int", 1, "ranks that split one layer's matrices"),
    Setting("sequence_parallel", "bool", False, "split activations outside the matrices over tensor-parallel ranks"),
    Setting("pipeline_parallel", "int", 1, "ranks that split the layers into stages"),
    Setting("virtual_pipeline", "int", 1, "model chunks per pipeline rank (interleaved schedule above 1)"),
    Setting(
        "pipeline_layout",
        "str",
        None,
        "stages in Megatron's layout grammar (E t m L |); null = even split",
        optional=True,
    ),
    Setting("context_parallel", "int", 1, "ranks that split one sequence"),
    Setting("expert_parallel", "int", 1, "ranks that share out the experts"),
    Setting("expert_tensor_parallel", "int", 1, "ranks that split one expert's matrices"),
    Setting("dispatcher", "str", "alltoall", "how tokens reach their experts", choices=DISPATCHERS),
    Setting("num_sms", "int", None, "streaming multiprocessors lent to DeepEP, HybridEP or NCCL EP", optional=True),
    Setting("permute_fusion", "bool", False, "fused token permutation kernels (Transformer Engine)"),
    Setting("router_fusion", "bool", False, "fused router kernels (Transformer Engine)"),
    Setting("grouped_gemm", "bool", False, "all local experts in one grouped matrix product"),
    Setting("shared_expert_overlap", "bool", False, "run the shared expert beside the dispatcher"),
    Setting("ep_overlap", "bool", False, "hide expert-parallel communication behind another micro-batch's compute"),
    Setting("delay_wgrad", "bool", False, "with ep_overlap: weight gradients later, to hide more communication"),
    Setting(
        "cuda_graph_impl",
        "str",
        "none",
        "who captures CUDA graphs",
        choices=("none", "local", "transformer_engine", "full_iteration"),
    ),
    Setting(
        "cuda_graph_modules",
        "list",
        [],
        "modules captured in CUDA graphs; empty with a per-layer impl = whole layer",
        choices=("attn", "mlp", "moe", "moe_router", "moe_preprocess", "mamba"),
    ),
    Setting(
        "recompute_granularity",
        "str",
        None,
        "what is recomputed in the backward pass",
        choices=("selective", "full"),
        optional=True,
    ),
    Setting(
        "recompute_method",
        "str",
        None,
        "with full recompute: how layers are grouped",
        choices=("uniform", "block"),
        optional=True,
    ),
    Setting("recompute_num_layers", "int", None, "with full recompute: layers per group", optional=True),
    Setting(
        "recompute_modules",
        "list",
        [],
        "with selective recompute: which modules",
        choices=("core_attn", "moe_act", "layernorm", "mla_up_proj", "mlp", "moe", "shared_experts", "gdn_norm_out"),
    ),
    Setting(
        "offload_modules",
        "list",
        [],
        "modules whose activations wait in host memory",
        choices=(
            "attn_norm",
            "qkv_linear",
            "core_attn",
            "attn_proj",
            "mlp_norm",
            "expert_fc1",
            "moe_act",
            "fused_group_mlp",
        ),
    ),
    Setting("distributed_optimizer", "bool", True, "shard optimizer state over data-parallel ranks", "ddp"),
    Setting("overlap_grad_reduce", "bool", False, "reduce gradients while the backward pass still runs", "ddp"),
    Setting("overlap_param_gather", "bool", False, "gather parameters while the forward pass already runs", "ddp"),
)

SETTINGS: Mapping[str, Setting] = {row.name: row for row in _ROWS}
"""All canonical settings by name, in the order in which people read them."""


def defaults() -> Settings:
    """Every setting at its default value."""
    return {name: _copy(row.default) for name, row in SETTINGS.items()}


def resolve(given: Mapping[str, object]) -> Settings:
    """All settings with the given ones put in and checked: nothing is left implied.

    Raises:
        PolicyError: an unknown name, or a value that the setting cannot have.
    """
    settings = defaults()
    for name, value in given.items():
        settings[name] = check_value(name, value)
    return settings


def check_value(name: str, value: object) -> Value:
    """The value if the setting may have it.

    Raises:
        PolicyError: an unknown name (the closest names are in the hint), a wrong type or an illegal value.
    """
    row = SETTINGS.get(name)
    if row is None:
        raise PolicyError(f"unknown setting {name!r}", hint=closest(name, SETTINGS))
    if value is None:
        if row.optional:
            return None
        raise PolicyError(f"{name}=null, but it needs a value", hint=_legal(row))
    if row.kind == "list":
        if not isinstance(value, list | tuple) or not all(isinstance(item, str) for item in value):
            raise PolicyError(f"{name}={value!r} is not a list of names", hint=_legal(row))
        for item in value:
            if row.choices and item not in row.choices:
                raise PolicyError(f"{name} contains {item!r}", hint=closest(item, row.choices))
        return [str(item) for item in value]
    if row.kind == "bool":
        if not isinstance(value, bool):
            raise PolicyError(f"{name}={value!r} is not true or false")
        return value
    if row.kind == "int":
        if isinstance(value, bool) or not isinstance(value, int):
            raise PolicyError(f"{name}={value!r} is not a whole number")
        if value < row.minimum:
            raise PolicyError(f"{name} must be at least {row.minimum}, but got {value}")
        return value
    if not isinstance(value, str):
        raise PolicyError(f"{name}={value!r} is not a text", hint=_legal(row))
    if row.choices and value not in row.choices:
        raise PolicyError(f"{name}={value!r} is not legal", hint=closest(value, row.choices))
    return value


def model_parallel_ranks(settings: Mapping[str, object]) -> int:
    """Ranks of one model replica: tensor x pipeline x context parallel."""
    product = 1
    for name in ("tensor_parallel", "pipeline_parallel", "context_parallel"):
        value = settings.get(name, 1)
        assert isinstance(value, int)
        product *= value
    return product


def closest(name: str, legal: Iterable[str]) -> str:
    """A hint naming the legal values closest to a mistyped one, or all of them when none is close."""
    names = list(legal)
    if not names:
        return "there are none yet"
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    return f"did you mean {' or '.join(near)}?" if near else f"legal: {', '.join(names)}"


def _legal(row: Setting) -> str | None:
    return f"legal: {', '.join(row.choices)}" if row.choices else None


def _copy(value: Value) -> Value:
    return list(value) if isinstance(value, list) else value
