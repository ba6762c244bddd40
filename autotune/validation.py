"""Reads a YAML file into a validated value; every complaint says file, line, what is wrong and what would be right."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args, get_origin

from pydantic import BaseModel, ConfigDict, StringConstraints, ValidationError

from autotune.errors import RequestError, SpaceError
from autotune_policies.documents import Document, read_document
from autotune_policies.errors import PolicyError
from autotune_policies.settings import closest


class Validated(BaseModel):
    """Base of all file models: frozen, no unknown keys, no silent conversion between types."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, populate_by_name=True)


_Path = tuple[str | int, ...]
EXAMPLES = "autotune spaces show NAME prints one to start from"
"""The way out where a file is no model or cluster file at all."""


class Misplaced(ValueError):  # noqa: N818 - reads as what it is
    """Something wrong in a file, and where below the checked part it stands.

    Attributes:
        message: What is wrong.
        path: Keys and list indices from the checked part down to the mistake.
        hint: The way out, if there is one to name.
    """

    def __init__(self, message: str, path: _Path, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.path = path
        self.hint = hint


@contextmanager
def at(*path: str | int) -> Iterator[None]:
    """What is wrong inside stands at this path, or below it where the error itself says so.

    Raises:
        Misplaced: instead of any ValueError.
    """
    try:
        yield
    except Misplaced as error:
        raise Misplaced(error.message, (*path, *error.path), hint=error.hint) from error
    except PolicyError as error:
        raise Misplaced(error.message, path, hint=error.hint) from error
    except ValueError as error:
        raise Misplaced(str(error), path) from error


T = TypeVar("T", bound=Validated)

Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=80)]
"""Name of a model or a cluster: it becomes part of folder names."""


def read(path: Path) -> Document:
    """The YAML document in a file.

    Raises:
        SpaceError: unreadable, or not YAML.
    """
    try:
        return read_document(path.read_text(encoding="utf-8"), path.name)
    except PolicyError as error:
        raise SpaceError(error.message, hint=error.hint) from error
    except UnicodeDecodeError as error:
        found = error.object[error.start]
        raise SpaceError(f"{path}: is not UTF-8 text: byte {error.start} is {found:#04x}", hint=EXAMPLES) from error
    except OSError as error:
        raise SpaceError(f"{path}: cannot be read: {error.strerror}", hint=EXAMPLES) from error


def load(path: Path, model: type[T]) -> T:
    """The value in a YAML file.

    Raises:
        SpaceError: unreadable, not YAML, or not what the model asks for; what it asks for begins with
            ``file.yaml:14:``.
    """
    return validated(read(path), model)


def validated(document: Document, model: type[T]) -> T:
    """The value of a document.

    Raises:
        SpaceError: not what the model asks for; begins with ``file.yaml:14:``.
    """
    kind = _kind(model)
    if document.value is None:
        raise SpaceError(f"{document.name}:1: is empty, expected a {kind} file", hint=EXAMPLES)
    if not isinstance(document.value, dict):
        found = "list" if isinstance(document.value, list) else "single value"
        raise SpaceError(f"{document.at(())}: is a {found}, expected a {kind} file", hint=EXAMPLES)
    try:
        return model.model_validate(document.value)
    except ValidationError as error:
        raise _explain(document, error, model) from error


def _explain(document: Document, error: ValidationError, model: type[BaseModel]) -> SpaceError:
    """The most telling complaint as one line: a mistyped key also makes the right one missing."""
    complaints = error.errors(include_url=False)
    first = next((complaint for complaint in complaints if complaint["type"] == "extra_forbidden"), complaints[0])
    context: dict[str, Any] = first.get("ctx", {})
    cause = context.get("error")
    path = _real_path(document.value, first["loc"])
    if isinstance(cause, Misplaced):
        path = (*path, *cause.path)
    where = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).removeprefix(".")
    key = str(path[-1]) if path else ""
    at = document.at(path)
    if first["type"] == "extra_forbidden":
        return SpaceError(f"{at}: unknown key {where!r}", hint=closest(key, _keys(model, path[:-1])))
    if first["type"] == "missing":
        return SpaceError(f"{at}: key {where!r} is missing")
    if isinstance(cause, PolicyError | Misplaced):
        return SpaceError(f"{at}: {where}: {cause.message}", hint=cause.hint)
    message = str(cause) if cause is not None else first["msg"][0].lower() + first["msg"][1:]
    got = "" if cause is not None or isinstance(first["input"], dict | list) else f", but got {first['input']!r}"
    return SpaceError(f"{at}: {where}: {message}{got}" if where else f"{at}: {message}{got}")


def _real_path(value: Any, loc: tuple[str | int, ...]) -> tuple[str | int, ...]:
    """The part of pydantic's location that exists in the document: its union tags and ``[key]`` marks do not."""
    path: list[str | int] = []
    for part in loc:
        inside = (isinstance(value, dict) and part in value) or (
            isinstance(value, list) and isinstance(part, int) and part < len(value)
        )
        if inside:
            value = value[part]
            path.append(part)
        elif isinstance(value, dict) and part == loc[-1] and isinstance(part, str) and part != "[key]":
            path.append(part)  # a missing key: named, though it has no line of its own
    return tuple(path)


def _kind(model: type[BaseModel]) -> str:
    """``model``, ``cluster`` or ``guide``: the middle of the schema's name."""
    return str(get_args(model.model_fields["schema_"].annotation)[0]).split(".")[1].split("/")[0]


def _keys(model: type[BaseModel], path: tuple[str | int, ...]) -> list[str]:
    """Legal keys of the model at a path, through nested models and mappings of models."""
    annotation: Any = model
    for part in path:
        if get_origin(annotation) is dict:
            annotation = get_args(annotation)[1]
        elif isinstance(annotation, type) and issubclass(annotation, BaseModel):
            field = annotation.model_fields.get(str(part))
            annotation = field.annotation if field else None
    if not isinstance(annotation, type) or not issubclass(annotation, BaseModel):
        return []
    return [field.alias or name for name, field in annotation.model_fields.items()]


def parse_duration(text: str) -> float:
    """Seconds of a duration such as ``2h``, ``90m``, ``45s`` or ``1.5h``.

    Raises:
        RequestError: anything else, or not above zero.
    """
    units = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
    try:
        seconds = float(text[:-1]) * units[text[-1:]]
    except (KeyError, ValueError):
        seconds = float("nan")
    if not 0 < seconds < float("inf"):
        raise RequestError(f"duration {text!r} is not understood", hint="write a number and a unit: 45s, 90m, 2h, 1d")
    return seconds
