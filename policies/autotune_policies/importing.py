"""A configuration that a team already has, as a policy: what it says, never how fast it is.

The evidence of such a policy is of the kind ``imported``; it has no numbers and can start a search, or be measured.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from autotune_policies.environment import ALLOWED
from autotune_policies.errors import PolicyError
from autotune_policies.policy import Policy, dump_policy
from autotune_policies.settings import Settings, resolve
from autotune_policies.surroundings import environment_of, launch_of, stale_variables

Role = Literal["seed", "baseline"]
ROLES: tuple[Role, ...] = ("seed", "baseline")

CONTRACT = ("precision", "seq_length", "global_batch_size")
"""Conditions that a source may know of itself; model, cluster and GPUs are always said by the person."""


@dataclass(frozen=True)
class Imported:
    """What a source says.

    Attributes:
        settings: Canonical names and values; what the source does not say is absent.
        env: Variables that it sets.
        contract: Those of :data:`CONTRACT` that it knows, and ``num_gpus`` where it says so.
        stack: Versions by name, as far as it knows them.
        source: Where it came from, in words.
        notes: What it says that a policy cannot.
    """

    settings: Settings
    env: dict[str, str]
    contract: dict[str, Any]
    stack: dict[str, str]
    source: str
    notes: tuple[str, ...] = field(default=())


def policy_from(
    settings: Mapping[str, object],
    env: Mapping[str, str],
    applies_to: Mapping[str, Any],
    source: str,
    *,
    role: Role = "seed",
    notes: tuple[str, ...] = (),
) -> Policy:
    """An imported policy.

    Args:
        settings: Canonical names and values; what is absent is at its default.
        env: Variables; those that no policy may set, or that belong to a dispatcher not chosen, are left out
            (:func:`left_out` names them).
        applies_to: All conditions; versions of the stack are plain texts, and hold for their whole release.
        source: Where it came from, in words.
        role: Whether it starts a search or is what a search has to beat.
        notes: What the source says that the policy cannot.

    Raises:
        PolicyError: an illegal setting, or no valid policy.
    """
    values = resolve(settings)
    dropped = left_out(values, env)
    kept = {name: value for name, value in env.items() if name not in dropped}
    evidence: dict[str, Any] = {"kind": "imported", "role": role, "source": source}
    if notes:
        evidence["note"] = "; ".join(notes)
    policy = Policy(
        applies_to={**applies_to, "stack": {name: _release(text) for name, text in applies_to["stack"].items()}},
        settings=values,
        env={**kept, **environment_of(values)},
        launch=launch_of(values),
        evidence=evidence,
        name=source,
    )
    dump_policy(policy)
    return policy


def left_out(settings: Mapping[str, object], env: Mapping[str, str]) -> tuple[str, ...]:
    """Variables that a policy with these settings cannot say."""
    stale = stale_variables(settings)
    return tuple(name for name in env if name not in ALLOWED or name in stale)


def conditions(found: Imported, given: Mapping[str, Any]) -> dict[str, Any]:
    """``applies_to``: what the person says, or else what the source knows.

    Args:
        found: The source's own words.
        given: What the person says by field; None = nothing. ``stack`` maps names to versions.

    Raises:
        PolicyError: a condition that neither knows.
    """
    known = {**found.contract, **{name: value for name, value in given.items() if value is not None}}
    missing = [name for name in ("model", "cluster", "num_gpus", *CONTRACT) if known.get(name) is None]
    if missing:
        options = " ".join(f"--{name.replace('_', '-')}" for name in missing)
        raise PolicyError(f"{found.source} does not say {', '.join(missing)}", hint=f"say it: {options}")
    stack = {**found.stack, **{name: text for name, text in given.get("stack", {}).items() if text is not None}}
    return {name: known[name] for name in ("model", "cluster", "num_gpus", *CONTRACT)} | {"stack": stack}


def _release(version: str) -> object:
    """A version as its release: names of fields change between releases, not within one."""
    numbers = version.split(".")
    if len(numbers) < 2 or not (numbers[0].isdecimal() and numbers[1].isdecimal()):
        return version
    major, minor = int(numbers[0]), int(numbers[1])
    return {"min": f"{major}.{minor}", "below": f"{major}.{minor + 1}"}
