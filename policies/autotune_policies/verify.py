"""Did training run with what the policy says? Field by field, from what was resolved, after the fact or at start-up.

What a document cannot show (what the launcher did, which versions ran) is listed as unchecked, never taken for granted.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from autotune_policies.applicability import describe, holds
from autotune_policies.apply import detect_stack
from autotune_policies.bridge_fields import effective, fields_by_group, model_path
from autotune_policies.container_facts import contract_of
from autotune_policies.errors import PolicyError
from autotune_policies.megatron_bridge import bridge_release_of, has_environment, is_container, read_container
from autotune_policies.model_facts import other_model, other_precision, other_tokens, own_variables
from autotune_policies.policy import Policy
from autotune_policies.resolved import ABSENT, OPAQUE, Difference, Resolved
from autotune_policies.same import alone, judged_alone, same_field, same_setting
from autotune_policies.settings import FLEX_DISPATCHERS, SETTINGS, Settings
from autotune_policies.silent_changes import explained, suspects
from autotune_policies.surroundings import stale_variables

_HINT = "logger.save_config_filepath saves one"
_UNRECORDED = "not in this record"
_BETWEEN_REPLICAS = ("overlap_grad_reduce", "overlap_param_gather")

__all__ = ["Difference", "Verification", "inspect_container", "inspect_settings", "verify_container"]


@dataclass(frozen=True)
class Verification:
    """What became of a policy in one run.

    Attributes:
        differences: Fields of the policy with another value in force; empty = it ran as the policy says.
        suspects: Silent changes beside the policy's own fields that the configuration shows.
        checked: Fields that were compared.
        unchecked: What could not be seen, each with the reason.
    """

    differences: tuple[Difference, ...]
    suspects: tuple[Difference, ...]
    checked: tuple[str, ...]
    unchecked: dict[str, str]


def verify_container(
    policy: Policy, resolved: object, *, megatron_core: str | None = None, megatron_bridge: str | None = None
) -> list[Difference]:
    """The fields of the policy that a resolved ConfigContainer has differently.

    Args:
        policy: What should have run.
        resolved: A ConfigContainer after start-up, or the mapping of a saved ConfigContainer.yaml.
        megatron_core: Release that ran; None = as the policy says, or else the installed one.
        megatron_bridge: The same for Megatron-Bridge.

    Raises:
        PolicyError: no ConfigContainer, a release that cannot be known, or one that cannot express the policy.
    """
    found = inspect_container(policy, resolved, megatron_core=megatron_core, megatron_bridge=megatron_bridge)
    return list(found.differences)


def inspect_container(
    policy: Policy,
    resolved: object,
    *,
    megatron_core: str | None = None,
    megatron_bridge: str | None = None,
    environment: Mapping[str, str] | None = None,
    facts: Mapping[str, object] | None = None,
) -> Verification:
    """The same as :func:`verify_container`, with what was checked and what could not be.

    Args:
        policy: What should have run.
        resolved: As above.
        megatron_core: As above.
        megatron_bridge: As above.
        environment: The variables of the running process, which count more than the container's ``env_vars``: what a
            shell has set is not replaced. None = only the container is known.
        facts: What else is known of the run, by field of ``applies_to`` (parts of the stack as ``stack.<name>``).
    """
    view = Resolved(resolved)
    if not is_container(resolved):
        raise PolicyError("this is no ConfigContainer: it has no model, ddp and train", hint=_HINT)
    core = megatron_core or release_that_ran(policy, "megatron_core")
    bridge = megatron_bridge or release_that_ran(policy, "megatron_bridge")
    bridge_release_of(bridge)
    model = model_path(view)
    settings = {name: value for name, value in policy.settings.items() if SETTINGS[name].home != "launch"}
    groups = fields_by_group(settings, core, model)
    rendered = {path: value for fields in groups.values() for path, value in fields.items()}
    opaque = {path: repr(OPAQUE) for path in rendered if view.get(path) is OPAQUE}
    # What was saved without its content cannot be compared; the policy's value in its place keeps the rest readable.
    readable = _patched(resolved, {path: rendered[path] for path in opaque})
    rows = _canonical(policy, readable, core, bridge)
    if rows is None:
        numbers, others = _of_another_kind(rendered, view)
        rows = _canonical(policy, _patched(readable, numbers | {row.field: row.wanted for row in others}), core, bridge)
        rows = None if rows is None else [*rows, *others]
    unreadable = rows is None
    for path, wanted in rendered.items():
        found = view.get(path)
        judged = unreadable or judged_alone(path) or _is_text(path, found)
        if path not in opaque and judged and not same_field(path, wanted, found, view):
            rows = [*(rows or []), Difference(path, wanted, found)]
    if rows is None:
        rows = [Difference("settings", "legal values", "a value that no setting can have")]
    variables, unseen = _variables(policy, view, bridge, environment)
    precision = describe(policy.applies_to["precision"])
    told = contract_of(view, precision)
    if (contradiction := other_precision(view, precision)) is not None:
        told["precision"] = contradiction
    contract, known, unknown = _contract(policy, {**told, **(facts or {})})
    shape, compared = other_model(policy, view)
    if compared and "model" in unknown:
        unknown["model"] = "its name is not in this record; its shape was compared"
    checked = (
        *(path for path in rendered if path not in opaque), *(f"env_vars.{name}" for name in policy.env),
        *known, *compared,
    )  # fmt: skip
    in_force = environment if environment is not None else view.get("env_vars")
    beside = own_variables(policy, in_force if isinstance(in_force, Mapping) else {})
    return Verification(
        (*(explained(row, view) for row in (*rows, *variables)), *contract, *shape, *other_tokens(policy, view)),
        (*suspects(view), *beside),
        tuple(name for name in checked if name not in unseen),
        {**unknown, **opaque, **unseen, **_launch(policy)},
    )


def inspect_settings(
    policy: Policy,
    found: Mapping[str, object],
    facts: Mapping[str, object],
    environment: Mapping[str, str] | None = None,
) -> Verification:
    """The same for canonical settings that were read from elsewhere: a trial's record, a log's argument dump.

    Args:
        policy: What should have run.
        found: Canonical settings in force; what nobody could see is absent.
        facts: What is known of the run, by field of ``applies_to`` (parts of the stack as ``stack.<name>``).
        environment: The variables of the running process; None = unknown.
    """
    view = Resolved({})
    seen = dict(found)
    variables: list[Difference] = []
    unseen: dict[str, str] = {}
    if environment is None:
        unseen = {f"env.{name}": _UNRECORDED for name in policy.env}
    else:
        variables = _differing_variables(policy, "env", environment)
        seen = {name: value for name, value in policy.settings.items() if SETTINGS[name].home == "env"} | seen
    rows = [explained(row, view) for row in _differing_settings(policy.settings, seen)]
    contract, known, unknown = _contract(policy, facts)
    unseen |= {name: _UNRECORDED for name in policy.settings if name not in seen}
    checked = [name for name in policy.settings if name in seen]
    return Verification((*rows, *variables, *contract), (), (*checked, *known), unknown | unseen | _launch(policy))


def release_that_ran(policy: Policy, name: str) -> str:
    """The release of a part of the stack: the policy's own, or the installed one where the policy gives a range.

    Raises:
        PolicyError: neither tells.
    """
    condition = policy.applies_to["stack"].get(name)
    exact = condition.get("exact") if isinstance(condition, Mapping) else condition
    installed = detect_stack().get(name)
    release = exact or installed
    if release is None:
        option = f"--{name.replace('_', '-')}"
        raise PolicyError(f"nobody knows which {name} ran: the policy does not pin it", hint=f"name it: {option}")
    return str(release)


def _canonical(policy: Policy, container: object, core: str, bridge: str) -> list[Difference] | None:
    """The canonical settings that differ; None = a value has no canonical form, so the fields have to tell."""
    try:
        found = read_container(container, megatron_core=core, megatron_bridge=bridge)
    except (PolicyError, TypeError, ValueError, ArithmeticError, LookupError, AttributeError):  # anything was saved
        return None
    # Variables are compared by their own names.
    seen = {name: value for name, value in found.items() if SETTINGS[name].home != "env"}
    if alone(Resolved(container)):
        seen = {
            name: value for name, value in seen.items() if name not in ("overlap_grad_reduce", "overlap_param_gather")
        }
    wanted = effective(policy.settings)
    unsaid = [name for name in wanted if SETTINGS[name].home in ("ddp", "training") and name not in found]
    return [*_differing_settings(wanted, seen), *(Difference(name, wanted[name], ABSENT) for name in unsaid)]


def _of_another_kind(rendered: Mapping[str, object], view: Resolved) -> tuple[dict[str, object], list[Difference]]:
    """Numbers in another form than the policy's (``108.0``), and values that no switch or number can have."""
    numbers: dict[str, object] = {}
    others: list[Difference] = []
    for path, wanted in rendered.items():
        found = view.get(path)
        if not isinstance(wanted, int | float) or found is None or found is ABSENT:
            continue
        if isinstance(found, float) and found.is_integer() and not isinstance(wanted, bool):
            numbers[path] = int(found)
        elif not isinstance(found, type(wanted)) or isinstance(found, bool) != isinstance(wanted, bool):
            others.append(Difference(path, wanted, found))
    return numbers, others


