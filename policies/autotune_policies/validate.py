"""Is this document a policy v1? The same verdict as ``schema/policy-v1.schema.json``, with file and line.

A training container has no schema library, and a person who edits a policy by hand needs to know the line.
"""

import math
import re
from collections.abc import Callable
from typing import Any

from autotune_policies.applicability import FIELDS, check_condition, kind_of
from autotune_policies.documents import Document
from autotune_policies.environment import check_variable
from autotune_policies.errors import PolicyError, PolicyFormatError
from autotune_policies.settings import SETTINGS, check_value, closest
from autotune_policies.surroundings import check_hybrid_ep, environment_of, launch_of

SCHEMA = "autotune.policy/v1"
KEYS = ("schema", "applies_to", "settings", "env", "launch", "evidence", "alternatives", "fallback")
KINDS = ("measured", "replayed", "predicted", "imported")

_OPTIONAL = ("alternatives", "fallback")
_MEASUREMENT = (
    "study", "trial", "routing", "step_time_s", "tokens_per_s_per_gpu", "peak_memory_bytes", "fingerprint",
)  # fmt: skip
"""Without these nobody can tell what was measured, so it is no measurement."""
_NUMBERS = ("trial", "step_time_s", "tokens_per_s_per_gpu", "tflops_per_gpu", "mfu", "peak_memory_bytes")
"""What only a run can know."""
_UNMEASURED = {
    "predicted": "what is predicted is named predicted_step_time_s and so on",
    "imported": "nothing was measured",
}
"""Kinds without such numbers, with the way out."""
_POSITIVE = ("tokens_per_s_per_gpu", "tflops_per_gpu", "mfu", "peak_memory_bytes", "num_gpus")

_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")

Part = tuple[str | int, ...]
Fail = Callable[..., PolicyFormatError]


def check_policy(document: Document) -> dict[str, Any]:
    """The document's data, if it is a policy v1.

    Raises:
        PolicyFormatError: it is not; the message begins with file and line.
    """

    def fail(path: Part, message: str, hint: str | None = None) -> PolicyFormatError:
        return PolicyFormatError(f"{document.at(path)}: {message}", hint=hint)

    root = document.value
    if not isinstance(root, dict):
        raise fail((), "a policy is a mapping", f"it begins with 'schema: {SCHEMA}'")
    _check_plain(root, (), fail)
    if root.get("schema") != SCHEMA:
        raise fail(("schema",), f"schema is {root.get('schema')!r}, but this reads {SCHEMA!r}")
    _check_keys(root, (), KEYS, _OPTIONAL, fail)
    _check_applies_to(_mapping(root, ("applies_to",), fail), fail)
    _check_settings(_mapping(root, ("settings",), fail), ("settings",), fail)
    _check_env(_mapping(root, ("env",), fail), fail)
    _check_launch(_mapping(root, ("launch",), fail), fail)
    _check_surroundings(root, fail)
    _check_evidence(_mapping(root, ("evidence",), fail), fail)
    _check_place(root["applies_to"], root["evidence"], fail)
    _check_alternatives(root.get("alternatives", []), fail)
    if root.get("fallback") is not None:
        _check_settings(_mapping(root, ("fallback",), fail), ("fallback",), fail)
    return root


def _check_applies_to(conditions: dict[str, Any], fail: Fail) -> None:
    _check_keys(conditions, ("applies_to",), FIELDS, (), fail)
    stack = _mapping(conditions, ("applies_to", "stack"), fail)
    if "megatron_core" not in stack:
        raise fail(("applies_to", "stack"), "stack has no megatron_core", "its release names the fields")
    for name, condition in conditions.items():
        if name != "stack":
            _check_condition(kind_of(name), condition, ("applies_to", name), fail)
    for name, condition in stack.items():
        _check_condition("version", condition, ("applies_to", "stack", name), fail)


