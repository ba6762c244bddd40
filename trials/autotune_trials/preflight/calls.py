"""Whether a library takes the calls that Megatron-Core makes, told from its signatures without calling anything."""

import importlib
import inspect
from functools import reduce
from typing import Any

from autotune_policies.backends import Call, Release


def refusal(call: Call) -> str | None:
    """Why a call would be a TypeError, None when it would not, or when compiled code does not say its signature."""
    module, _, path = call.function.partition(":")
    try:
        function: Any = reduce(getattr, path.split("."), importlib.import_module(module))
    except AttributeError:
        return f"{module} has no {path}"
    if not callable(function):
        return f"{path} of {module} is no function but {type(function).__name__}"
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return None
    try:
        signature.bind(*range(call.positional), **dict.fromkeys(call.keywords))
    except TypeError as error:
        return f"{path}{signature} cannot be called as Megatron-Core does: {error}"
    return None


def refusals(calls: tuple[Call, ...], release: Release | None) -> list[tuple[Call, str]]:
    """What is refused of the calls that a Megatron-Core release makes; of an unknown release, only the oldest ones."""
    made = [call for call in calls if call.since <= (release or (0, 16))]
    return [(call, why) for call in made if (why := refusal(call)) is not None]