def _patched(container: object, values: Mapping[str, object]) -> object:
    """The container with other values at these paths; it is not changed itself."""
    root: object = container
    for path, value in values.items():
        root = _replaced(root, path.split("."), value)
    return root


def _replaced(holder: object, names: list[str], value: object) -> object:
    first, *rest = names
    inner = value if not rest else _replaced(Resolved(holder).raw(first), rest, value)
    if isinstance(holder, Mapping):
        return {**holder, first: inner}
    return _Over(holder, first, inner)


class _Over:
    """An object of which one attribute is another."""

    def __init__(self, under: object, name: str, value: object) -> None:
        self._under = under
        setattr(self, name, value)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._under, name)


def _is_text(path: str, found: object) -> bool:
    """Graph modules as one text: they compare equal to no module. ``full`` is an older word for none in particular."""
    graphs = path.endswith((".cuda_graph_modules", ".cuda_graph_scope"))
    return graphs and isinstance(found, str) and found not in ("", "full")


def _variables(
    policy: Policy, view: Resolved, bridge: str, environment: Mapping[str, str] | None
) -> tuple[list[Difference], dict[str, str]]:
    """Variables that differ, and what a saved container cannot tell of them and of what happens while it runs."""
    saved = view.raw("env_vars")
    unseen: dict[str, str] = {}
    if environment is None:
        if not isinstance(saved, Mapping) and not has_environment(bridge):
            missing = f"a container of Megatron-Bridge {bridge} has no variables"
            return [], {f"env_vars.{name}": missing for name in policy.env} | _unseen(policy)
        unseen = _unseen(policy)
    variables = environment if environment is not None else saved if isinstance(saved, Mapping) else {}
    return _differing_variables(policy, "env_vars", variables), unseen


