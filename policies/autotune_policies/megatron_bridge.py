"""Canonical settings in a Megatron-Bridge ConfigContainer: read, rendered, applied, and as Hydra overrides.

Applying changes what differs. A group of settings that already means what is wanted keeps the recipe's own spelling;
one that differs is written as a whole, older names and leftovers of the former choice cleared.
"""

import copy
import re
from collections.abc import Mapping
from typing import Any

from autotune_policies.bridge_changes import Change, make_changes, overlap_class
from autotune_policies.bridge_fields import (
    EXPERT_OVERLAP,
    effective,
    fields_by_group,
    model_path,
    same_meaning,
    settings_of,
)
from autotune_policies.errors import PolicyError
from autotune_policies.hydra import override_word
from autotune_policies.release_fields import UNUSED, Field
from autotune_policies.resolved import ABSENT, Resolved
from autotune_policies.settings import Settings, resolve
from autotune_policies.surroundings import LAUNCH_SETTINGS, environment_of, said_together, stale_variables

BRIDGE_RELEASES = ("0.4", "0.5", "0.6")
"""Megatron-Bridge releases that can be rendered; 0.4 was built on Megatron-Core 0.17, 0.6 on 0.19."""

_ENVIRONMENT_SINCE = "0.6"
"""First release whose containers carry environment variables."""

_RANDOM_STATE = ("use_te_rng_tracker", "te_rng_tracker")
_OPTIONAL = frozenset({*UNUSED, "inference_cuda_graph_scope", "cuda_graph_scope"})
"""Fields that not every release has; where one is missing, nothing can be wrong in it."""

_DDP_BUCKET = 40_000_000
"""Parameters per bucket that Megatron-Core takes when nobody says a number (one million per rank above 40 ranks).

A CommOverlapConfig would put its own 128 Mi in place of "nobody says".
"""


def bridge_release_of(version: str) -> str:
    """The supported release that a Megatron-Bridge version belongs to: ``"0.6.2"`` -> ``"0.6"``.

    Raises:
        PolicyError: a release that cannot be rendered.
    """
    match = re.match(r"(\d+\.\d+)(?![\d])", version)
    if match is None or match.group(1) not in BRIDGE_RELEASES:
        raise PolicyError(
            f"Megatron-Bridge {version!r} is not supported", hint=f"supported: {', '.join(BRIDGE_RELEASES)}"
        )
    return match.group(1)


def has_environment(version: str) -> bool:
    """Whether containers of a Megatron-Bridge version carry environment variables."""
    return BRIDGE_RELEASES.index(bridge_release_of(version)) >= BRIDGE_RELEASES.index(_ENVIRONMENT_SINCE)


def is_container(config: object) -> bool:
    """Whether this is a ConfigContainer, or an object or mapping that looks like one."""
    view = Resolved(config)
    return all(view.raw(name) not in (ABSENT, None) for name in ("model", "ddp", "train"))


def render_container(
    settings: Mapping[str, object],
    env: Mapping[str, str],
    *,
    megatron_core: str,
    megatron_bridge: str,
    environment: Mapping[str, str] | None = None,
) -> dict[str, Field]:
    """The complete set: dotted path in a ConfigContainer -> plain value.

    Args:
        settings: Canonical names and values; what is absent is at its default.
        env: Variables of the policy; they become ``env_vars.NAME``.
        megatron_core: Release that names the fields, such as ``0.19.2``.
        megatron_bridge: Release of the container, such as ``0.6.2``.
        environment: Variables in force where training starts; a release without ``env_vars`` needs none of these.

    Raises:
        PolicyError: an illegal setting, an unsupported release, or something that a container cannot express.
    """
    release = bridge_release_of(megatron_bridge)
    groups = fields_by_group(_without_launch(settings), megatron_core)
    fields = {path: value for group in groups.values() for path, value in group.items()}
    variables = {**env, **environment_of(settings)}
    if not has_environment(release):
        _check_in_force(variables, environment or {}, release)
        return fields
    return {**fields, **{f"env_vars.{name}": value for name, value in variables.items()}}


