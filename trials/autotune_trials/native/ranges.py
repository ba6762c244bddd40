"""Names for what the built objects do, as ranges in a profiler's record."""

import functools
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any

from autotune_trials.native.trace import PREFIX

Range = Callable[[str], AbstractContextManager[Any]]

_METHODS = {
    "dispatch_preprocess": "permute",
    "token_dispatch": "dispatch",
    "dispatch_postprocess": "permute",
    "combine_preprocess": "permute",
    "token_combine": "combine",
    "combine_postprocess": "permute",
}


def moe_layers(chunks: Iterable[Any]) -> list[Any]:
    """The modules of model chunks that have a token dispatcher and experts."""
    modules = (module for chunk in chunks for module in chunk.modules())
    return [module for module in modules if getattr(module, "token_dispatcher", None) is not None]


def put_on(chunks: Iterable[Any], optimizer: Any, named_range: Range) -> None:
    """From now on run the dispatchers' methods, the experts and the optimizer inside ranges.

    Args:
        chunks: Model chunks that hold the MoE layers.
        optimizer: Its ``step`` is the optimizer's part.
        named_range: Makes the context of a range from its name.
    """
    for layer in moe_layers(chunks):
        for method, part in _METHODS.items():
            wrap(layer.token_dispatcher, method, part, named_range)
        wrap(layer.experts, "forward", "experts", named_range)
    wrap(optimizer, "step", "optimizer", named_range)


def wrap(holder: Any, method: str, part: str, named_range: Range) -> None:
    """Replace a method of this one object by itself inside a range; other objects of its class keep theirs."""
    inner: Callable[..., Any] = getattr(holder, method)

    @functools.wraps(inner)
    def ranged(*arguments: Any, **named: Any) -> Any:
        with named_range(PREFIX + part):
            return inner(*arguments, **named)

    setattr(holder, method, ranged)
