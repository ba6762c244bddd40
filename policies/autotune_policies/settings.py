"""The canonical settings: one row per knob, with its type, legal values and where it lives in a recipe.

These names are what search spaces, trial specifications, measurement tables and policies all use.
They are the product's own because Megatron-Core renames its fields between releases; how a setting is
written for one release is in :mod:`autotune_policies.megatron_core`.

Standard library only: this module runs inside foreign training containers.
"""

import math
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Literal, NamedTuple

from autotune_policies.backends import DISPATCHERS as DISPATCHERS
from autotune_policies.backends import FLEX_DISPATCHERS as FLEX_DISPATCHERS
from autotune_policies.errors import PolicyError

Value = None | bool | int | float | str | list[str]
Settings = dict[str, Value]
Kind = Literal["int", "float", "bool", "str", "list"]
Home = Literal["transformer", "ddp", "training", "env", "launch"]


class Setting(NamedTuple):
    """One knob of a training run.

    Attributes:
        name: Canonical name, also the column name in measurement tables.
        kind: Python type of a non-null value; ``list`` is a list of strings.
        default: Value when nobody asked for another one: Megatron-Core's behaviour without the knob.
        doc: One line for people.
        home: Which part of a run holds it: the transformer (model) configuration, the distributed-data-parallel one,
            the training loop, the environment before the first torch import, or the launcher.
        choices: Legal values (of the elements for a list); empty when any value of the kind may be legal.
        minimum: Smallest legal integer; a number that is no integer must be above it.
        optional: Whether null is legal, meaning "not used".
        only_with: It has an effect only where these settings have one of these values, and keeps its default elsewhere.
    """

    name: str
    kind: Kind
    default: Value
    doc: str
    home: Home = "transformer"
    choices: tuple[str, ...] = ()
    minimum: int = 1
    optional: bool = False
    only_with: Mapping[str, tuple[Value, ...]] = MappingProxyType({})

    def effective(self, settings: Mapping[str, object]) -> bool:
        """Whether it has an effect beside these settings."""
        return all(settings.get(name) in values for name, values in self.only_with.items())


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
    Setting(
        "num_sms_preprocessing",
        "int",
        108,
        "streaming multiprocessors of HybridEP's preprocessing kernel",
        only_with={"dispatcher": ("hybridep",)},
    ),
    Setting(
        "permute_fusion_into_hybridep",
        "bool",
        False,
        "token permutation inside HybridEP's own kernels",
        only_with={"dispatcher": ("hybridep",)},
    ),
    Setting(
        "num_blocks_permute",
        "int",
        None,
        "thread blocks of HybridEP's fused permutation; null = the library's own number",
        optional=True,
        only_with={"permute_fusion_into_hybridep": (True,)},
    ),
    Setting(
        "num_blocks_unpermute",
        "int",
        None,
        "thread blocks of HybridEP's fused unpermutation; null = the library's own number",
        optional=True,
        only_with={"permute_fusion_into_hybridep": (True,)},
    ),
    Setting(
        "tokens_per_chunk",
        "int",
        None,
        "tokens that HybridEP dispatches, combines and preprocesses at a time; null = as the environment says",
        "env",
        optional=True,
        only_with={"dispatcher": ("hybridep",)},
    ),
    Setting(
        "rank_capacity_factor",
        "float",
        None,
        "tokens an expert rank has room for, over its balanced share; null = as many as come",
        minimum=0,
        optional=True,
        only_with={"dispatcher": ("hybridep", "ncclep")},
    ),
    Setting(
        "paged_stash",
        "bool",
        False,
        "with rank_capacity_factor: keep only the used pages of expert activations",
    ),
    Setting("permute_fusion", "bool", False, "fused token permutation kernels (Transformer Engine)"),
    Setting("router_fusion", "bool", False, "fused router kernels (Transformer Engine)"),
    Setting("grouped_gemm", "bool", False, "all local experts in one grouped matrix product"),
    Setting("op_fuser", "bool", False, "expert layers as one fused Transformer Engine operation"),
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
    Setting(
        "manual_gc_interval",
        "int",
        None,
        "steps between collections of Python garbage, on all ranks at once; null = whenever Python likes",
        "training",
        optional=True,
    ),
    Setting(
        "layernorm_sm_margin",
        "int",
        None,
        "streaming multiprocessors that normalisation leaves to communication; null = as the environment says",
        "env",
        minimum=0,
        optional=True,
    ),
    Setting(
        "cuda_device_max_connections",
        "int",
        None,
        "hardware queues: 1 keeps the launch order, more let kernels overlap; null = as the environment says",
        "env",
        optional=True,
    ),
    Setting(
        "cuda_allocator",
        "str",
        None,
        "how the CUDA allocator grows; null = as the environment says",
        "env",
        choices=("fixed_segments", "expandable_segments", "expandable_segments_graph_reuse"),
        optional=True,
    ),
    Setting(
        "gpus_per_numa_node",
        "int",
        None,
        "bind each rank to the cores and memory of its GPU's NUMA node, which has so many GPUs; null = not bound",
        "launch",
        optional=True,
    ),
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
    if row.kind == "float":
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise PolicyError(f"{name}={value!r} is not a number")
        if value <= row.minimum:
            raise PolicyError(f"{name} must be above {row.minimum}, but got {value}")
        return float(value)
    if not isinstance(value, str):
        raise PolicyError(f"{name}={value!r} is not a text", hint=_legal(row))
    if row.choices and value not in row.choices:
        raise PolicyError(f"{name}={value!r} is not legal", hint=closest(value, row.choices))
    return value


def model_parallel_ranks(settings: Mapping[str, object]) -> int:
    """Ranks of one model replica: tensor x pipeline x context parallel."""
    return _product(settings, "tensor_parallel", "pipeline_parallel", "context_parallel")


def expert_group(settings: Mapping[str, object]) -> int:
    """Ranks that exchange tokens with each other: expert x expert-tensor parallel."""
    return _product(settings, "expert_parallel", "expert_tensor_parallel")


def closest(name: str, legal: Iterable[str]) -> str:
    """A hint naming the legal values closest to a mistyped one, or all of them when none is close."""
    names = list(legal)
    if not names:
        return "there are none yet"
    import difflib  # only a mistake needs it

    near = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    return f"did you mean {' or '.join(near)}?" if near else f"legal: {', '.join(names)}"


def _product(settings: Mapping[str, object], *names: str) -> int:
    product = 1
    for name in names:
        value = settings.get(name, 1)
        assert isinstance(value, int)
        product *= value
    return product


def _legal(row: Setting) -> str | None:
    return f"legal: {', '.join(row.choices)}" if row.choices else None


def _copy(value: Value) -> Value:
    return list(value) if isinstance(value, list) else value