def read_container(container: object, *, megatron_core: str, megatron_bridge: str) -> Settings:
    """The canonical settings that a container means: the inverse of :func:`render_container`.

    Args:
        container: A ConfigContainer, or the mapping of a saved ``ConfigContainer.yaml``.
        megatron_core: Release that names the fields.
        megatron_bridge: Release of the container.

    Returns:
        Settings; those of the launcher, which it cannot know, are absent.

    Raises:
        PolicyError: no container, a field that the release has is missing, or a value has no canonical form.
    """
    bridge_release_of(megatron_bridge)
    _check_container(container)
    return settings_of(Resolved(container), megatron_core)


def apply_container(
    container: object,
    settings: Mapping[str, object],
    env: Mapping[str, str],
    *,
    megatron_core: str,
    megatron_bridge: str,
) -> tuple[str, ...]:
    """Put settings and variables into a container: all of them, or nothing.

    Args:
        container: Object to change.
        settings: Canonical names and values; what is absent is at its default. The launcher's part is left out.
        env: Variables of the policy.
        megatron_core: Release that names the fields.
        megatron_bridge: Release of the container.

    Returns:
        The dotted paths that changed; empty when the container meant all of it already.

    Raises:
        PolicyError: a field does not exist or cannot be set, or something that the container cannot express.
    """
    changes = plan_changes(container, settings, env, megatron_core=megatron_core, megatron_bridge=megatron_bridge)
    make_changes(container, changes)
    return tuple(change.path for change in changes)


def overrides_of(
    settings: Mapping[str, object],
    env: Mapping[str, str],
    *,
    megatron_core: str,
    megatron_bridge: str,
    container: object | None = None,
    environment: Mapping[str, str] | None = None,
) -> list[str]:
    """The same as Hydra ``KEY=VALUE`` words for Megatron-Bridge's launcher.

    Args:
        settings: Canonical names and values.
        env: Variables of the policy.
        megatron_core: Release that names the fields.
        megatron_bridge: Release of the container.
        container: What the recipe builds; then the words are exactly what differs, leftovers deleted. None = the
            complete set, for any recipe that has a CommOverlapConfig; it deletes nothing.
        environment: As for :func:`render_container`.

    Raises:
        PolicyError: as :func:`apply_container`; launch settings, which no word can say.
    """
    named = [f"{name}={settings[name]}" for name in LAUNCH_SETTINGS if settings.get(name) is not None]
    if named:
        raise PolicyError(
            f"{', '.join(named)} cannot be said to Megatron-Bridge: only the launcher can do it",
            hint="autotune policy exec FILE -- COMMAND",
        )
    if container is None:
        rendered = render_container(
            settings, env, megatron_core=megatron_core, megatron_bridge=megatron_bridge, environment=environment
        )
        return [override_word(Change(path, value), added=True) for path, value in rendered.items()]
    changes = plan_changes(
        container, settings, env, megatron_core=megatron_core, megatron_bridge=megatron_bridge, environment=environment
    )
    variables = Resolved(container).raw("env_vars")
    built = overlap_class(container) if any(change.path == "comm_overlap" for change in changes) else type(None)
    target = f"{built.__module__}.{built.__qualname__}"
    return [
        override_word(change, added=change.path.partition(".")[2] not in (variables or ()), target=target)
        for change in changes
    ]


