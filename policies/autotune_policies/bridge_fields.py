"""A Megatron-Bridge ConfigContainer in canonical words: which fields belong together, and what they amount to.

A container holds fields as a recipe spelled them; Megatron's classes settle older names, aliases and unset values only
when training starts. ``settings_of`` settles them the same way, without importing any of it.
"""

from collections.abc import Mapping
from typing import Any

from autotune_policies.errors import PolicyError
from autotune_policies.layout import layout_stages, layout_text
from autotune_policies.megatron_core import read_back, release_of, render
from autotune_policies.release_fields import BACKEND_FIELDS, SAME_VALUE, SAME_VALUE_SINCE, Field
from autotune_policies.resolved import ABSENT, OPAQUE, Resolved
from autotune_policies.settings import FLEX_DISPATCHERS, SETTINGS, Settings
from autotune_policies.surroundings import read_environment

PIPELINE = ("pipeline_parallel", "virtual_pipeline", "pipeline_layout")
DISPATCHER = (
    "dispatcher", "num_sms", "num_sms_preprocessing", "permute_fusion_into_hybridep", "num_blocks_permute",
    "num_blocks_unpermute", "rank_capacity_factor",
)  # fmt: skip
GRAPHS = ("cuda_graph_impl", "cuda_graph_modules")
RECOMPUTE = ("recompute_granularity", "recompute_method", "recompute_num_layers", "recompute_modules")
EXPERT_OVERLAP = ("ep_overlap", "delay_wgrad")
DATA_OVERLAP = ("distributed_optimizer", "overlap_grad_reduce", "overlap_param_gather")

_TOGETHER = (PIPELINE, DISPATCHER, GRAPHS, RECOMPUTE, EXPERT_OVERLAP, DATA_OVERLAP)
GROUPS: tuple[tuple[str, ...], ...] = (
    *_TOGETHER,
    *(
        (name,)
        for name, row in SETTINGS.items()
        if row.home not in ("env", "launch") and not any(name in group for group in _TOGETHER)
    ),
)
"""Settings that make sense only together; what differs in one of them is written for all of them."""

_OTHER_FIELDS: Mapping[str, str] = {
    "virtual_pipeline_model_parallel_size": "pipeline_parallel",
    "microbatch_group_size_per_vp_stage": "pipeline_parallel",
    "overlap_p2p_comm": "pipeline_parallel",
    "batch_p2p_comm": "pipeline_parallel",
    "num_layers_in_first_pipeline_stage": "pipeline_parallel",
    "num_layers_in_last_pipeline_stage": "pipeline_parallel",
    "account_for_embedding_in_pipeline_split": "pipeline_parallel",
    "account_for_loss_in_pipeline_split": "pipeline_parallel",
    "moe_token_dispatcher_type": "dispatcher",
    "moe_flex_dispatcher_backend": "dispatcher",
    "moe_flex_dispatcher_num_sms": "dispatcher",
    "moe_deepep_num_sms": "dispatcher",
    "moe_hybridep_num_sms": "dispatcher",
    "moe_enable_deepep": "dispatcher",
    **{field: "dispatcher" for _, field, _, _ in BACKEND_FIELDS},
    "cuda_graph_impl": "cuda_graph_impl",
    "cuda_graph_modules": "cuda_graph_impl",
    "cuda_graph_scope": "cuda_graph_impl",
    "enable_cuda_graph": "cuda_graph_impl",
    "external_cuda_graph": "cuda_graph_impl",
    "moe_layer_recompute": "recompute_granularity",
    "fine_grained_activation_offloading": "offload_modules",
    "offload_modules": "offload_modules",
    "manual_gc": "manual_gc_interval",
    "manual_gc_interval": "manual_gc_interval",
}
"""Fields that no setting has under one name, with a setting of the group that they belong to."""

_SETTING_OF: Mapping[str, str] = {
    **{field: name for name, field in SAME_VALUE.items()},
    **{field: name for name, (field, _) in SAME_VALUE_SINCE.items()},
    **_OTHER_FIELDS,
}
_SM_FIELDS = ("moe_flex_dispatcher_num_sms", "moe_deepep_num_sms", "moe_hybridep_num_sms")


def model_path(view: Resolved) -> str:
    """Where the transformer's fields are: in the model itself, or in a ``transformer`` of its own."""
    return "model" if view.raw("model.transformer") in (ABSENT, None) else "model.transformer"


