"""Which step lines of a command are measurements, and what speaks against them."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune_trials.command.steps import StepLines
from autotune_trials.log_lines import Step
from autotune_trials.spec import Contract

CONTRACT = Contract(128, 8, steps=10, warmup_steps=3)


def line(step: int, time_s: float = 0.1, *, steps: int = 10, loss: float | None = 1.0, **others: int) -> Step:
    return Step(step, steps, time_s, loss, 0.5, 8, others.get("skipped", 0), others.get("nan", 0))


def heard(lines: Sequence[Step], gap_s: float = 0.1) -> tuple[StepLines, list[dict[str, Any]]]:
    """The reader after these lines, and the events of measured steps and of warm-up, with their losses."""
    reader = StepLines(CONTRACT)
    found = [reader.take(each, gap_s * place) for place, each in enumerate(lines)]
    return reader, [fields for fields in found if fields is not None and "loss" in fields]


def test_a_line_per_step_is_a_record_per_step() -> None:
    reader, records = heard([line(step) for step in range(1, 11)])
    assert (reader.steps, reader.flaw, reader.verdict()) == (10, "", "")
    assert [record["step"] for record in records] == list(range(1, 11))
    assert {record["tokens"] for record in records} == {1024}


def test_a_mean_that_reaches_back_into_warm_up_is_not_measured() -> None:
    reader, records = heard([line(5, 1.0), line(10, 0.01)], gap_s=0.05)
    assert [record["step"] for record in records] == [10]
    assert "a line stands for up to 5 steps, so 1 of the lines lie wholly after the 3 steps" in reader.verdict()
    assert "--log-interval 1" in reader.verdict()


@given(st.sets(st.integers(1, 10), min_size=1))
def test_what_is_measured_lies_wholly_after_warm_up(told: set[int]) -> None:
    reader, records = heard([line(step) for step in sorted(told)])
    for record in records:
        before = max((step for step in told if step < record["step"]), default=0)
        assert record["step"] <= 3 or before >= 3
    assert reader.steps == max(told)


def test_a_line_without_a_number_is_told_whatever_it_stands_for() -> None:
    reader, records = heard([line(5, loss=float("nan"), nan=1, skipped=1)])
    assert [record["step"] for record in records] == [5]
    assert reader.flaw == ""


def test_what_was_told_before_is_not_told_again() -> None:
    reader, records = heard([line(1), line(2), line(1), line(2, 0.01), line(3)])
    assert [(record["step"], record["step_time_s"]) for record in records] == [(1, 0.1), (2, 0.1), (3, 0.1)]
    assert reader.steps == 3


def test_another_number_of_steps_is_another_run() -> None:
    reader, _ = heard([line(1, steps=30)])
    assert reader.flaw == "its steps count to 30, not to the contract's 10: hand {steps} to the program"
    assert reader.verdict() == reader.flaw


def test_a_skipped_update_is_no_step_but_may_be_in_warm_up() -> None:
    assert heard([line(1, skipped=1), line(2), line(3, skipped=1)])[0].flaw == ""
    reader, _ = heard([line(step, skipped=int(step > 3)) for step in range(1, 11)])
    assert reader.flaw.startswith("step 4 was skipped")


@pytest.mark.parametrize(
    ("said_s", "gap_s", "fair"),
    [
        (0.2, 0.2, True), (0.2, 0.39, True), (0.2, 0.6, False), (1e-5, 0.2, False),
        (0.2, 0.0, True),  # a pipe that is read late
        (0.01, 0.1, True),  # so short that a busy machine explains it
    ],
)  # fmt: skip
def test_the_lines_own_clock_is_held_against_ours(said_s: float, gap_s: float, fair: bool) -> None:
    reader, _ = heard([line(step, 9.0 if step == 1 else said_s) for step in range(1, 11)], gap_s)
    assert (reader.verdict() == "") == fair
    if not fair:
        assert f"but {7 * gap_s:.3g} s passed between their lines" in reader.verdict()


def test_nothing_is_said_of_a_rank_that_prints_no_steps() -> None:
    assert heard([])[0].verdict() == ""