def _differing_variables(policy: Policy, section: str, variables: Mapping[str, object]) -> list[Difference]:
    """Variables of the policy with another value, and those that must not be there at all."""
    wanted = {**policy.env, **dict.fromkeys(stale_variables(policy.settings), ABSENT)}
    rows = [Difference(f"{section}.{name}", value, variables.get(name, ABSENT)) for name, value in wanted.items()]
    return [row for row in rows if str(row.found) != str(row.wanted)]


def _differing_settings(wanted: Settings, found: Mapping[str, object]) -> Iterator[Difference]:
    for name, value in wanted.items():
        unsaid = value is None and SETTINGS[name].home == "env"
        if name in found and not unsaid and not same_setting(name, value, found[name], found):
            yield Difference(name, value, found[name])


def _contract(policy: Policy, facts: Mapping[str, object]) -> tuple[list[Difference], list[str], dict[str, str]]:
    """Conditions of ``applies_to`` that differ, those that were looked at, and those that nobody knows."""
    conditions = {name: condition for name, condition in policy.applies_to.items() if name != "stack"}
    conditions |= {f"stack.{name}": condition for name, condition in policy.applies_to["stack"].items()}
    rows, known, unknown = [], [], {}
    for name, condition in conditions.items():
        fact = facts.get(name)
        if fact is None:
            unknown[name] = _UNRECORDED
        else:
            known.append(name)
            if not holds(condition, fact):
                rows.append(Difference(name, describe(condition), fact))
    return rows, known, unknown


def _unseen(policy: Policy) -> dict[str, str]:
    """What happens beside the configuration, where only a saved one is known."""
    unseen = {"environment": "a variable that the shell had set is not replaced by env_vars; only the process knows"}
    if policy.settings["dispatcher"] in FLEX_DISPATCHERS:
        unseen["GPU"] = "a container that is saved without a CUDA device keeps a backend that the GPU may not run"
    if policy.settings["rank_capacity_factor"] is not None:
        unseen["dropped tokens"] = "tokens above an expert rank's capacity are dropped while it runs"
    return unseen


def _launch(policy: Policy) -> dict[str, str]:
    return {f"launch.{name}": "only the launcher knows" for name in policy.launch}