def fields_by_group(
    settings: Mapping[str, object], megatron_core: str, model: str = "model"
) -> dict[tuple[str, ...], dict[str, Field]]:
    """Dotted paths in a container and their plain values, for every group of settings.

    Args:
        settings: Canonical names and values; what is absent is at its default.
        megatron_core: Release, or a full version of it.
        model: Where the transformer's fields are.

    Raises:
        PolicyError: an illegal setting, an unsupported release, or a setting that the release cannot express.
    """
    rendered = render(settings, megatron_core)
    groups: dict[tuple[str, ...], dict[str, Field]] = {group: {} for group in GROUPS}
    for section, fields in ((model, rendered.transformer), ("ddp", rendered.ddp), ("train", rendered.training)):
        for field, value in fields.items():
            groups[_group_of(_SETTING_OF[field])][f"{section}.{field}"] = value
    groups[PIPELINE] |= {"comm_overlap.overlap_p2p_comm": None, "comm_overlap.batch_p2p_comm": None}
    transformer, ddp = rendered.transformer, rendered.ddp
    for field in ("overlap_moe_expert_parallel_comm", "delay_wgrad_compute"):
        groups[EXPERT_OVERLAP][f"comm_overlap.{field}"] = transformer[field]
    for field in ("overlap_grad_reduce", "overlap_param_gather"):
        groups[DATA_OVERLAP][f"comm_overlap.{field}"] = ddp[field]
    for field in ("use_distributed_optimizer", "overlap_param_gather"):
        groups[DATA_OVERLAP][f"optimizer.{field}"] = ddp[field]
    groups[GRAPHS] |= _graph_companions(transformer, model)
    return groups


def settings_of(view: Resolved, megatron_core: str) -> Settings:
    """The canonical settings that a container means; what it cannot know (the launcher's part) is absent.

    Args:
        view: A container as a recipe built it, as training resolved it, or the mapping of a saved one.
        megatron_core: Release, or a full version of it.

    Raises:
        PolicyError: a field that the release has is missing, or a value has no canonical form.
    """
    release = release_of(megatron_core)
    fields = _settled(view, release)
    settings = read_back(fields, release)
    lost = [name for group in GROUPS for name in group if name not in settings]
    if lost:
        names = ", ".join(SAME_VALUE.get(name, name) for name in lost)
        raise PolicyError(f"field {names} is missing, but Megatron-Core {release} has it")
    environment = view.get("env_vars")
    if isinstance(environment, Mapping):
        settings |= read_environment({name: str(value) for name, value in environment.items()})
    return effective(settings)


def effective(settings: Mapping[str, Any]) -> Settings:
    """The settings with everything at its default that has no effect beside the others."""
    values = dict(settings)
    if values.get("dispatcher") not in FLEX_DISPATCHERS and "num_sms" in values:
        values["num_sms"] = None
    for name in values:
        if not SETTINGS[name].effective(values):
            values[name] = SETTINGS[name].default
    if values.get("recompute_granularity") != "selective" and "recompute_modules" in values:
        values["recompute_modules"] = []
    if values.get("cuda_graph_impl") in ("none", "full_iteration") and "cuda_graph_modules" in values:
        values["cuda_graph_modules"] = []
    return {name: values[name] for name in SETTINGS if name in values}


def same_meaning(group: tuple[str, ...], wanted: Mapping[str, Any], found: Mapping[str, Any]) -> bool:
    """Whether two sets of settings, both effective, say the same about a group; lists have no order."""
    return all(_comparable(name, wanted[name]) == _comparable(name, found[name]) for name in group)


def _comparable(name: str, value: Any) -> object:
    if name == "pipeline_layout" and value is not None:
        return layout_stages(value)
    return frozenset(value) if isinstance(value, list) else value


def _group_of(setting: str) -> tuple[str, ...]:
    return next(group for group in GROUPS if setting in group)


def _graph_companions(transformer: Mapping[str, Field], model: str) -> dict[str, Field]:
    """What Megatron demands beside CUDA graphs: its own random state, and no check that looks at a value."""
    fields: dict[str, Field] = {f"{model}.inference_cuda_graph_scope": None}
    graphs = transformer["cuda_graph_impl"] != "none"
    fields |= {f"{model}.use_te_rng_tracker": graphs, "rng.te_rng_tracker": graphs}
    scope = transformer["cuda_graph_scope"]
    if transformer["cuda_graph_impl"] == "full_iteration" or (isinstance(scope, list) and "full_iteration" in scope):
        fields |= {"rerun_state_machine.check_for_nan_in_loss": False, "ddp.check_for_nan_in_grad": False}
    return fields


