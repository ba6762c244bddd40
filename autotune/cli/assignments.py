"""Settings and versions from the command line: ``--set KEY=VALUE``, ``--settings FILE``, ``--stack NAME=VERSION``."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from autotune.errors import RequestError
from autotune_policies.documents import read_document
from autotune_policies.errors import PolicyError
from autotune_policies.settings import SETTINGS, Setting, Settings, check_value, closest

VERSIONED = ("megatron_core", "transformer_engine", "deep_ep", "torch")
"""What rules ask the version of."""


def assigned(texts: Sequence[str]) -> Settings:
    """Settings from ``KEY=VALUE`` texts: a value as YAML writes it, or as ``plan`` prints it (``a,b``, ``none``).

    Raises:
        RequestError: a text without a value, an unknown name, a name that stands twice, or no such value.
        PolicyError: a value that the setting cannot have.
    """
    given: Settings = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise RequestError(f"--set {text!r} has no value", hint="write --set key=value")
        if name not in SETTINGS:
            raise RequestError(f"unknown setting {name!r}", hint=closest(name, SETTINGS))
        if name in given:
            raise RequestError(f"--set {name} stands twice", hint="say it once; a list is written a,b or [a, b]")
        given[name] = check_value(name, _value(SETTINGS[name], value.strip()))
    return given


def read_settings(path: Path) -> Settings:
    """Settings from a file: a mapping in JSON or YAML, e.g. ``settings`` of an entry of ``plan --json``.

    Raises:
        RequestError: a file that cannot be read, or holds no mapping of settings.
        PolicyError: broken YAML, or a value that a setting cannot have.
    """
    try:
        raw = read_document(path.read_text(encoding="utf-8"), path.name).value
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else "not a text file"
        raise RequestError(f"{path.name}: cannot be read as settings: {why}") from error
    if not isinstance(raw, Mapping):
        hint = "it is what plan --json has under settings: {expert_parallel: 8, ...}"
        raise RequestError(f"{path.name}: must be a mapping of settings, but is {type(raw).__name__}", hint=hint)
    for name in raw:
        if name not in SETTINGS:
            raise RequestError(f"{path.name}: unknown setting {name!r}", hint=closest(str(name), SETTINGS))
    return {name: check_value(name, value) for name, value in raw.items()}


def versions(texts: Sequence[str]) -> dict[str, str]:
    """Versions by library from ``NAME=VERSION`` texts.

    Raises:
        RequestError: a text without a version, a name that no rule asks for, or one that stands twice.
    """
    found: dict[str, str] = {}
    for text in texts:
        name, equals, version = text.partition("=")
        if not equals or not version:
            raise RequestError(f"--stack {text!r} has no version", hint="write --stack megatron_core=0.19.2")
        name = name.replace("-", "_")
        if name not in VERSIONED:
            raise RequestError(f"--stack {name}: no rule asks for its version", hint=closest(name, VERSIONED))
        if name in found:
            raise RequestError(f"--stack {name} stands twice", hint="say it once")
        if not version[:1].isdigit():
            raise RequestError(f"--stack {text!r}: a version begins with a number", hint=f"write --stack {name}=2.14.0")
        found[name] = version
    return found


def _value(setting: Setting, text: str) -> Any:
    """What is meant; words that YAML reads otherwise are read as the kind of the setting says."""
    if text == "none" and "none" not in setting.choices:
        return [] if setting.kind == "list" else None
    if setting.kind == "list" and not text.startswith("[") and text not in ("null", "~", ""):
        return [item.strip() for item in text.split(",")]
    if setting.kind in ("int", "float") and (number := _number(text)) is not None:
        return number
    try:
        return read_document(text, f"--set {setting.name}").value
    except PolicyError as error:
        raise RequestError(
            f"--set {setting.name}={text}: not a YAML value", hint="quote what YAML reads otherwise"
        ) from error


def _number(text: str) -> int | float | None:
    """The number that a text is; YAML takes ``1e-9`` for a word."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return None
