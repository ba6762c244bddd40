"""Assignments in a ConfigContainer: all of them are made, or none."""

import importlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from autotune_policies.errors import PolicyError
from autotune_policies.resolved import ABSENT, Resolved


@dataclass(frozen=True)
class Change:
    """One assignment in a container.

    Attributes:
        path: Dotted path, such as ``model.moe_permute_fusion`` or ``env_vars.USE_MNNVL``.
        value: New value; for ``comm_overlap`` itself the fields of the CommOverlapConfig to build.
        remove: Whether the variable goes instead.
    """

    path: str
    value: Any
    remove: bool = False

    @property
    def is_variable(self) -> bool:
        """Whether it concerns an environment variable."""
        return self.path.startswith("env_vars.")


def make_changes(container: object, changes: list[Change]) -> None:
    """Make all changes, or none.

    Raises:
        PolicyError: a field that cannot be set; what was set before it has its former value again.
    """
    done: list[tuple[Any, str, Any]] = []
    current = ""
    try:
        for assignment in _assignments(container, changes):
            current, owner, name, value = assignment
            before = getattr(owner, name, ABSENT)
            setattr(owner, name, value)
            done.append((owner, name, before))
    except Exception as error:
        for owner, name, before in reversed(done):
            if before is ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, before)
        raise PolicyError(
            f"{type(container).__name__}.{current} cannot be set: {error}", hint="nothing was applied"
        ) from error


def _assignments(container: object, changes: list[Change]) -> Iterator[tuple[str, Any, str, Any]]:
    variables = dict(Resolved(container).raw("env_vars")) if any(row.is_variable for row in changes) else None
    for change in changes:
        if variables is not None and change.is_variable:
            name = change.path.partition(".")[2]
            if change.remove:
                del variables[name]
            else:
                variables[name] = change.value
        elif change.path == "comm_overlap":
            yield "comm_overlap", container, "comm_overlap", overlap_class(container)(**change.value)
        else:
            owner, _, name = change.path.rpartition(".")
            yield change.path, Resolved(container).raw(owner), name, change.value
    if variables is not None:
        yield "env_vars", container, "env_vars", variables


def overlap_class(container: object) -> Any:
    """CommOverlapConfig, from where the container's own class comes from.

    Raises:
        PolicyError: nobody knows the class.
    """
    for cls in type(container).__mro__:
        module = sys.modules.get(cls.__module__) or importlib.import_module(cls.__module__)
        found = getattr(module, "CommOverlapConfig", None)
        if found is not None:
            return found
    raise PolicyError(
        f"{type(container).__name__} has no comm_overlap, and its module no CommOverlapConfig to build one",
        hint="give the recipe a comm_overlap; nothing was applied",
    )