def plan_changes(
    container: object,
    settings: Mapping[str, object],
    env: Mapping[str, str],
    *,
    megatron_core: str,
    megatron_bridge: str,
    environment: Mapping[str, str] | None = None,
) -> list[Change]:
    """What :func:`apply_container` would do; arguments and errors are the same, and nothing is changed.

    Args:
        container: As there.
        settings: As there.
        env: As there.
        megatron_core: As there.
        megatron_bridge: As there.
        environment: Variables in force in this process; a container without ``env_vars`` needs none of these.
    """
    release = bridge_release_of(megatron_bridge)
    _check_container(container)
    view = Resolved(container)
    model = model_path(view)
    wanted = effective(resolve(_without_launch(settings)))
    found = settings_of(view, megatron_core)
    groups = fields_by_group(wanted, megatron_core, model)
    fields: dict[str, Field] = {}
    for group, values in groups.items():
        if not same_meaning(group, wanted, found):
            fields |= values
    changes: list[Change] = []
    has_overlap = view.raw("comm_overlap") not in (ABSENT, None)
    if not has_overlap:
        fields = {path: value for path, value in fields.items() if not path.startswith("comm_overlap.")}
        if any(wanted[name] for name in EXPERT_OVERLAP) and not same_meaning(EXPERT_OVERLAP, wanted, found):
            changes.append(Change("comm_overlap", _new_overlap(view, model, wanted, fields)))
            overlap_class(container)
    missing = []
    for path, value in fields.items():
        before = view.raw(path)
        if before is ABSENT:
            name = path.rpartition(".")[2]
            if name not in _OPTIONAL and not (name in _RANDOM_STATE and value is False):
                missing.append(path)
        elif type(before) is not type(value) or before != value:
            changes.append(Change(path, copy.deepcopy(value)))
    if missing:
        raise PolicyError(
            f"{type(container).__name__} has no field {', '.join(missing)}, which Megatron-Core {megatron_core} has",
            hint="is this the configuration of another release? nothing was applied",
        )
    variables = {**env, **environment_of(settings)}
    return [*changes, *_variable_changes(view, variables, wanted, release, environment or {})]


def _variable_changes(
    view: Resolved, variables: Mapping[str, str], wanted: Settings, release: str, environment: Mapping[str, str]
) -> list[Change]:
    present = view.raw("env_vars")
    if not isinstance(present, Mapping):
        _check_in_force(variables, environment, release)
        return []
    changes = [
        Change(f"env_vars.{name}", value)
        for name, value in variables.items()
        if name not in present or str(present[name]) != value
    ]
    unwanted = (*stale_variables(wanted), *said_together(variables))
    stale = [name for name in unwanted if name in present and name not in variables]
    return [*changes, *(Change(f"env_vars.{name}", None, remove=True) for name in stale)]


def _new_overlap(view: Resolved, model: str, wanted: Settings, fields: Mapping[str, Field]) -> dict[str, Any]:
    """Fields of a CommOverlapConfig that changes the expert overlap and nothing else.

    Its unset fields would not mean what no CommOverlapConfig means, so each of them says what is in force.
    """

    def now(path: str, default: Any) -> Any:
        value = fields.get(path, view.raw(path))
        return default if value in (ABSENT, None) else value

    return {
        "tp_comm_overlap": now(f"{model}.tp_comm_overlap", False),
        "overlap_p2p_comm": now(f"{model}.overlap_p2p_comm", False),
        "batch_p2p_comm": now(f"{model}.batch_p2p_comm", True),
        "overlap_grad_reduce": wanted["overlap_grad_reduce"],
        "overlap_param_gather": wanted["overlap_param_gather"],
        "overlap_param_gather_with_optimizer_step": now("optimizer.overlap_param_gather_with_optimizer_step", False),
        "align_param_gather": now("ddp.align_param_gather", False),
        "bucket_size": now("ddp.bucket_size", _DDP_BUCKET),
        "defer_embedding_wgrad_compute": now(f"{model}.defer_embedding_wgrad_compute", False),
        "wgrad_deferral_limit": now(f"{model}.wgrad_deferral_limit", 0),
        "overlap_moe_expert_parallel_comm": wanted["ep_overlap"],
        "delay_wgrad_compute": wanted["delay_wgrad"],
    }


def _without_launch(settings: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in settings.items() if name not in LAUNCH_SETTINGS}


def _check_container(container: object) -> None:
    if not is_container(container):
        raise PolicyError("this is no ConfigContainer: it has no model, ddp and train")


def _check_in_force(variables: Mapping[str, str], environment: Mapping[str, str], release: str) -> None:
    missing = [name for name, value in variables.items() if environment.get(name) != value]
    if missing:
        raise PolicyError(
            f"a container of Megatron-Bridge {release} has no env_vars for {', '.join(missing)}",
            hint="start it with: autotune policy exec FILE -- COMMAND",
        )
