"""Reads a YAML file into a validated value; every complaint says file, line, what is wrong and what would be right."""

from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin

from pydantic import BaseModel, ConfigDict, ValidationError

from autotune.errors import SpaceError
from autotune_policies.documents import Document, read_document
from autotune_policies.errors import PolicyError
from autotune_policies.settings import closest


class Validated(BaseModel):
    """Base of all file models: frozen, no unknown keys, no silent conversion between types."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, populate_by_name=True)


T = TypeVar("T", bound=Validated)


def load(path: Path, model: type[T]) -> T:
    """The value in a YAML file.

    Raises:
        SpaceError: unreadable, not YAML, or not what the model asks for; begins with ``file.yaml:14:``.
    """
    try:
        document = read_document(path.read_text(encoding="utf-8"), path.name)
    except PolicyError as error:
        raise SpaceError(error.message, hint=error.hint) from error
    except (OSError, UnicodeDecodeError) as error:
        raise SpaceError(f"{path}: cannot be read: {error}") from error
    try:
        return model.model_validate(document.value)
    except ValidationError as error:
        raise _explain(document, error, model) from error


def _explain(document: Document, error: ValidationError, model: type[BaseModel]) -> SpaceError:
    """The most telling complaint as one line: a mistyped key also makes the right one missing."""
    complaints = error.errors(include_url=False)
    first = next((complaint for complaint in complaints if complaint["type"] == "extra_forbidden"), complaints[0])
    path = _real_path(document.value, first["loc"])
    where = ".".join(str(part) for part in path)
    key = str(path[-1]) if path else ""
    at = document.at(path)
    if first["type"] == "extra_forbidden":
        return SpaceError(f"{at}: unknown key {where!r}", hint=closest(key, _keys(model, path[:-1])))
    if first["type"] == "missing":
        return SpaceError(f"{at}: key {where!r} is missing")
    context: dict[str, Any] = first.get("ctx", {})
    cause = context.get("error")
    if isinstance(cause, PolicyError):
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