def _settled(view: Resolved, release: str) -> dict[str, Any]:
    """All fields by Megatron-Core's names, as they will be when training starts."""
    model = model_path(view)
    fields: dict[str, Any] = {}
    for field in _SETTING_OF:
        for section in (model, "ddp", "train"):
            value = view.get(f"{section}.{field}")
            if value is not ABSENT:
                fields[field] = value
                break
    opaque = [field for field, value in fields.items() if value is OPAQUE]
    if opaque:
        raise PolicyError(f"{', '.join(opaque)}: {OPAQUE}, so its value is unknown")
    _settle_overlap(view, fields)
    _settle_graphs(fields, release)
    _settle_dispatcher(fields)
    _settle_pipeline(view, model, fields)
    if fields.get("ddp.use_distributed_optimizer") or view.get("optimizer.use_distributed_optimizer") is True:
        fields["use_distributed_optimizer"] = True
    return fields


def _settle_overlap(view: Resolved, fields: dict[str, Any]) -> None:
    """What a CommOverlapConfig makes of the overlaps: nothing said means no expert overlap, and data overlap.

    With one data-parallel rank it means no data overlap either, where there is nothing to overlap.
    """
    if view.get("comm_overlap") in (ABSENT, None) or view.get("comm_overlap.data_parallel_size") not in (ABSENT, None):
        return  # there is none, or training has already put its values into the other fields
    for field in ("overlap_moe_expert_parallel_comm", "delay_wgrad_compute"):
        fields[field] = view.get(f"comm_overlap.{field}") is True
    if view.get("ddp.use_distributed_optimizer") is True:
        for field in ("overlap_grad_reduce", "overlap_param_gather"):
            said = view.get(f"comm_overlap.{field}")
            fields[field] = True if said in (ABSENT, None) else said


def _settle_graphs(fields: dict[str, Any], release: str) -> None:
    for field, impl in (("enable_cuda_graph", "local"), ("external_cuda_graph", "transformer_engine")):
        if fields.get(field):
            fields["cuda_graph_impl"] = impl
    if release in ("0.16", "0.17"):
        return
    scope = fields.get("cuda_graph_scope")
    modules = fields.get("cuda_graph_modules") if scope is None else scope
    names = modules.split(",") if isinstance(modules, str) else list(modules or ())
    if "full_iteration" in names and fields.get("cuda_graph_impl") == "local":
        fields["cuda_graph_impl"] = "full_iteration"
    fields["cuda_graph_modules"] = [name for name in names if name not in ("", "full_iteration")]


def _settle_dispatcher(fields: dict[str, Any]) -> None:
    if fields.get("moe_enable_deepep"):
        fields["moe_flex_dispatcher_backend"] = "deepep"
    unified, *older = _SM_FIELDS
    if fields.get(unified, ABSENT) is None:
        numbers = [fields[name] for name in older if fields.get(name) is not None]
        fields[unified] = numbers[0] if numbers else None


def _settle_pipeline(view: Resolved, model: str, fields: dict[str, Any]) -> None:
    layout, ranks = fields.get("pipeline_model_parallel_layout"), fields.get("pipeline_model_parallel_size")
    if layout is None:
        fields["pipeline_model_parallel_layout"] = _uneven_layout(view, model, fields)
        return
    stages = len(layout_stages(layout if isinstance(layout, str) else layout_text(layout)))
    if isinstance(ranks, int) and stages % ranks == 0:
        fields["virtual_pipeline_model_parallel_size"] = stages // ranks


def _uneven_layout(view: Resolved, model: str, fields: Mapping[str, Any]) -> str | None:
    """The layout that an uneven split amounts to; None when the split is even or there is one stage.

    Raises:
        PolicyError: layers that the stages do not divide.
    """
    ranks = fields.get("pipeline_model_parallel_size") or 1
    chunks = fields.get("virtual_pipeline_model_parallel_size") or 1
    first, last = fields.get("num_layers_in_first_pipeline_stage"), fields.get("num_layers_in_last_pipeline_stage")
    embedding = bool(fields.get("account_for_embedding_in_pipeline_split"))
    loss = bool(fields.get("account_for_loss_in_pipeline_split"))
    if ranks == 1 or (first is None and last is None and not embedding and not loss):
        return None
    layers = view.get(f"{model}.num_layers")
    given = [number for number in (first, last) if number is not None]
    middle, rest = ranks - len(given), layers + embedding + loss - sum(given)
    if (rest % (middle * chunks) if middle else rest) or any(number % chunks for number in given):
        raise PolicyError(f"{layers} layers cannot be split over {ranks} x {chunks} stages as the recipe says")
    even = rest // middle if middle else 0
    per_rank = [even] * ranks
    per_rank[0], per_rank[-1] = first or even, last or even
    stages = ["t" * (number // chunks) for _ in range(chunks) for number in per_rank]
    stages[0] = "E" + stages[0][embedding:]
    mtp = view.get(f"{model}.mtp_num_layers")
    stages[-1] = stages[-1][loss:] + "m" * (mtp if isinstance(mtp, int) else 0) + "L"
    return "|".join(stages)
