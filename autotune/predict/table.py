"""Reads measurement tables: the product's own, public ones with the same columns, and other programs' with a sidecar.

A table is tab-separated text with ``#`` comments, or Parquet. A sidecar ``<file>.yaml`` says what another program's
columns mean: ``groups``, ``parameters`` and ``objectives`` (a new ``name`` each; an objective's ends in its unit),
``context`` (columns that are the same in all rows), ``models`` (shapes) and ``failed_when``.
"""

import csv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any

from autotune.errors import RequestError
from autotune.predict.columns import QUANTITIES, first_number, is_number, quantity_of, unread
from autotune.predict.sidecar import Sidecar, read_sidecar, require_columns

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
        unusable: Measured quantities whose cell is no number above zero: what is wrong with it.
    """

    index: int
    cells: Mapping[str, str]
    measured: Mapping[str, float]
    approximate: frozenset[str]
    group: str
    unusable: Mapping[str, str] = field(default_factory=dict)

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
        source: The comments of the file: where its rows come from.
        unread: Columns that nothing reads, each with the one that may have been meant, or an empty text.
    """

    rows: tuple[TableRow, ...]
    models: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    source: str = ""
    unread: Mapping[str, str] = field(default_factory=dict)


def read_table(path: Path) -> MeasurementTable:
    """A table with its sidecar, if there is one beside it.

    Raises:
        RequestError: a file that cannot be read, has no header or no measured column, or a sidecar that is wrong.
    """
    if path.is_dir():
        raise RequestError(f"{path}: is a folder", hint="name a file: a TSV table, or measurements.parquet of a study")
    sidecar = read_sidecar(path)
    raw, source = (_parquet(path), "") if path.suffix == ".parquet" else _text(path, sidecar.names)
    rows = tuple(_row(index, cells, sidecar) for index, cells in enumerate(raw))
    header = list(dict.fromkeys(name for cells in raw for name in cells))
    if rows:
        require_columns(sidecar, header, path)
    if not rows:
        raise RequestError(f"{path.name}: no rows", hint="a table has a header line and at least one row")
    if not any(row.measured for row in rows):
        useless = next((text for row in rows for text in row.unusable.values()), None)
        raise RequestError(
            f"{path.name}: no measured value is of use: {useless}"
            if useless
            else f"{path.name}: no measured column among {', '.join(list(rows[0].cells)[:12])}",
            hint=f"known: {', '.join(QUANTITIES)}; a sidecar {path.name}.yaml can say what other columns mean",
        )
    used = {*sidecar.names, *sidecar.groups, *sidecar.failed_when}
    return MeasurementTable(rows, sidecar.models, source, unread(name for name in header if name not in used))


def _text(path: Path, names: Mapping[str, str]) -> tuple[list[dict[str, str]], str]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        why = (error.strerror if isinstance(error, OSError) else None) or "not a text file"
        raise RequestError(f"{path.name}: cannot be read as a measurement table: {why}") from error
    source = "\n".join(line[1:].strip() for line in lines if line.startswith("#"))
    kept = [(place, line) for place, line in enumerate(lines, 1) if line.strip() and not line.startswith("#")]
    return list(_cells(path, [line for _, line in kept], [place for place, _ in kept], names)), source


def _cells(path: Path, lines: list[str], places: list[int], names: Mapping[str, str]) -> Iterator[dict[str, str]]:
    reader = csv.reader(lines, delimiter="\t")
    header = next(reader, [])
    for name in header:
        if header.count(name) > 1:
            raise RequestError(f"{path.name}:{places[0]}: column {name!r} stands twice", hint="rename one of them")
    for number, row in enumerate(reader):
        where = f"{path.name}:{places[reader.line_num - 1]}"
        if len(row) > len(header):
            raise RequestError(f"{where}: row {number} has more cells than the header has columns")
        cells = {name: text.strip() for name, text in zip_longest(header, row, fillvalue="")}
        for name, text in cells.items():
            if is_number(names.get(name, name)) and text.lstrip("~- ")[:1].isdigit() and first_number(text) is None:
                raise RequestError(f"{where}: {name}={text!r} is no number", hint="write 1200.5 or 1,200.5")
        yield cells


def _parquet(path: Path) -> list[dict[str, str]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        rows = pq.read_table(pa.BufferReader(path.read_bytes())).to_pylist()
    except (OSError, pa.ArrowInvalid) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else "not a Parquet file"
        raise RequestError(f"{path.name}: cannot be read as a measurement table: {why}") from error
    return [
        {
            name: str(value).lower() if isinstance(value, bool) else str(value)
            for name, value in row.items()
            if value is not None
        }
        for row in rows
    ]


def _row(index: int, raw: Mapping[str, str], sidecar: Sidecar) -> TableRow:
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
    unusable: dict[str, str] = {}
    approximate = set()
    for column, text in cells.items():
        name, factor = quantity_of(column)
        number = first_number(text) if name in QUANTITIES else None
        if number is not None and 0 < number < float("inf"):
            measured[name] = number * factor
            if text.startswith("~"):
                approximate.add(name)
        elif name in QUANTITIES:
            unusable[name] = f"{column}={text!r} is no number above zero"
    group = cells.get("group") or "/".join(raw.get(name, "") for name in sidecar.groups)
    return TableRow(index, cells, measured, frozenset(approximate), group or _default_group(cells), unusable)


def _default_group(cells: Mapping[str, str]) -> str:
    facts = ("model", "cluster", "num_gpus", "precision", "seq_length", "global_batch_size", "routing_source", "stack")
    return "/".join(cells.get(name, "") for name in facts)
