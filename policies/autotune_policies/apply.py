"""Puts a policy into a configuration object: everything is checked first, then all of it is set, or nothing.

Order: where the policy holds, environment, fields, then the setting itself. An object of Megatron's own
classes has already run ``__post_init__``, so values that the class would have parsed there are parsed here.
"""

import importlib
import os
import sys
import warnings
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from autotune_policies.applicability import compare
from autotune_policies.errors import PolicyError, PolicyMismatch
from autotune_policies.installed import installed_versions
from autotune_policies.megatron_core import MegatronCoreFields, release_of, render
from autotune_policies.release_fields import Field
from autotune_policies.settings import Settings
from autotune_policies.surroundings import LAUNCH_SETTINGS, stale_variables

_DISTRIBUTIONS = ("megatron_core", "megatron_bridge", "torch", "deep_ep", "transformer_engine")
_MODULES = {"megatron_core": "megatron.core", "torch": "torch", "transformer_engine": "transformer_engine"}

_ABSENT = object()


class Applied(NamedTuple):
    """What :meth:`Policy.apply` did, and what it could not do or know.

    Attributes:
        release: Megatron-Core release whose field names were used.
        fields: Fields set on the configuration, with plain values. For a ConfigContainer they are dotted paths, and
            only those that meant something else before; a variable that had to go has the value None.
        elsewhere: What lives in other objects, by home: ``ddp`` (DistributedDataParallelConfig) and ``training``,
            which the recipe has to use; ``launch``, which is in force under ``autotune policy exec`` only. A
            ConfigContainer has a place for all but the last.
        env: Variables of the policy, all in force now.
        unchecked: Fields of ``applies_to`` that nobody knows of this run.
        forced: Differences from ``applies_to`` that ``force=True`` let pass.
    """

    release: str
    fields: dict[str, Field]
    elsewhere: dict[str, dict[str, Field]]
    env: dict[str, str]
    unchecked: tuple[str, ...]
    forced: tuple[str, ...]


def apply_policy(
    applies_to: Mapping[str, Any],
    settings: Settings,
    env: Mapping[str, str],
    config: object,
    given: Mapping[str, str | int | None],
    stack: Mapping[str, str],
    *,
    force: bool,
) -> Applied:
    """The work of :meth:`autotune_policies.policy.Policy.apply`, which documents it.

    Args:
        applies_to: Conditions of the policy.
        settings: All canonical settings.
        env: Variables of the policy.
        config: Object whose attributes are set.
        given: What the caller says about this run; None = not said.
        stack: Versions that replace detected ones.
        force: Apply although ``applies_to`` differs.

    Raises:
        PolicyMismatch: ``applies_to`` differs and ``force`` is not set.
        PolicyError: anything else that keeps the policy from being applied as a whole.
    """
    versions = {**detect_stack(), **checked_versions(stack)}
    container = all(hasattr(config, name) for name in ("model", "ddp", "train"))
    facts: dict[str, object] = {**_detect(config, applies_to)}
    if container:
        facts |= _told_by_container(config, applies_to["precision"])
    facts |= {name: value for name, value in given.items() if value is not None}
    facts |= {f"stack.{name}": version for name, version in versions.items()}
    comparison = compare(applies_to, facts)
    if comparison.mismatches and not force:
        raise PolicyMismatch(
            "the policy is for another run: " + "; ".join(comparison.mismatches),
            hint="tune this run, or apply(..., force=True) at your own risk",
        )
    unwanted = stale_variables(settings)
    check_environment(_decided(env) if container else env, () if container else unwanted)
    if "megatron_core" not in versions:
        raise PolicyError(
            "the Megatron-Core release of this run is unknown",
            hint="install megatron-core, or pass stack={'megatron_core': '0.19.2'}",
        )
    release = release_of(versions["megatron_core"])
    if comparison.mismatches:
        warnings.warn("policy applied by force: " + "; ".join(comparison.mismatches), stacklevel=3)
    elsewhere: dict[str, dict[str, Field]]
    if container:
        changed, elsewhere = _apply_to_container(config, settings, env, versions), {}
    else:
        changed, elsewhere = _apply_to_transformer(config, settings, release)
    binding = {name: settings[name] for name in LAUNCH_SETTINGS if settings.get(name) is not None}
    os.environ.update(env)
    for name in unwanted:
        os.environ.pop(name, None)
    return Applied(
        release=release,
        fields=changed,
        elsewhere={**elsewhere, **({"launch": binding} if binding else {})},
        env=dict(env),
        unchecked=comparison.unchecked,
        forced=comparison.mismatches,
    )


