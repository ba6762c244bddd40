"""Where a policy holds: the conditions of ``applies_to`` and their comparison with a run.

A condition is a plain value or ``{exact: v}``; for whole numbers also ``{min:, max:, multiple_of:}``,
for versions also ``{min: "0.16", below: "0.17"}``.
"""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from autotune_policies.errors import PolicyError
from autotune_policies.settings import closest

NUMBER_FIELDS = ("num_gpus", "seq_length", "global_batch_size")
TEXT_FIELDS = ("model", "cluster", "precision")
FIELDS = ("model", "cluster", "num_gpus", "precision", "seq_length", "global_batch_size", "stack")
"""What every policy must say about where it holds."""

_RANGE_KEYS = {"number": ("min", "max", "multiple_of"), "version": ("min", "below"), "text": ()}
_VERSION = re.compile(r"[0-9]+(\.[0-9]+)*")


class Comparison(NamedTuple):
    """How a run compares with ``applies_to``.

    Attributes:
        mismatches: One phrase per differing field, naming both values.
        unchecked: Fields that nobody knows of this run.
        differing: The fields of ``mismatches``.
    """

    mismatches: tuple[str, ...]
    unchecked: tuple[str, ...]
    differing: tuple[str, ...]


def kind_of(field: str) -> str:
    """Which form the condition of a field has: ``number`` or ``text``, or ``version`` for the stack."""
    return "number" if field in NUMBER_FIELDS else "text" if field in TEXT_FIELDS else "version"


def check_condition(kind: str, condition: object) -> None:
    """Nothing, if the condition is well formed.

    Raises:
        PolicyError: a wrong type, an unknown key, or bounds that no value can meet; the message does not name
            the field, the caller knows it.
    """
    if not isinstance(condition, Mapping):
        _check_value(kind, condition)
        return
    ranges = _RANGE_KEYS[kind]
    for key, bound in condition.items():
        if key != "exact" and key not in ranges:
            raise PolicyError(f"has an unknown key {key!r}", hint=closest(str(key), ("exact", *ranges)))
        if key == "exact":
            _check_value(kind, bound)
        elif kind == "number":
            _check_number(key, bound)
        elif not isinstance(bound, str) or not _VERSION.fullmatch(bound):
            raise PolicyError(f"{key}={bound!r} is not a version in quotes", hint=f'such as {key}: "0.16"')
    if not condition:
        raise PolicyError("is empty", hint=f"legal: {', '.join(('exact', *ranges))}")
    if "exact" in condition and len(condition) > 1:
        raise PolicyError("has both exact and a range; one of them is enough")
    if kind == "number" and condition.get("min", 1) > condition.get("max", condition.get("min", 1)):
        raise PolicyError(f"has min={condition['min']} above max={condition['max']}")
    if {"min", "below"} <= condition.keys() and not _less(condition["min"], condition["below"]):
        raise PolicyError(f"has min={condition['min']!r}, which is not below {condition['below']!r}")


def compare(applies_to: Mapping[str, Any], facts: Mapping[str, object]) -> Comparison:
    """The run's facts against the conditions.

    Args:
        applies_to: Well-formed conditions.
        facts: Field name -> value of this run, parts of the stack as ``stack.<name>``; absent = nobody knows.
    """
    conditions = {field: condition for field, condition in applies_to.items() if field != "stack"}
    conditions |= {f"stack.{name}": condition for name, condition in applies_to["stack"].items()}
    mismatches, unchecked, differing = [], [], []
    for field, condition in conditions.items():
        fact = facts.get(field)
        if fact is None:
            unchecked.append(field)
        elif not holds(condition, fact):
            differing.append(field)
            mismatches.append(f"{field} is {fact}, but the policy holds for {describe(condition)}")
    return Comparison(tuple(mismatches), tuple(unchecked), tuple(differing))


def describe(condition: object) -> str:
    """A condition in words: ``8``, ``at least 8, a multiple of 4``, ``at least 0.16, below 0.17``."""
    if not isinstance(condition, Mapping):
        return str(condition)
    if "exact" in condition:
        return str(condition["exact"])
    words = {"min": "at least", "max": "at most", "below": "below", "multiple_of": "a multiple of"}
    return ", ".join(f"{word} {condition[key]}" for key, word in words.items() if key in condition)


def holds(condition: Any, fact: object) -> bool:
    """Whether a run's value meets one condition."""
    if not isinstance(condition, Mapping):
        return bool(condition == fact)
    if "exact" in condition:
        return bool(condition["exact"] == fact)
    if isinstance(fact, int):
        low, high = condition.get("min", fact), condition.get("max", fact)
        return bool(low <= fact <= high and fact % condition.get("multiple_of", 1) == 0)
    version = str(fact)
    return not _less(version, condition.get("min", "0")) and (
        "below" not in condition or _less(version, condition["below"])
    )


def _less(version: str, bound: str) -> bool:
    """Whether a version is below a bound; a pre-release counts as its release, +cpu as nothing."""
    return _numbers(version) < _numbers(bound)


def _numbers(version: str) -> tuple[int, ...]:
    match = _VERSION.match(version)
    numbers = [int(part) for part in match.group().split(".")] if match else []
    while numbers and numbers[-1] == 0:  # 0.16 and 0.16.0 are the same release
        numbers.pop()
    return tuple(numbers)


def _check_value(kind: str, value: object) -> None:
    if kind == "number":
        _check_number("value", value)
    elif not isinstance(value, str) or not value.strip():
        hint = "write it in quotes" if kind == "version" else None
        raise PolicyError(f"{value!r} is not a text", hint=hint)


def _check_number(key: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise PolicyError(f"{key}={value!r} is not a whole number of at least 1")
