"""Reads measurement tables: the product's own, public ones with the same columns, and other programs' with a sidecar.

A table is tab-separated text with ``#`` comments, or Parquet. A sidecar ``<file>.yaml`` says what another program's
columns mean: ``groups``, ``parameters`` and ``objectives`` (a new ``name`` each; an objective's ends in its unit),
``context`` (columns that are the same in all rows), ``models`` (shapes) and ``failed_when``.
"""

import csv
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from autotune.errors import RequestError
from autotune_policies.documents import read_document
from autotune_policies.errors import PolicyError

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

_STATES = {
    "ok": "COMPLETE", "oom": "INFEASIBLE", "crash": "INFEASIBLE", "hang": "INFEASIBLE", "unavailable": "UNAVAILABLE",
    "lost": "LOST",
}  # fmt: skip
"""``outcome`` of the public tables, as trial states."""

_ROUTING = {"token_drop": ("forced_balance", "capacity")}
"""``routing_mode`` of the public tables where it is not simply the routing source."""

_BLANK = ("", "nan", "NaN", "None", "null", "-")


@dataclass(frozen=True)
class TableRow:
    """One row, in the product's columns and units.

    Attributes:
        index: Its place among the data rows, from 0.
        cells: Text by column; blank ones are absent.
        measured: Measured quantities by name, in seconds, bytes and tokens/s.
        approximate: Quantities that the table marks as approximate (``~370``).
        group: Rows of one group are comparable.
    """

    index: int
    cells: Mapping[str, str]
    measured: Mapping[str, float]
    approximate: frozenset[str]
    group: str

    @property
    def failure(self) -> str | None:
        """Why there is nothing to compare with, if the row says so."""
        state = self.cells.get("state", "COMPLETE")
        return None if state == "COMPLETE" else f"{self.cells.get('outcome', state)}: not a completed run"


@dataclass(frozen=True)
class MeasurementTable:
    """All rows of a table, and the shapes that its sidecar gives.

    Attributes:
        rows: In the order of the file.
        models: Fields of model shapes by model name, as the sidecar has them.
    """

    rows: tuple[TableRow, ...]
    models: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


def read_table(path: Path) -> MeasurementTable:
    """A table with its sidecar, if there is one beside it.

    Raises:
        RequestError: a file that cannot be read, has no header or no measured column, or a sidecar that is wrong.
    """
    sidecar = _Sidecar.read(path)
    raw = _parquet(path) if path.suffix == ".parquet" else _text(path)
    rows = tuple(_row(index, cells, sidecar) for index, cells in enumerate(raw))
    if not rows:
        raise RequestError(f"{path.name}: no rows", hint="a table has a header line and at least one row")
    if not any(row.measured for row in rows):
        raise RequestError(
            f"{path.name}: no measured column among {', '.join(list(rows[0].cells)[:12])}",
            hint=f"known: {', '.join(QUANTITIES)}; a sidecar {path.name}.yaml can say what other columns mean",
        )
    return MeasurementTable(rows, sidecar.models)


def first_number(text: str) -> float | None:
    """The number at the start of a cell: ``~370`` and ``32 (set by harness)`` have one."""
    found = re.match(r"~?\s*(-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?)", text)
    return float(found[1]) if found else None


@dataclass(frozen=True)
class _Sidecar:
    names: Mapping[str, str] = field(default_factory=dict)
    values: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    context: Mapping[str, str] = field(default_factory=dict)
    groups: tuple[str, ...] = ()
    models: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    failed_when: Mapping[str, str] = field(default_factory=dict)

    @staticmethod
    def read(table: Path) -> "_Sidecar":
        path = table.with_name(f"{table.name}.yaml")
        if not path.exists():
            return _Sidecar()
        try:
            raw = read_document(path.read_text(encoding="utf-8"), path.name).value
        except (OSError, PolicyError) as error:
            raise RequestError(f"{path.name}: cannot be read: {error}") from error
        if not isinstance(raw, Mapping):
            raise RequestError(f"{path.name}: must be a mapping, but is {type(raw).__name__}")
        columns = {**_mapping(raw, "parameters", path), **_mapping(raw, "objectives", path)}
        names, values = {}, {}
        for column, meaning in columns.items():
            if not isinstance(meaning, Mapping) or not isinstance(meaning.get("name"), str):
                raise RequestError(f"{path.name}: {column} needs a name", hint="write {name: step_time_ms}")
            names[column] = meaning["name"]
            values[column] = {str(key): str(value) for key, value in dict(meaning.get("values", {})).items()}
        groups = raw.get("groups", [])
        if not isinstance(groups, list):
            raise RequestError(f"{path.name}: groups must be a list of columns, but got {groups!r}")
        context = {
            name: ",".join(map(str, value)) if isinstance(value, list) else str(value)
            for name, value in _mapping(raw, "context", path).items()
        }
        failed_when = {name: str(value) for name, value in _mapping(raw, "failed_when", path).items()}
        models = {str(name): shape for name, shape in _mapping(raw, "models", path).items()}
        return _Sidecar(names, values, context, tuple(map(str, groups)), models, failed_when)


