"""YAML files whose errors say file and line; every YAML file of the product is read here.

Only plain data is accepted (the safe loader's types, no aliases); a key that stands twice is an error, since
YAML itself would silently keep the last one.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import yaml
from yaml.composer import Composer
from yaml.constructor import SafeConstructor
from yaml.resolver import Resolver

from autotune_policies.errors import PolicyFormatError

if yaml.__with_libyaml__:
    from yaml._yaml import CParser

    class _Loader(Composer, CParser, SafeConstructor, Resolver):
        """The safe loader on libyaml's scanner, which is ten times as fast.

        Nodes are composed in Python all the same: there too deep a nesting is an error, in C it would be a crash.
        """

        def __init__(self, stream: str) -> None:
            CParser.__init__(self, stream)
            Composer.__init__(self)
            SafeConstructor.__init__(self)
            Resolver.__init__(self)
else:
    from yaml import SafeLoader as _Loader  # type: ignore[assignment]

Path = tuple[str | int, ...]


class Document(NamedTuple):
    """A YAML document and where each part of it stands.

    Attributes:
        name: File name for messages.
        value: The plain data.
        lines: Line (from 1) of the key or list item at each path, e.g. ``("parameters", "num_sms", "choices", 2)``.
    """

    name: str
    value: Any
    lines: Mapping[Path, int]

    def at(self, path: Path) -> str:
        """``file.yaml:14`` for the innermost part of the path that exists."""
        for end in range(len(path), -1, -1):
            line = self.lines.get(tuple(path[:end]))
            if line is not None:
                return f"{self.name}:{line}"
        return self.name


def read_document(text: str, name: str) -> Document:
    """The document in a YAML text.

    Raises:
        PolicyFormatError: broken YAML, a tag that is not plain data, or a key that stands twice; the message
            begins with ``name:line:``.
    """
    lines: dict[Path, int] = {}
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is None:
            return Document(name, None, {})
        _locate(loader, node, (), lines, name, set())
        value = loader.construct_document(node)
    except PolicyFormatError:
        raise
    except YAML_ERRORS as error:
        raise unreadable(name, error) from error
    return Document(name, value, lines)


YAML_ERRORS = (yaml.YAMLError, ValueError, LookupError, TypeError, AttributeError, RecursionError)
"""What PyYAML raises on a text that it cannot make plain data of: a tag like `!!int ""` makes it fail in many ways."""


def unreadable(name: str, error: Exception) -> PolicyFormatError:
    """What one of ``YAML_ERRORS`` says of a file, with the line where it is known."""
    if isinstance(error, yaml.MarkedYAMLError):
        mark = error.problem_mark or error.context_mark
        where = f"{name}:{mark.line + 1}" if mark else name
        return PolicyFormatError(f"{where}: {error.problem or error.context}")
    reason = (str(error).splitlines() or [type(error).__name__])[0]
    return PolicyFormatError(f"{name}: not readable as YAML: {reason}")


def _locate(loader: _Loader, node: yaml.Node, path: Path, lines: dict[Path, int], name: str, seen: set[int]) -> None:
    lines.setdefault(path, node.start_mark.line + 1)
    if id(node) in seen:  # an alias is the same node again; nested ones would multiply without bound
        line = node.start_mark.line + 1
        raise PolicyFormatError(f"{name}:{line}: anchors and aliases are not used here; write it out")
    seen.add(id(node))
    if isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            _locate(loader, item, (*path, index), lines, name, seen)
    elif isinstance(node, yaml.MappingNode):
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode):
                raise PolicyFormatError(f"{name}:{line}: a key must be a plain word")
            key = loader.construct_object(key_node)
            if (*path, key) in lines:
                raise PolicyFormatError(f"{name}:{line}: key {key!r} stands twice, first in line {lines[(*path, key)]}")
            lines[(*path, key)] = line
            _locate(loader, value_node, (*path, key), lines, name, seen)
