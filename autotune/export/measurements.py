"""The measurement table of a study: Parquet, one row per trial, with the columns that every table here has.

A blank cell (null) means unknown or "not used"; an empty text in a list column is an empty list. Lists are
comma-joined. Units are in the names: seconds, bytes, tokens.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from autotune.errors import RequestError
from autotune.files import write_atomically
from autotune.measure.outcome import TrialOutcome
from autotune_policies.settings import SETTINGS, Settings, resolve
from autotune_trials.spec import Contract, GangShape, ModelShape

Cell = None | bool | int | float | str
Row = dict[str, Cell]

SETTING_COLUMNS = (
    "micro_batch_size", "tensor_parallel", "pipeline_parallel", "virtual_pipeline", "context_parallel",
    "expert_parallel", "expert_tensor_parallel", "dispatcher", "num_sms", "cuda_graph_impl",
    "cuda_graph_modules", "ep_overlap", "delay_wgrad", "recompute_granularity", "recompute_modules",
    "offload_modules", "permute_fusion", "pipeline_layout",
)  # fmt: skip
"""Settings whose column bears their own name; every further one has a column ``p.<setting>``."""

_ARROW = {"int": pa.int64(), "float": pa.float64(), "bool": pa.bool_(), "str": pa.string(), "list": pa.string()}

_COLUMNS: dict[str, pa.DataType] = {
    "model": pa.string(),
    "cluster": pa.string(),
    "num_gpus": pa.int64(),
    "precision": pa.string(),
    "seq_length": pa.int64(),
    "micro_batch_size": pa.int64(),
    "global_batch_size": pa.int64(),
    **{name: _ARROW[SETTINGS[name].kind] for name in SETTING_COLUMNS[1:]},
    "routing_source": pa.string(),
    "data_condition": pa.string(),
    "token_policy": pa.string(),
    "step_time_s": pa.float64(),
    "tokens_per_s_per_gpu": pa.float64(),
    "tflops_per_gpu": pa.float64(),
    "peak_memory_bytes": pa.int64(),
    "state": pa.string(),
    "group": pa.string(),
    "stack": pa.string(),
    "source": pa.string(),
    "note": pa.string(),
}

COLUMNS = tuple(_COLUMNS)
"""The columns of every measurement table, in order; the ``p.`` columns follow them."""


def setting_column(name: str) -> str:
    """The column of a setting: its name, or ``p.<name>``."""
    return name if name in SETTING_COLUMNS else f"p.{name}"


_SCHEMA = pa.schema(
    [pa.field(name, kind) for name, kind in _COLUMNS.items()]
    + [
        pa.field(setting_column(row.name), _ARROW[row.kind])
        for row in SETTINGS.values()
        if row.name not in SETTING_COLUMNS
    ]
)


def measurement_row(
    outcome: TrialOutcome,
    *,
    study: str,
    model: ModelShape,
    cluster: str,
    contract: Contract,
    gang: GangShape,
    stack: Mapping[str, str],
) -> Row:
    """One row of the table for one trial; numbers that were not measured stay blank.

    Args:
        outcome: How the trial ended; its reason becomes the note.
        study: Study name; with the trial number it is the row's source.
        model: Architecture.
        cluster: Cluster name.
        contract: What the study holds fixed.
        gang: Shape of the gang.
        stack: Versions of what can change speed, by component.
    """
    row: Row = dict.fromkeys(_SCHEMA.names)
    row |= {
        "model": model.name,
        "cluster": cluster,
        "num_gpus": gang.world_size,
        "precision": contract.precision,
        "seq_length": contract.seq_length,
        "global_batch_size": contract.global_batch_size,
        "routing_source": contract.routing.source,
        "data_condition": contract.routing.data_condition,
        "token_policy": contract.routing.token_policy,
        "step_time_s": outcome.step_time_s,
        "tokens_per_s_per_gpu": outcome.tokens_per_s_per_gpu,
        "peak_memory_bytes": outcome.peak_memory_bytes,
        "state": outcome.state.value,
        "group": group_digest(model, cluster, contract, gang, stack),
        "stack": stack_text(stack),
        "source": f"{study}/{outcome.trial:04d}",
        "note": outcome.reason or None,
    }
    for name, value in resolve(outcome.settings).items():
        row[setting_column(name)] = ",".join(value) if isinstance(value, list) else value
    return row


def row_settings(row: Mapping[str, object]) -> Settings:
    """All canonical settings of a row, resolved; a blank cell is the setting's default.

    Raises:
        PolicyError: a cell holds a value that the setting cannot have.
    """
    given: dict[str, object] = {}
    for name, setting in SETTINGS.items():
        value = row.get(setting_column(name))
        if value is None:
            continue
        if setting.kind == "list":
            value = [item for item in str(value).split(",") if item]
        given[name] = value
    return resolve(given)


def group_digest(model: ModelShape, cluster: str, contract: Contract, gang: GangShape, stack: Mapping[str, str]) -> str:
    """Short digest that comparable rows share: same model, cluster, scale, contract and stack."""
    facts = [asdict(model), cluster, asdict(contract), asdict(gang), dict(stack)]
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]


def stack_text(stack: Mapping[str, str]) -> str:
    """The stack on one line, components sorted: ``megatron_core=0.16.1;torch=2.13.0``."""
    return ";".join(f"{name}={stack[name]}" for name in sorted(stack))


def write_measurements(path: Path, rows: Iterable[Mapping[str, Cell]]) -> None:
    """Write the table as Parquet, at once: a reader sees the old file or the new one.

    Columns that a row lacks are blank.

    Raises:
        ValueError: a row has a column that the table does not know; nothing was written.
        OSError: the file cannot be written.
    """
    rows = [dict(row) for row in rows]
    for number, row in enumerate(rows):
        unknown = sorted(set(row) - set(_SCHEMA.names))
        if unknown:
            raise ValueError(f"row {number} has the unknown column {unknown[0]!r}")
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(rows, schema=_SCHEMA), sink)
    write_atomically(path, sink.getvalue().to_pybytes())


def write_text_table(path: Path, rows: Iterable[Mapping[str, Cell]], comment: str) -> None:
    """Write the table as tab-separated text, at once: for people and for reviews; ``predict --table`` reads it too.

    Args:
        path: The file.
        rows: As for :func:`write_measurements`.
        comment: What the table is; stands before it.

    Raises:
        OSError: the file cannot be written.
    """
    lines = [f"# {line}" for line in comment.splitlines()]
    lines.append("\t".join(_SCHEMA.names))
    lines += ["\t".join(_text(row.get(name)) for name in _SCHEMA.names) for row in rows]
    write_atomically(path, ("\n".join(lines) + "\n").encode())


def _text(cell: Cell) -> str:
    if cell is None:
        return ""
    if isinstance(cell, bool):
        return str(cell).lower()
    return " ".join(str(cell).split())


def read_measurements(path: Path) -> list[Row]:
    """The rows of a table that :func:`write_measurements` wrote.

    Raises:
        RequestError: no such file, not Parquet, or a column is missing.
    """
    try:
        table = pq.read_table(pa.BufferReader(path.read_bytes()))
    except (OSError, pa.ArrowInvalid) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else "not a Parquet file"
        raise RequestError(f"{path.name}: cannot be read as a measurement table: {why}") from error
    missing = [name for name in COLUMNS if name not in table.column_names]
    if missing:
        raise RequestError(f"{path.name}: column {missing[0]!r} is missing, so it is no measurement table")
    rows: list[Row] = table.to_pylist()
    return rows