def _mapping(raw: Mapping[str, Any], name: str, path: Path) -> Mapping[str, Any]:
    value = raw.get(name, {})
    if not isinstance(value, Mapping):
        raise RequestError(f"{path.name}: {name} must be a mapping, but got {value!r}")
    return value


def _text(path: Path) -> Iterator[dict[str, str]]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        why = (error.strerror if isinstance(error, OSError) else None) or "not a text file"
        raise RequestError(f"{path.name}: cannot be read as a measurement table: {why}") from error
    reader = csv.DictReader((line for line in lines if line.strip() and not line.startswith("#")), delimiter="\t")
    for number, row in enumerate(reader):
        if None in row:
            raise RequestError(f"{path.name}: row {number} has more cells than the header has columns")
        yield {name: (value or "").strip() for name, value in row.items()}


def _parquet(path: Path) -> Iterator[dict[str, str]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        rows = pq.read_table(pa.BufferReader(path.read_bytes())).to_pylist()
    except (OSError, pa.ArrowInvalid) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else "not a Parquet file"
        raise RequestError(f"{path.name}: cannot be read as a measurement table: {why}") from error
    for row in rows:
        yield {
            name: str(value).lower() if isinstance(value, bool) else str(value)
            for name, value in row.items()
            if value is not None
        }


def _row(index: int, raw: Mapping[str, str], sidecar: _Sidecar) -> TableRow:
    cells = dict(sidecar.context)
    for column, text in raw.items():
        if text not in _BLANK:
            cells[sidecar.names.get(column, column)] = sidecar.values.get(column, {}).get(text, text)
    for column, sign in sidecar.failed_when.items():
        text = raw.get(column, "")
        if text in _BLANK if sign == "missing" else text == sign:
            cells["state"], cells["outcome"] = "INFEASIBLE", f"failed ({column} {sign})"
    if "outcome" in cells and "state" not in cells:
        cells["state"] = _STATES.get(cells["outcome"], "INFEASIBLE")
    if "routing_mode" in cells:
        source, policy = _ROUTING.get(cells["routing_mode"], (cells["routing_mode"], "dropless"))
        cells.setdefault("routing_source", source)
        cells.setdefault("token_policy", policy)
    measured: dict[str, float] = {}
    approximate = set()
    for column, text in cells.items():
        name, factor = _quantity(column)
        number = first_number(text) if name in QUANTITIES else None
        if number is not None and number > 0:
            measured[name] = number * factor
            if text.startswith("~"):
                approximate.add(name)
    group = cells.get("group") or "/".join(raw.get(name, "") for name in sidecar.groups)
    return TableRow(index, cells, measured, frozenset(approximate), group or _default_group(cells))


def _quantity(column: str) -> tuple[str, float]:
    """The product's name of a measured column, and the factor to its unit."""
    for ending, (unit, factor) in UNITS.items():
        if column.endswith(ending):
            name = column.removesuffix(ending) + unit
            return _SHORT_NAMES.get(name, name), factor
    return column, 1.0


def _default_group(cells: Mapping[str, str]) -> str:
    facts = ("model", "cluster", "num_gpus", "precision", "seq_length", "global_batch_size", "routing_source", "stack")
    return "/".join(cells.get(name, "") for name in facts)
