"""Canonical settings written for one Megatron-Core release, and read back from what was built.

Field names change between releases: SM counts were per backend before 0.19; graph modules were called
``cuda_graph_scope`` before 0.18, with ``full_iteration`` as one of them. What a release cannot say is
refused, never dropped. Fields that older recipes use for the same knobs are written too, with the value that
means "unused", so that a rendered configuration says the same whatever the recipe had before.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from typing import Any, NamedTuple

from autotune_policies.errors import PolicyError
from autotune_policies.layout import layout_stages, layout_text
from autotune_policies.release_fields import (
    BACKEND_FIELDS,
    SAME_VALUE,
    SAME_VALUE_SINCE,
    UNUSED,
    VALUES_SINCE,
    Field,
    Release,
)
from autotune_policies.settings import FLEX_DISPATCHERS, SETTINGS, Home, Settings, Value, check_value, resolve

RELEASES = ("0.16", "0.17", "0.18", "0.19")
"""Megatron-Core releases that can be rendered."""


class MegatronCoreFields(NamedTuple):
    """Fields of one release with plain values, by the object that holds them.

    Attributes:
        transformer: For ``TransformerConfig`` (``ModelParallelConfig`` included).
        ddp: For ``DistributedDataParallelConfig``.
        training: For the training loop.
    """

    transformer: dict[str, Field]
    ddp: dict[str, Field]
    training: dict[str, Field]

    def merged(self) -> dict[str, Field]:
        """All fields in one mapping; a name that two homes share has the same value in both."""
        return {**self.training, **self.ddp, **self.transformer}


def release_of(version: str) -> str:
    """The supported release that a Megatron-Core version belongs to: ``"0.19.2"`` -> ``"0.19"``.

    Raises:
        PolicyError: a release that cannot be rendered.
    """
    match = re.match(r"(\d+\.\d+)(?![\d])", version)
    if match is None or match.group(1) not in RELEASES:
        supported = ", ".join(RELEASES)
        raise PolicyError(f"Megatron-Core {version!r} is not supported", hint=f"supported: {supported}")
    return match.group(1)


def render(settings: Mapping[str, object], release: str) -> MegatronCoreFields:
    """The fields that make a Megatron-Core release run with these settings.

    Settings that are not given are rendered at their defaults, so the fields are always the complete set.

    Args:
        settings: Canonical names and values.
        release: ``"0.16"`` to ``"0.19"``, or a full version of one of them.

    Raises:
        PolicyError: an illegal setting, an unsupported release, or a setting that the release cannot express.
    """
    name = release_of(release)
    version = _version(name)
    values = resolve(settings)
    _check_expressible(values, name)

    homes: dict[Home, dict[str, Field]] = {"transformer": dict(UNUSED), "ddp": {}, "training": {}}
    for setting, field in _fields_of(version).items():
        homes[SETTINGS[setting].home][field] = values[setting]
    interval = values["manual_gc_interval"]
    homes["training"] |= {"manual_gc": interval is not None, "manual_gc_interval": interval or 0}
    transformer = homes["transformer"]
    # DDP needs to know too: it moves the gradient hooks of these weights to the delayed pass.
    homes["ddp"]["delay_wgrad_compute"] = values["delay_wgrad"]

    interleaved = _int(values, "virtual_pipeline") > 1
    transformer["virtual_pipeline_model_parallel_size"] = values["virtual_pipeline"] if interleaved else None
    # The class derives this one from the pipeline size it was built with; a stale one breaks the schedule.
    transformer["microbatch_group_size_per_vp_stage"] = values["pipeline_parallel"]
    transformer["overlap_p2p_comm"] = interleaved
    transformer["batch_p2p_comm"] = not interleaved

    transformer.update(_dispatcher_fields(values, name))
    transformer.update(_graph_fields(values, version))
    transformer["fine_grained_activation_offloading"] = bool(values["offload_modules"])
    transformer["offload_modules"] = values["offload_modules"]
    return MegatronCoreFields(transformer, homes["ddp"], homes["training"])


def read_back(fields: object, release: str) -> Settings:
    """The canonical settings in force in a built configuration: the inverse of :func:`render`.

    Args:
        fields: A mapping with the fields, an object that has them as attributes (a built
            ``TransformerConfig``), or ``MegatronCoreFields``. Settings that live elsewhere (those of DDP,
            ``micro_batch_size``) are in the result when their fields are in the mapping or object.
        release: Release that the fields belong to.

    Raises:
        PolicyError: a field that the release should have is missing, or a value has no canonical form.
    """
    name = release_of(release)
    version = _version(name)
    get = _getter(fields, name)
    settings: Settings = {}
    for setting, field in _fields_of(version).items():
        if SETTINGS[setting].home == "transformer" or get(field, None) is not None:
            settings[setting] = get(field)
    settings |= {setting: SETTINGS[setting].default for setting in SAME_VALUE_SINCE if setting not in settings}
    if get("manual_gc", None) is not None:
        settings["manual_gc_interval"] = get("manual_gc_interval") or None if get("manual_gc") else None
    settings["pipeline_layout"] = _layout_of(get("pipeline_model_parallel_layout"))
    settings["virtual_pipeline"] = get("virtual_pipeline_model_parallel_size") or 1
    # Two fields for which None is no value but "as the class would choose".
    if settings["expert_tensor_parallel"] is None:
        settings["expert_tensor_parallel"] = settings["tensor_parallel"]
    if settings["recompute_modules"] is None:
        settings["recompute_modules"] = ["core_attn"]
    settings.update(_dispatcher_of(get, version))
    settings.update(_graphs_of(get, version))
    settings["offload_modules"] = get("offload_modules") if get("fine_grained_activation_offloading") else []
    return {key: check_value(key, settings[key]) for key in SETTINGS if key in settings}


def _fields_of(version: Release) -> dict[str, str]:
    """Settings that the release writes to one field, value unchanged."""
    later = {setting: field for setting, (field, since) in SAME_VALUE_SINCE.items() if version >= since}
    return {**SAME_VALUE, **later}


def _check_expressible(values: Settings, release: str) -> None:
    for setting, (_, since) in SAME_VALUE_SINCE.items():
        if _version(release) < since and values[setting] != SETTINGS[setting].default:
            raise _refusal(
                f"{setting}={values[setting]}", release, f"Megatron-Core knows it from {since[0]}.{since[1]} on"
            )
    for setting, row in SETTINGS.items():
        if values[setting] != row.default and not row.effective(values):
            needed = " and ".join(f"{name}={'|'.join(map(str, legal))}" for name, legal in row.only_with.items())
            raise _refusal(f"{setting}={values[setting]}", release, f"it has an effect only with {needed}")
    for (setting, value), since in VALUES_SINCE.items():
        given = values[setting]
        if _version(release) < since and (value == given or (isinstance(given, list) and value in given)):
            first = f"{since[0]}.{since[1]}"
            raise _refusal(f"{setting}={value}", release, f"Megatron-Core knows it from {first} on")
    layout = values["pipeline_layout"]
    if isinstance(layout, str):
        stages = len(layout_stages(layout))
        wanted = _int(values, "pipeline_parallel") * _int(values, "virtual_pipeline")
        if stages != wanted:
            raise PolicyError(
                f"pipeline_layout={layout!r} has {stages} stages, but pipeline_parallel x virtual_pipeline = {wanted}"
            )
    modules = values["cuda_graph_modules"]
    assert isinstance(modules, list)
    if values["cuda_graph_impl"] == "full_iteration" and modules:
        raise _refusal(
            f"cuda_graph_modules={','.join(modules)} with cuda_graph_impl=full_iteration",
            release,
            "the whole iteration is captured; set cuda_graph_modules: []",
        )
    if values["cuda_graph_impl"] == "local" and ("moe_router" in modules) != ("moe_preprocess" in modules):
        raise _refusal(
            f"cuda_graph_modules={','.join(modules)} with cuda_graph_impl=local",
            release,
            "it captures moe_router and moe_preprocess together: name both",
        )


def _dispatcher_fields(values: Settings, release: str) -> dict[str, Field]:
    version = _version(release)
    dispatcher, num_sms = values["dispatcher"], values["num_sms"]
    flex = dispatcher in FLEX_DISPATCHERS
    if num_sms is not None and not flex:
        raise _refusal(
            f"num_sms={num_sms} with dispatcher={dispatcher}",
            release,
            f"only {', '.join(FLEX_DISPATCHERS)} borrow SMs; set num_sms: null",
        )
    fields: dict[str, Field] = {
        "moe_token_dispatcher_type": "flex" if flex else str(dispatcher),
        "moe_flex_dispatcher_backend": str(dispatcher) if flex else "deepep",
    }
    sms = _sms_defaults(version)
    field = _sms_field(str(dispatcher), version)
    if flex:
        if num_sms is None and sms[field] is not None:
            raise _refusal(f"num_sms=null with dispatcher={dispatcher}", release, "give the number of SMs")
        sms[field] = num_sms
    fields.update(sms)
    others = {
        name: default for backend, name, since, default in BACKEND_FIELDS
        if version >= since and backend != dispatcher
    }  # fmt: skip
    return {**fields, **others}


def _sms_defaults(version: Release) -> dict[str, Field]:
    """The SM-count fields of a release at their class defaults."""
    if version >= (0, 19):
        return {"moe_flex_dispatcher_num_sms": None, "moe_deepep_num_sms": None, "moe_hybridep_num_sms": None}
    return {"moe_deepep_num_sms": 20, "moe_hybridep_num_sms": 16 if version == (0, 16) else None}


def _sms_field(dispatcher: str, version: Release) -> str:
    return "moe_flex_dispatcher_num_sms" if version >= (0, 19) else f"moe_{dispatcher}_num_sms"


def _dispatcher_of(get: Callable[..., Any], version: Release) -> Settings:
    kind = get("moe_token_dispatcher_type")
    if kind != "flex":
        return {"dispatcher": kind, "num_sms": None}
    backend = get("moe_flex_dispatcher_backend")
    return {"dispatcher": backend, "num_sms": get(_sms_field(str(backend), version))}


def _graph_fields(values: Settings, version: Release) -> dict[str, Field]:
    if version >= (0, 18):
        return {
            "cuda_graph_impl": values["cuda_graph_impl"],
            "cuda_graph_modules": values["cuda_graph_modules"],
            "cuda_graph_scope": None,
        }
    if values["cuda_graph_impl"] == "full_iteration":
        return {"cuda_graph_impl": "local", "cuda_graph_scope": ["full_iteration"]}
    return {"cuda_graph_impl": values["cuda_graph_impl"], "cuda_graph_scope": values["cuda_graph_modules"]}


def _graphs_of(get: Callable[..., Any], version: Release) -> Settings:
    impl = get("cuda_graph_impl")
    modules = _names(get("cuda_graph_modules" if version >= (0, 18) else "cuda_graph_scope"))
    if version < (0, 18) and impl == "local" and "full_iteration" in modules:
        return {"cuda_graph_impl": "full_iteration", "cuda_graph_modules": []}
    return {"cuda_graph_impl": impl, "cuda_graph_modules": list(modules)}


def _names(value: object) -> list[str]:
    """Graph modules as names, from any form the class accepts; "full" is the old word for the whole layer."""
    if value is None:
        return []
    items: Iterable[object]
    if isinstance(value, str):
        items = value.split(",") if value else []
    else:
        items = value if isinstance(value, list | tuple) else [value]
    names = [item.name if isinstance(item, Enum) else str(item).strip() for item in items]
    return [name for name in names if name not in ("full", "full_iteration_inference")]


def _layout_of(value: Any) -> Value:
    """The layout as text; Megatron's parsed object keeps what it was built from."""
    source = getattr(value, "input_data", value)
    return layout_text(source) if isinstance(source, list) else check_value("pipeline_layout", source)


def _getter(fields: object, release: str) -> Callable[..., Any]:
    if isinstance(fields, MegatronCoreFields):
        fields = fields.merged()
    missing = object()

    def get(name: str, *default: object) -> Any:
        value = fields.get(name, missing) if isinstance(fields, Mapping) else getattr(fields, name, missing)
        if value is not missing:
            return value
        if default:
            return default[0]
        raise PolicyError(f"field {name!r} is missing, but Megatron-Core {release} has it")

    return get


def _version(release: str) -> Release:
    major, minor = release.split(".")
    return int(major), int(minor)


def _int(values: Settings, name: str) -> int:
    value = values[name]
    assert isinstance(value, int)
    return value


def _refusal(what: str, release: str, hint: str) -> PolicyError:
    return PolicyError(f"{what} cannot be expressed in Megatron-Core {release}", hint=hint)