def _check_condition(kind: str, condition: object, path: Part, fail: Fail) -> None:
    try:
        check_condition(kind, condition)
    except PolicyError as error:
        raise fail(path, f"{_dotted(path)} {error.message}", error.hint) from error


def _check_settings(values: dict[str, Any], path: Part, fail: Fail) -> None:
    for name in values:
        try:
            check_value(name, values[name])
        except PolicyError as error:
            raise fail((*path, name), error.message, error.hint) from error
    _check_keys(values, path, tuple(SETTINGS), (), fail)


def _check_env(env: dict[str, Any], fail: Fail) -> None:
    for name, value in env.items():
        try:
            check_variable(name, value)
        except PolicyError as error:
            raise fail(("env", name), error.message, error.hint) from error


def _check_launch(launch: dict[str, Any], fail: Fail) -> None:
    legal = ("numa_binding", "segment")
    _check_keys(launch, ("launch",), legal, legal, fail)
    if "segment" in launch:
        _check_count(launch["segment"], ("launch", "segment"), fail)
    if "numa_binding" in launch:
        path = ("launch", "numa_binding")
        binding = _mapping(launch, path, fail)
        _check_keys(binding, path, ("gpus_per_numa_node",), (), fail)
        _check_count(binding["gpus_per_numa_node"], (*path, "gpus_per_numa_node"), fail)


def _check_surroundings(root: dict[str, Any], fail: Fail) -> None:
    """What the settings ask of the environment and the launcher is what ``env`` and ``launch`` say."""
    settings = root["settings"]
    for key, wanted in (("env", environment_of(settings)), ("launch", launch_of(settings))):
        for name, value in wanted.items():
            found = root[key].get(name)
            if found != value:
                path = (key, name) if name in root[key] else (key,)
                raise fail(path, f"{key}.{name} is {found!r}, but the settings ask for {value!r}")
    try:
        check_hybrid_ep(settings, root["env"])
    except PolicyError as error:
        name = error.message.split(" ", 1)[0]
        raise fail(("env", name), f"env.{error.message}", error.hint) from error


def _check_evidence(evidence: dict[str, Any], fail: Fail) -> None:
    kind = evidence.get("kind")
    if kind not in KINDS:
        raise fail(("evidence", "kind"), f"evidence.kind is {kind!r}", f"legal: {', '.join(KINDS)}")
    if kind == "measured":
        for name in _MEASUREMENT:
            if evidence.get(name) is None:
                raise fail(("evidence",), f"evidence.kind is measured, but {name} is missing")
    if kind in _UNMEASURED:
        for name in _NUMBERS:
            if evidence.get(name) is not None:
                message = f"evidence.kind is {kind}, but {name} is given"
                raise fail(("evidence", name), message, _UNMEASURED[kind])
    _check_origin(evidence, fail)
    for name in _POSITIVE:
        if evidence.get(name) is not None:
            _check_positive(evidence[name], ("evidence", name), fail)
    for name in ("routing", "step_time_s", "contract"):
        if evidence.get(name) is not None:
            _mapping(evidence, ("evidence", name), fail)
    step_time = evidence.get("step_time_s")
    if step_time is not None:
        path = ("evidence", "step_time_s")
        if "median" not in step_time:
            raise fail(path, "evidence.step_time_s has no median")
        _check_positive(step_time["median"], (*path, "median"), fail)
        _check_interval(step_time.get("ci95"), step_time["median"], (*path, "ci95"), fail)


def _check_origin(evidence: dict[str, Any], fail: Fail) -> None:
    """Which trial it was, and when."""
    trial, created_at = evidence.get("trial"), evidence.get("created_at")
    if trial is not None and (isinstance(trial, bool) or not isinstance(trial, int) or trial < 0):
        raise fail(("evidence", "trial"), f"evidence.trial is {trial!r}, but it is a whole number of at least 0")
    if created_at is None:
        return
    from datetime import datetime

    try:
        legal = isinstance(created_at, str) and _DATE.match(created_at) and datetime.fromisoformat(created_at)
    except ValueError:
        legal = None
    if not legal:
        message = f"evidence.created_at is {created_at!r}, which is no date"
        raise fail(("evidence", "created_at"), message, "such as '2026-01-02T03:04:05+00:00'")


