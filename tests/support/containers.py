"""ConfigContainers without Megatron-Bridge: the same sections and fields, as plain objects."""

import random
from copy import deepcopy
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from hypothesis import strategies as st

from autotune_policies.bridge_fields import effective
from autotune_policies.megatron_core import render
from autotune_policies.release_fields import BACKEND_FIELDS
from autotune_policies.settings import FLEX_DISPATCHERS, SETTINGS, Setting, Settings, resolve

VERSIONS = {"megatron_core": "0.19.2", "megatron_bridge": "0.6.2"}
TOPOLOGY = {"NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN": "8", "NVLINK_DOMAIN_SIZE": "8", "USE_MNNVL": "0"}


@dataclass(kw_only=True)
class CommOverlapConfig:
    tp_comm_overlap: bool
    overlap_p2p_comm: bool | None = None
    batch_p2p_comm: bool | None = None
    overlap_grad_reduce: bool | None = None
    overlap_param_gather: bool | None = None
    overlap_param_gather_with_optimizer_step: bool | None = None
    align_param_gather: bool | None = None
    bucket_size: int | None = None
    defer_embedding_wgrad_compute: bool | None = None
    wgrad_deferral_limit: int | None = None
    data_parallel_size: int | None = None
    overlap_moe_expert_parallel_comm: bool | None = None
    delay_wgrad_compute: bool | None = None


@dataclass
class Container:
    model: Any
    ddp: Any
    train: Any
    optimizer: Any
    comm_overlap: CommOverlapConfig | None = None
    mixed_precision: Any = "bf16_mixed"
    env_vars: dict[str, Any] = field(default_factory=dict)
    rng: Any = field(default_factory=lambda: SimpleNamespace(te_rng_tracker=False))
    rerun_state_machine: Any = field(default_factory=lambda: SimpleNamespace(check_for_nan_in_loss=True))


def container_of(release: str = "0.19", settings: dict[str, Any] | None = None, **model: Any) -> Container:
    """What a recipe with these settings builds in the release's plain words, without a CommOverlapConfig.

    Args:
        release: Megatron-Core's.
        settings: Canonical names and values; None = all defaults.
        **model: Other values for fields of the model.
    """
    rendered = deepcopy(render(settings or {}, release))
    version = tuple(int(number) for number in release.split(".")[:2])
    backends = {name: default for _, name, since, default in BACKEND_FIELDS if version >= since}
    shape = {"num_layers": 48, "mtp_num_layers": None, "seq_length": 4096, "tp_comm_overlap": False}
    companions = {"use_te_rng_tracker": False, "inference_cuda_graph_scope": None}
    return Container(
        model=SimpleNamespace(**{**backends, **rendered.transformer, **shape, **companions, **model}),
        ddp=SimpleNamespace(**rendered.ddp, align_param_gather=False, bucket_size=None, check_for_nan_in_grad=True),
        train=SimpleNamespace(**rendered.training, global_batch_size=512),
        optimizer=SimpleNamespace(
            use_distributed_optimizer=rendered.ddp["use_distributed_optimizer"],
            overlap_param_gather=False,
            overlap_param_gather_with_optimizer_step=False,
        ),
    )


def state_of(container: Any) -> Any:
    """Everything that a container holds, to be compared before and after."""
    return deepcopy({name: _plain(value) for name, value in vars(container).items()})


def _plain(value: Any) -> Any:
    return dict(vars(value)) if hasattr(value, "__dict__") else value


def legal_settings() -> st.SearchStrategy[Settings]:
    """Settings that Megatron-Core 0.19 can express."""
    return _SEEDS.map(lambda seed: _legal_settings(random.Random(seed)))


def recipes() -> st.SearchStrategy[Container]:
    """Containers as recipes spell them: older names, aliases, unset values and leftovers included."""
    return _SEEDS.map(lambda seed: _recipe(random.Random(seed)))


# One drawn number for forty settings: hypothesis would spend seconds on drawing them one by one.
_SEEDS = st.integers(0, 2**32 - 1)


def _legal_settings(chance: random.Random) -> Settings:
    values: dict[str, Any] = {
        name: _value(row, chance)
        for name, row in SETTINGS.items()
        if row.home != "launch" and name not in ("pipeline_layout", "virtual_pipeline")
    }
    values["virtual_pipeline"] = chance.randint(1, 3) if values["pipeline_parallel"] > 1 else 1
    stages = values["pipeline_parallel"] * values["virtual_pipeline"]
    if stages > 1 and chance.random() < 0.5:
        values["pipeline_layout"] = "|".join(["Ett", *["t"] * (stages - 2), "tL"])
    if values["dispatcher"] not in FLEX_DISPATCHERS:
        values["num_sms"] = None
    if values["cuda_graph_impl"] == "local":
        values["cuda_graph_modules"] = ["moe_router", "moe_preprocess"]
    return effective(resolve(values))


def _value(row: Setting, chance: random.Random) -> Any:
    if row.optional and chance.random() < 0.3:
        return None
    if row.kind == "list":
        return chance.sample(row.choices, chance.randint(0, 3))
    if row.kind == "int":
        return chance.randint(max(row.minimum, 1), 64)
    return chance.choice({"bool": (True, False), "float": (1.0, 1.25, 2.0)}.get(row.kind, row.choices or ("",)))


def _recipe(chance: random.Random) -> Container:
    settings = _legal_settings(chance)
    container = container_of("0.19", settings)
    model = container.model

    def maybe() -> bool:
        return chance.random() < 0.5

    if maybe():
        model.moe_hybridep_num_sms, model.moe_flex_dispatcher_num_sms = model.moe_flex_dispatcher_num_sms, None
    if model.moe_token_dispatcher_type != "flex":
        model.moe_hybridep_num_sms = chance.choice([None, 16, 32])
        model.moe_flex_dispatcher_backend = chance.choice([None, "deepep", "hybridep"])
    if maybe():
        scope = ["full_iteration"] if model.cuda_graph_impl == "full_iteration" else model.cuda_graph_modules
        impl = "local" if model.cuda_graph_impl == "full_iteration" else model.cuda_graph_impl
        model.cuda_graph_scope, model.cuda_graph_modules, model.cuda_graph_impl = scope, "full", impl
    if model.recompute_granularity is None:
        model.recompute_modules = chance.choice([None, [], ["mlp"]])
    if maybe():
        model.microbatch_group_size_per_vp_stage = None
    if maybe():
        container.comm_overlap = CommOverlapConfig(
            tp_comm_overlap=maybe(),
            overlap_grad_reduce=chance.choice([None, True, False]),
            overlap_param_gather=chance.choice([None, True, False]),
            overlap_moe_expert_parallel_comm=chance.choice([None, True, False]),
            delay_wgrad_compute=chance.choice([None, True, False]),
        )
    variables = {"TORCH_NCCL_HIGH_PRIORITY": 1, "NVTE_FWD_LAYERNORM_SM_MARGIN": 20, "NVTE_BWD_LAYERNORM_SM_MARGIN": 20}
    if settings["dispatcher"] == "hybridep":
        variables |= {name: int(value) for name, value in TOPOLOGY.items()}
    container.env_vars = {name: value for name, value in variables.items() if maybe()}
    return container
