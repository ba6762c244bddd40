"""Scores: rank correlation against its definition, and the published tables."""

import itertools
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.predict.score import kendall_tau, score_table
from autotune.predict.table import MeasurementTable, read_table

DATA = Path(__file__).parents[2] / "data"

PAIRS = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=2, max_size=20)


def sign(value: float) -> int:
    return (value > 0) - (value < 0)


@given(PAIRS)
def test_tau_is_what_its_definition_says(pairs: list[tuple[int, int]]) -> None:
    signs = [(sign(a - c), sign(b - d)) for (a, b), (c, d) in itertools.combinations(pairs, 2)]
    first, second = sum(abs(x) for x, _ in signs), sum(abs(y) for _, y in signs)
    expected = sum(x * y for x, y in signs) / (first * second) ** 0.5 if first and second else None
    found = kendall_tau([(float(x), float(y)) for x, y in pairs])
    assert found == (None if expected is None else pytest.approx(expected))


def test_tau_of_the_same_and_of_the_opposite_order() -> None:
    assert kendall_tau([(1, 10), (2, 20), (3, 30)]) == 1
    assert kendall_tau([(1, 30), (2, 20), (3, 10)]) == -1
    assert kendall_tau([(1, 1)]) is None


@pytest.mark.parametrize(
    ("name", "quantity", "rows", "bar"),
    [
        ("b200_step_time_memory.tsv", "step_time_s", 22, 0.04),
        ("b200_step_time_memory.tsv", "peak_memory_bytes", 22, 0.005),
        ("bridge_perf_summary.tsv", "step_time_s", 145, 0.15),
        ("moe_layer_dispatcher_h100.tsv", "layer_time_s", 28, 0.07),
        ("deepep_sm_sweep.tsv", "dispatch_time_s", 984, 0.10),
        ("deepep_sm_sweep.tsv", "combine_time_s", 984, 0.10),
    ],
)
def test_published_tables(name: str, quantity: str, rows: int, bar: float) -> None:
    score = score_table(read_table(DATA / name))
    summary = score.summary[quantity]
    assert summary.n == rows == sum(group.n for group in score.groups[quantity].values())
    assert summary.mape <= bar
    assert abs(summary.bias) <= summary.mape
    scored = [item for item in score.rows if item.quantity == quantity]
    assert summary.mape == pytest.approx(sum(abs(item.predicted / item.measured - 1) for item in scored) / rows)


def test_rows_that_cannot_be_placed_are_skipped_with_the_reason() -> None:
    score = score_table(read_table(DATA / "bridge_perf_summary.tsv"))
    reasons = {item.row: item.reason for item in score.skipped}
    assert sorted(reasons.values()) == [
        "model nemotron3-ultra: no shape of it is known",
        "num_gpus=256 is no multiple of expert x expert-tensor x pipeline parallel = 512",
    ]
    assert not reasons.keys() & {item.row for item in score.rows}


def test_a_row_never_corrects_its_own_prediction() -> None:
    table = read_table(DATA / "b200_step_time_memory.tsv")
    row = table.rows[0]
    slow = replace(row, measured={"step_time_s": 10 * row.measured["step_time_s"]})
    before, after = (
        score_table(MeasurementTable((first, *table.rows[1:]), table.models)).rows for first in (row, slow)
    )
    times = [{item.row: item.predicted for item in rows if item.quantity == "step_time_s"} for rows in (before, after)]
    assert times[0][0] == times[1][0]
    assert all(times[0][index] < times[1][index] for index in range(1, 22))  # the others do learn from it


@pytest.mark.parametrize(("program", "notes"), [("nanotron", 1), ("Megatron-LM 0.14", 0)])
def test_another_programs_table_says_that_megatron_is_predicted(program: str, notes: int) -> None:
    table = read_table(DATA / "b200_step_time_memory.tsv")
    rows = tuple(replace(row, cells={**row.cells, "program": program}) for row in table.rows[:2])
    every = score_table(MeasurementTable(rows, table.models)).notes
    found = [note for note in every if note.startswith("program")]
    assert len(found) == notes
    assert all(program in note for note in found)
