"""Columns of measurement tables that anything here reads, and the closest of them to one that nothing reads."""

import difflib
import re
from collections.abc import Iterable, Mapping

from autotune_policies.settings import SETTINGS

QUANTITIES = (
    "step_time_s", "tokens_per_s_per_gpu", "peak_memory_bytes", "dispatch_time_s", "combine_time_s", "layer_time_s",
)  # fmt: skip
"""What a table may hold measurements of."""

UNITS: Mapping[str, tuple[str, float]] = {
    "_ms": ("_s", 1e-3), "_us": ("_s", 1e-6), "_gib": ("_bytes", 2.0**30), "_mib": ("_bytes", 2.0**20),
    "_gb": ("_bytes", 1e9), "_mb": ("_bytes", 1e6),
}  # fmt: skip
"""Endings of measured columns, and what they become: seconds or bytes."""

_SHORT_NAMES = {"dispatch_s": "dispatch_time_s", "combine_s": "combine_time_s", "layer_s": "layer_time_s"}

SIZES = frozenset({
    "num_gpus", "global_batch_size", "gbs", "seq_length", "seq_len", "num_layers", "layer_num", "mbs",
    "num_microbatches", "gradient_accumulation", "data_parallel", "data_parallel_size", "node_num", "num_nodes",
    "tokens_per_rank", "hidden_size", "num_topk", "num_experts", "num_sms_dispatch", "num_sms_combine",
    *(name for name, setting in SETTINGS.items() if setting.kind in ("int", "float")),
    *(f"p.{name}" for name, setting in SETTINGS.items() if setting.kind in ("int", "float")),
})  # fmt: skip
"""Columns whose cells begin with a number."""

READ = SIZES | {
    "model", "cluster", "device", "precision", "dtype", "parallel_string", "zero_stage", "backend", "library", "case",
    "routing_mode", "routing_source", "data_condition", "token_policy", "state", "outcome", "group", "stack", "commit",
    "program", "source", "note",
    *SETTINGS,
    *(f"p.{name}" for name in SETTINGS),
}  # fmt: skip
"""All columns that are read, beside the measured ones."""

_NUMBER = re.compile(r"~?\s*(-?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:[eE][-+]?\d+)?)")


def first_number(text: str) -> float | None:
    """The number at the start of a cell: ``~370``, ``1,200`` and ``32 (set by harness)`` have one, ``1,5`` has none."""
    found = _NUMBER.match(text)
    if found is None or re.match(r"[.,_]?\d", text[found.end() :]):
        return None
    return float(found[1].replace(",", ""))


def quantity_of(column: str) -> tuple[str, float]:
    """The product's name of a measured column, and the factor to its unit; another column's own name and 1."""
    for ending, (unit, factor) in UNITS.items():
        if column.endswith(ending):
            name = column.removesuffix(ending) + unit
            return _SHORT_NAMES.get(name, name), factor
    return column, 1.0


def is_read(column: str) -> bool:
    """Whether a cell of this column can change what is predicted or compared."""
    return column in READ or quantity_of(column)[0] in QUANTITIES


def is_number(column: str) -> bool:
    """Whether cells of this column must begin with a number to be of use."""
    return column in SIZES or quantity_of(column)[0] in QUANTITIES


def unread(columns: Iterable[str]) -> dict[str, str]:
    """The columns that nothing reads, each with the one that may have been meant; empty where none is close."""
    known = [*READ, *QUANTITIES]
    return {
        column: next(iter(difflib.get_close_matches(column, known, n=1, cutoff=0.85)), "")
        for column in columns
        if not is_read(column)
    }
