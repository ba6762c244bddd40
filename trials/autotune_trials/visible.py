"""Which GPUs a process sees, by CUDA's rule for ``CUDA_VISIBLE_DEVICES``. Standard library only."""

import re
from collections.abc import Sequence
from itertools import takewhile

_NUMBER = re.compile(r"\+?[0-9]+")


def entries(named: str) -> tuple[str, ...]:
    """The entries that CUDA takes: all before the first that can name no GPU, but none when one comes twice.

    The first entry decides whether they are numbers, of which only the digits in front count, or names (``GPU-``,
    ``MIG-``). So ``-1``, ``NoDevFiles`` and an empty value hide all GPUs, and ``1,-1,0`` hides all but one.

    Args:
        named: Value of the variable.
    """
    words = [word.strip() for word in named.split(",")]
    prefix = next((prefix for prefix in ("GPU-", "MIG-") if words[0].startswith(prefix)), None)
    if prefix is not None:
        taken = list(takewhile(lambda word: word.startswith(prefix), words))
    else:
        numbers = takewhile(lambda match: match is not None, map(_NUMBER.match, words))
        taken = [str(int(match[0])) for match in numbers if match is not None]
    return tuple(taken) if len(set(taken)) == len(taken) else ()


def count_visible(named: str | None, uuids: Sequence[str | None]) -> int:
    """How many of a node's GPUs a process sees.

    Args:
        named: Value of the variable; None where it is not set.
        uuids: Of all GPUs of the node, in their order; None where one is not known.
    """
    if named is None:
        return len(uuids)
    taken = entries(named)
    if taken and taken[0].startswith("MIG-"):
        return 1  # a process can use one instance only, however many are named
    return len(list(takewhile(lambda word: _is_one_of(word, uuids), taken)))


def _is_one_of(word: str, uuids: Sequence[str | None]) -> bool:
    if word.isdigit():
        return int(word) < len(uuids)
    known = [uuid for uuid in uuids if uuid is not None]
    return len(known) < len(uuids) or sum(uuid.startswith(word) for uuid in known) == 1
