"""``<file>.yaml`` beside another program's table: what its columns mean. Read strictly: a slip is no new column."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from autotune.errors import RequestError
from autotune.predict.columns import QUANTITIES, READ, is_read, quantity_of
from autotune_policies.documents import Document, read_document
from autotune_policies.errors import PolicyError
from autotune_policies.settings import closest

_PARTS = ("groups", "parameters", "objectives", "context", "models", "failed_when")
_MEANING = {"parameters": ("name", "values", "example"), "objectives": ("name", "values", "direction", "example")}


@dataclass(frozen=True)
class Sidecar:
    """What a sidecar says; without one every column has its own name.

    Attributes:
        names: New names of columns.
        values: By column: what its values are called here.
        context: Columns that are the same in all rows.
        groups: Columns that tell groups of comparable rows apart.
        models: Fields of model shapes by model name.
        failed_when: Columns that mark a failed run, and how: ``missing`` or a value.
    """

    names: Mapping[str, str] = field(default_factory=dict)
    values: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    context: Mapping[str, str] = field(default_factory=dict)
    groups: tuple[str, ...] = ()
    models: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    failed_when: Mapping[str, str] = field(default_factory=dict)


def read_sidecar(table: Path) -> Sidecar:
    """The sidecar of a table; an empty one where there is none.

    Raises:
        RequestError: a file that cannot be read, or a part, a key or a name that is not known (with its line).
    """
    path = table.with_name(f"{table.name}.yaml")
    if not path.exists():
        return Sidecar()
    try:
        document = read_document(path.read_text(encoding="utf-8"), path.name)
    except (OSError, UnicodeDecodeError, PolicyError) as error:
        raise RequestError(f"{path.name}: cannot be read: {error}") from error
    raw = document.value
    if not isinstance(raw, Mapping):
        raise RequestError(f"{path.name}: must be a mapping, but is {type(raw).__name__}")
    for part in raw:
        if part not in _PARTS:
            raise RequestError(f"{document.at((part,))}: {part!r} is not known", hint=closest(str(part), _PARTS))
    names: dict[str, str] = {}
    values: dict[str, Mapping[str, str]] = {}
    for part in _MEANING:
        for column, meaning in _mapping(document, part).items():
            names[column] = _name(document, part, column, meaning)
            given = meaning.get("values", {})
            if not isinstance(given, Mapping):
                raise RequestError(f"{document.at((part, column, 'values'))}: values must be a mapping of texts")
            values[column] = {str(key): str(value) for key, value in given.items()}
    groups = raw.get("groups", [])
    if not isinstance(groups, list):
        raise RequestError(f"{document.at(('groups',))}: groups must be a list of columns, but got {groups!r}")
    context = {
        name: ",".join(map(str, value)) if isinstance(value, list) else str(value)
        for name, value in _mapping(document, "context").items()
    }
    failed_when = {name: str(value) for name, value in _mapping(document, "failed_when").items()}
    models = {str(name): shape for name, shape in _mapping(document, "models").items()}
    return Sidecar(names, values, context, tuple(map(str, groups)), models, failed_when)


def require_columns(sidecar: Sidecar, header: Sequence[str], table: Path) -> None:
    """Refuse a sidecar that speaks of columns which the table does not have.

    Raises:
        RequestError: names the column, and the closest that exist.
    """
    for column in (*sidecar.names, *sidecar.groups, *sidecar.failed_when):
        if column not in header and column not in sidecar.context:
            raise RequestError(f"{table.name}.yaml: the table has no column {column!r}", hint=closest(column, header))


def _name(document: Document, part: str, column: str, meaning: object) -> str:
    where = document.at((part, column))
    name = meaning.get("name") if isinstance(meaning, Mapping) else None
    if not isinstance(meaning, Mapping) or not isinstance(name, str):
        raise RequestError(f"{where}: {column} needs a name", hint="write {name: step_time_ms}")
    for key in meaning:
        if key not in _MEANING[part]:
            raise RequestError(f"{where}: {column}: {key!r} is not known", hint=closest(str(key), _MEANING[part]))
    if part == "objectives" and quantity_of(name)[0] not in QUANTITIES:
        raise RequestError(f"{where}: {name!r} is no measured quantity", hint=closest(name, QUANTITIES))
    if part == "parameters" and not is_read(name):
        raise RequestError(f"{where}: {name!r} is no column that is read", hint=_near(name))
    return name


def _near(name: str) -> str:
    hint = closest(name, READ)
    return hint if hint.startswith("did you mean") else "canonical settings, num_gpus, global_batch_size, ..."


def _mapping(document: Document, name: str) -> Mapping[str, Any]:
    value = document.value.get(name, {})
    if not isinstance(value, Mapping):
        raise RequestError(f"{document.at((name,))}: {name} must be a mapping, but got {value!r}")
    return value