def _apply_to_transformer(
    config: object, settings: Settings, release: str
) -> tuple[dict[str, Field], dict[str, dict[str, Field]]]:
    fields = render(settings, release)
    missing = [name for name in fields.transformer if not hasattr(config, name)]
    if missing:
        raise PolicyError(
            f"{type(config).__name__} has no field {', '.join(missing)}, which Megatron-Core {release} has",
            hint="is this the configuration of another release? nothing was applied",
        )
    _set_all(config, _parsed(config, fields))
    return fields.transformer, {"ddp": fields.ddp, "training": fields.training}


def _apply_to_container(
    config: object, settings: Settings, env: Mapping[str, str], versions: Mapping[str, str]
) -> dict[str, Field]:
    bridge = importlib.import_module("autotune_policies.megatron_bridge")
    if "megatron_bridge" not in versions:
        raise PolicyError(
            "the Megatron-Bridge release of this run is unknown",
            hint="install megatron-bridge, or pass stack={'megatron_bridge': '0.6.2'}",
        )
    releases = {name: versions[name] for name in ("megatron_core", "megatron_bridge")}
    changes = bridge.plan_changes(config, settings, env, **releases, environment=os.environ)
    bridge.make_changes(config, changes)
    return {change.path: change.value for change in changes}


def _decided(env: Mapping[str, str]) -> dict[str, str]:
    """Variables that a container cannot decide any more.

    Its ``env_vars`` are read before CUDA starts, and a variable that the process already has is not replaced.
    """
    torch = sys.modules.get("torch")
    started = torch is not None and torch.cuda.is_initialized()
    return {name: value for name, value in env.items() if started or name in os.environ}


def check_environment(env: Mapping[str, str], unwanted: Iterable[str] = ()) -> None:
    """Nothing, if the variables are in force or can still be set because torch is not imported yet.

    Args:
        env: Variables and the values that they must have.
        unwanted: Variables that must not be set.

    Raises:
        PolicyError: torch is imported and a variable has another value; names each with both values.
    """
    if "torch" not in sys.modules:
        return
    differing = [
        f"{name} is {os.environ.get(name, 'not set')!s}, but the policy needs {value}"
        for name, value in env.items()
        if os.environ.get(name) != value
    ]
    differing += [
        f"{name} is {os.environ[name]}, but the policy needs it unset" for name in unwanted if name in os.environ
    ]
    if differing:
        raise PolicyError(
            "torch is already imported and cannot see a changed environment: " + "; ".join(differing),
            hint="start the program with: autotune policy exec FILE -- COMMAND",
        )


def detect_stack() -> dict[str, str]:
    """Versions of the installed parts of the stack that can be known without importing any of them."""
    versions: dict[str, str] = {}
    installed = installed_versions()
    for name in _DISTRIBUTIONS:
        # A loaded module is what really runs, also from a source checkout that no package manager knows. But some
        # append a commit to the version of their distribution, even that of the folder the program was started in.
        loaded, version = getattr(sys.modules.get(_MODULES.get(name, "")), "__version__", None), installed.get(name)
        if isinstance(loaded, str) and loaded.partition("+")[0] != version:
            version = loaded
        if version is not None:
            versions[name] = version
    return versions


