"""A configuration as it was really used: an object, or the mapping of a saved file, read by dotted paths."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

import yaml

from autotune_policies.documents import YAML_ERRORS, unreadable
from autotune_policies.errors import PolicyFormatError


class _Word:
    """A value that no configuration holds."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


ABSENT = _Word("absent")
"""Nothing stands at the path."""

OPAQUE = _Word("an object that was saved without its content")
"""Something stands there, but nobody can tell what it was."""


class Resolved:
    """A resolved configuration that is read the same way whatever form it has.

    Args:
        root: Object with attributes, or mapping; both may be nested in each other.
    """

    def __init__(self, root: object) -> None:
        self.root = root

    def get(self, path: str) -> Any:
        """The plain value at a dotted path, such as ``model.num_moe_experts``; :data:`ABSENT` where there is none."""
        return plain(self.raw(path))

    def raw(self, path: str) -> Any:
        """The value at a dotted path as it stands there."""
        value: Any = self.root
        for name in path.split("."):
            value = value.get(name, ABSENT) if isinstance(value, Mapping) else getattr(value, name, ABSENT)
            if value is ABSENT:
                return ABSENT
        return value

    def target(self, path: str) -> str:
        """Class name of what stands at a path, from the object or from its saved ``_target_``; empty = unknown."""
        value = self.raw(path)
        if isinstance(value, Mapping):
            return str(value.get("_target_", ""))
        return "" if value is None or value is ABSENT else type(value).__qualname__


def plain(value: Any) -> Any:
    """A value without the forms that objects and their YAML have: enums by name, tuples as lists.

    An enum is saved as ``{_target_: module.Class, _args_: [2], _name_: attn}``; a parsed pipeline layout keeps what
    it was built from.
    """
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, Mapping):
        if "_name_" in value:
            return value["_name_"]
        if "_target_" in value and not set(value) - {"_target_", "_call_"}:
            return OPAQUE
        return {name: plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    source = getattr(value, "input_data", None)
    return value if source is None else plain(source)


@dataclass(frozen=True)
class Difference:
    """A field of which something else is in force than a policy says.

    Attributes:
        field: Canonical setting, dotted path in the configuration, or variable.
        wanted: Value that the policy says.
        found: Value in force.
        why: How it happens, where this is a known silent change; empty otherwise.
        remedy: What to do about it; empty where nothing is known.
    """

    field: str
    wanted: object
    found: object
    why: str = ""
    remedy: str = ""


_MAX_PARTS = 100_000
"""Keys and values; a saved configuration has fewer than two thousand."""


def read_resolved(path: str | os.PathLike[str]) -> Mapping[str, Any]:
    """The mapping in a saved configuration; unlike a policy it may repeat parts of itself by alias.

    Raises:
        PolicyFormatError: broken YAML, or no mapping; the message begins with the file, and the line where known.
        OSError: the file cannot be read.
    """
    name = os.fspath(path)
    with open(path, encoding="utf-8", errors="replace") as file:
        text = file.read()
    try:
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        if node is not None and _written_out(node, {}) > _MAX_PARTS:
            raise PolicyFormatError(f"{name}: written out without aliases it has more than {_MAX_PARTS} parts")
        document = None if node is None else loader.construct_document(node)
    except PolicyFormatError:
        raise
    except YAML_ERRORS as error:
        raise unreadable(name, error) from error
    if not isinstance(document, Mapping):
        raise PolicyFormatError(f"{name}: a configuration is a mapping", hint="logger.save_config_filepath saves one")
    return document


def _written_out(node: yaml.Node, known: dict[int, int | None]) -> int:
    """Parts that a node has once every alias in it is replaced by what it names, without replacing any.

    Raises:
        ValueError: a part that contains itself.
    """
    if id(node) not in known:
        known[id(node)] = None
        inner = [] if isinstance(node, yaml.ScalarNode) else node.value
        parts = [part for item in inner for part in (item if isinstance(item, tuple) else (item,))]
        known[id(node)] = 1 + sum(_written_out(part, known) for part in parts)
    count = known[id(node)]
    if count is None:
        raise ValueError("a part of it contains itself")
    return count
