"""The pipeline-layout grammar.

``E`` is the embedding, ``t`` a decoder layer, ``m`` an MTP layer, ``L`` the loss; ``|`` begins a new stage.
``(tt|)*3`` repeats a group, ``t*4`` one letter, commas are decoration. Groups do not nest.
"""

import re
from collections.abc import Iterable
from enum import Enum

from autotune_policies.errors import PolicyError

MAX_LAYERS = 10_000
"""More parts than any model has; keeps a mistyped repeat count from filling the memory."""

_LETTER = {"embedding": "E", "decoder": "t", "mtp": "m", "loss": "L"}


def layout_stages(layout: str) -> tuple[str, ...]:
    """The stages of a layout in layer order, e.g. ``"Et|(t|)*2L"`` -> ``("Et", "t", "t", "L")``.

    Stage ``i`` is virtual chunk ``i // pipeline_parallel`` on pipeline rank ``i % pipeline_parallel``.

    Raises:
        PolicyError: a character outside the grammar, a nested or open group, or over ``MAX_LAYERS`` parts.
    """
    text = layout.replace(",", "")
    for pattern in (r"\(([^()]+)\)\*(\d+)", r"([EtmL|])\*(\d+)"):
        expanded = 0

        def repeat(match: re.Match[str]) -> str:
            nonlocal expanded
            # A count with many digits is refused before it becomes a number.
            times = int(match.group(2)) if len(match.group(2)) < 8 else MAX_LAYERS + 1
            expanded += len(match.group(1)) * times
            if expanded > MAX_LAYERS:
                raise PolicyError(f"pipeline_layout={layout!r} has more than {MAX_LAYERS} parts")
            return match.group(1) * times

        text = re.sub(pattern, repeat, text)
    for letter in text:
        if letter not in "EtmL|":
            raise PolicyError(
                f"pipeline_layout={layout!r} has an unexpected {letter!r}",
                hint="legal: E t m L | and repeats (...)*n or t*n, not nested",
            )
    return tuple(text.split("|"))


def layout_text(stages: Iterable[Iterable[object]]) -> str:
    """A layout in the grammar, from Megatron's list form: lists of layer types or of their names.

    Raises:
        PolicyError: a layer type that the grammar has no letter for.
    """
    words = []
    for stage in stages:
        names = [item.name if isinstance(item, Enum) else str(item).strip() for item in stage]
        for name in names:
            if name not in _LETTER and name not in _LETTER.values():
                legal = ", ".join(_LETTER)
                raise PolicyError(f"pipeline layout contains layer type {name!r}", hint=f"legal: {legal}")
        words.append("".join(_LETTER.get(name, name) for name in names))
    return "|".join(words)