def _check_place(applies_to: dict[str, Any], evidence: dict[str, Any], fail: Fail) -> None:
    """A policy that holds for one number of GPUs was made on that number."""
    condition, num_gpus = applies_to["num_gpus"], evidence.get("num_gpus")
    exact = condition.get("exact") if isinstance(condition, dict) else condition
    if None not in (exact, num_gpus) and exact != num_gpus:
        message = f"evidence.num_gpus is {num_gpus}, but applies_to.num_gpus is {exact}"
        raise fail(("evidence", "num_gpus"), message)


def _check_interval(interval: object, median: float, path: Part, fail: Fail) -> None:
    if interval is None:
        return
    if not isinstance(interval, list) or len(interval) != 2:
        raise fail(path, f"{_dotted(path)} is {interval!r}, but it is a lower and an upper bound")
    for index, bound in enumerate(interval):
        _check_positive(bound, (*path, index), fail)
    if interval[0] > interval[1]:
        raise fail(path, f"{_dotted(path)} is {interval!r}, but the lower bound stands first")
    if not interval[0] <= median <= interval[1]:
        raise fail(path, f"{_dotted(path)} is {interval!r}, but the median {median} is not in it")


def _check_alternatives(entries: object, fail: Fail) -> None:
    if not isinstance(entries, list):
        raise fail(("alternatives",), "alternatives is not a list")
    for index, entry in enumerate(entries):
        path = ("alternatives", index)
        if not isinstance(entry, dict) or not isinstance(entry.get("settings"), dict):
            raise fail(path, "an alternative is a mapping with 'settings'")
        _check_settings(entry["settings"], (*path, "settings"), fail)


def _check_keys(
    values: dict[str, Any], path: Part, legal: tuple[str, ...], optional: tuple[str, ...], fail: Fail
) -> None:
    where = _dotted(path) or "the policy"
    for key in values:
        if key not in legal:
            raise fail((*path, key), f"{where} has an unknown key {key!r}", closest(key, legal))
    missing = [key for key in legal if key not in values and key not in optional]
    if missing:
        raise fail(path, f"{where} has no {', '.join(missing)}", "everything is said, nothing implied")


def _check_plain(value: object, path: Part, fail: Fail) -> None:
    """Only what JSON can carry: a date or a number as a key would come back as something else."""
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise fail((*path, key), f"key {key!r} is not a text", "write it in quotes")
            _check_plain(item, (*path, key), fail)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            _check_plain(item, (*path, index), fail)
    elif isinstance(value, float) and not math.isfinite(value):
        raise fail(path, f"{_dotted(path)} is {value}, which is no number", "null = unknown")
    elif not isinstance(value, str | int | float | bool | None):
        raise fail(path, f"{_dotted(path)} is a {type(value).__name__}", "write it in quotes")


def _check_count(value: object, path: Part, fail: Fail) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise fail(path, f"{_dotted(path)} is {value!r}, but it is a whole number of at least 1")


def _check_positive(value: object, path: Part, fail: Fail) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
        raise fail(path, f"{_dotted(path)} is {value!r}, but it is a number above 0")


def _mapping(parent: dict[str, Any], path: tuple[str, ...], fail: Fail) -> dict[str, Any]:
    value = parent.get(path[-1])
    if not isinstance(value, dict):
        raise fail(path, f"{_dotted(path)} is not a mapping")
    return value


def _dotted(path: Part) -> str:
    words = (str(part) for part in path)
    return ".".join(word if word.isprintable() else ascii(word) for word in words)