def checked_versions(stack: Mapping[str, object]) -> dict[str, str]:
    """The versions that somebody gives.

    Raises:
        PolicyError: one that is no text.
    """
    for name, version in stack.items():
        if not isinstance(version, str) or not version:
            hint = f"leave {name} out where it is not known"
            raise PolicyError(f"stack.{name} is {version!r}, but a version is a text such as '0.19.2'", hint=hint)
    return {name: str(version) for name, version in stack.items()}


def _detect(config: object, applies_to: Mapping[str, Any]) -> dict[str, str | int]:
    facts: dict[str, str | int] = {}
    world_size = os.environ.get("WORLD_SIZE", "")
    if world_size.isdecimal() and int(world_size) > 0:
        facts["num_gpus"] = int(world_size)
    seq_length = getattr(config, "seq_length", None)
    if isinstance(seq_length, int) and seq_length > 0:
        facts["seq_length"] = seq_length
    precision = _detect_precision(config)
    # The flags do not say which FP8 or FP4 recipe runs; the right family is not proof of the right precision.
    if precision and not (precision in ("fp8", "fp4") and precision in str(applies_to["precision"])):
        facts["precision"] = precision
    return facts


def _detect_precision(config: object) -> str | None:
    """The precision that the flags tell, if one is set; none set may also mean "decided later"."""
    for flag in ("fp4", "fp8", "bf16", "fp16"):
        if getattr(config, flag, None):
            return flag
    return None


def _told_by_container(config: object, precision: Any) -> dict[str, object]:
    from autotune_policies.container_facts import contract_of  # most programs have no container
    from autotune_policies.resolved import Resolved

    wanted = precision.get("exact") if isinstance(precision, Mapping) else precision
    return contract_of(Resolved(config), str(wanted))


def _parsed(config: object, fields: MegatronCoreFields) -> dict[str, Any]:
    """The values as they must stand in this object: parsed for Megatron's own classes, plain for others."""
    values: dict[str, Any] = {
        name: list(value) if isinstance(value, list) else value for name, value in fields.transformer.items()
    }
    of_megatron = any(cls.__module__.startswith("megatron.") for cls in type(config).__mro__)
    if not of_megatron or "megatron.core" not in sys.modules:
        return values
    enums = importlib.import_module("megatron.core.transformer.enums")
    for name, enum in (("cuda_graph_modules", "CudaGraphModule"), ("cuda_graph_scope", "CudaGraphScope")):
        if values.get(name):
            values[name] = [getattr(enums, enum)[item] for item in values[name]]
    layout = values["pipeline_model_parallel_layout"]
    if layout is not None:
        module = importlib.import_module("megatron.core.transformer.pipeline_parallel_layer_layout")
        try:
            # By keyword, as the class does it: the parser caches by call, so both get the same object.
            parsed = module.PipelineParallelLayerLayout.from_str(
                layout=layout, pipeline_model_parallel_size=values["pipeline_model_parallel_size"]
            )
            values["mtp_standalone"] = parsed.validate_layer_layout(
                num_layers=getattr(config, "num_layers", None),
                mtp_num_layers=getattr(config, "mtp_num_layers", None),
            )
        except AssertionError as error:
            raise PolicyError(f"pipeline_layout={layout!r} does not fit this model: {error}") from error
        values["pipeline_model_parallel_layout"] = parsed
    elif hasattr(config, "mtp_standalone"):
        values["mtp_standalone"] = False
    return values


def _set_all(config: object, values: Mapping[str, Any]) -> None:
    before = {name: getattr(config, name, _ABSENT) for name in values}
    done: list[str] = []
    try:
        for name, value in values.items():
            setattr(config, name, value)
            done.append(name)
    except Exception as error:
        for name in done:
            if before[name] is _ABSENT:
                delattr(config, name)
            else:
                setattr(config, name, before[name])
        name = list(values)[len(done)]
        raise PolicyError(
            f"{type(config).__name__}.{name} cannot be set: {error}", hint="nothing was applied"
        ) from error
