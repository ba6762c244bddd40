"""Log lines of Megatron-LM and Megatron-Bridge, whole, torn, coloured, and in pieces of any size."""

import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune_trials.log_lines import ArgumentDump, LogReader, Memory, Record, Step

OTHERS = st.characters(codec="utf-8", exclude_characters="|\r\n")
LOGS = Path(__file__).parents[2] / "data" / "logs"


def read(data: bytes, size: int = 1 << 20) -> list[Record]:
    reader = LogReader()
    records = [record for start in range(0, len(data), size) for record in reader.feed(data[start : start + size])]
    return records + reader.close()


def line(step: int, milliseconds: float = 10.0, loss: str = " lm loss: 1.250000E+00 |", nan: int = 0) -> str:
    return (
        f" [2026-03-04 05:06:07] iteration {step:8d}/{100:8d} | consumed samples: {8 * step:12d} |"
        f" elapsed time per iteration (ms): {milliseconds:.1f} | learning rate: 1.000000E-03 |"
        f" global batch size: {8:5d} |{loss} loss scale: 1.0 | grad norm: 0.500 |"
        f" number of skipped iterations: {0:3d} | number of nan iterations: {nan:3d} |\n"
    )


def test_megatron_lm() -> None:
    dump, first, memory_1, second, memory_2 = read((LOGS / "megatron_lm.log").read_bytes())

    assert isinstance(dump, ArgumentDump)
    assert "moe_token_dispatcher_type ....................... alltoall" in dump.text
    assert first == Step(1, 20, 15.3204, 10.93718, 8.412, 64, 0, 0)
    assert isinstance(second, Step)
    assert (second.step, second.step_time_s, second.loss) == (2, pytest.approx(1.7119), 10.90102)
    assert memory_1 == Memory(0, 1, round(30100.25 * 2**20))
    assert memory_2 == Memory(0, 2, round(34567.5 * 2**20))


def test_megatron_bridge_with_banner_colours_and_progress_bar() -> None:
    first, memory_1, second, memory_2, third = read((LOGS / "megatron_bridge.log").read_bytes())

    assert isinstance(first, Step)
    assert first.step_time_s == pytest.approx(98.7654)
    assert memory_1 == Memory(8, 1, 55_001_000_000)
    assert second == Step(2, 50, 24.7142, 11.91122, 4.1, 1024, 0, 0)
    assert memory_2 == Memory(0, 2, 62_166_000_000)
    assert isinstance(third, Step)
    assert math.isnan(third.loss or 0.0)
    assert (third.grad_norm, third.skipped, third.nan) == (None, 1, 1)


@pytest.mark.parametrize("name", ["megatron_lm.log", "megatron_bridge.log"])
@settings(deadline=None)  # reads a whole file byte by byte
@given(size=st.integers(1, 200))
def test_the_size_of_the_pieces_changes_nothing(name: str, size: int) -> None:
    data = (LOGS / name).read_bytes()

    assert repr(read(data, size)) == repr(read(data))


@given(
    st.lists(st.text(st.characters(codec="utf-8", exclude_characters="|\r\n"), max_size=40), min_size=1, max_size=12),
    st.data(),
)
def test_lines_of_others_between_ours_change_nothing(others: list[str], data: st.DataObject) -> None:
    ours = [line(step) for step in range(1, 6)]
    mixed = list(ours)
    for other in others:
        mixed.insert(data.draw(st.integers(0, len(mixed))), other + "\n")

    steps = [record for record in read("".join(mixed).encode()) if isinstance(record, Step)]

    assert [step.step for step in steps] == [1, 2, 3, 4, 5]
    assert {(step.step_time_s, step.loss, step.grad_norm) for step in steps} == {(0.01, 1.25, 0.5)}


@given(st.integers(0, 7))
def test_a_line_torn_between_two_fields_is_put_together(cut: int) -> None:
    fields = line(3, 12.5).split(" |")
    torn = " |".join(fields[: cut + 1]) + " |NCCL INFO cudaDriverVersion 12090\n" + " |".join(fields[cut + 1 :])

    assert read(torn.encode()) == [Step(3, 100, 0.0125, 1.25, 0.5, 8, 0, 0)]


@given(st.binary(max_size=300))
def test_any_bytes_are_read_without_an_error(data: bytes) -> None:
    assert all(isinstance(record, Step | Memory | ArgumentDump) for record in read(data))


def test_a_line_that_never_ends_gives_way_to_the_next() -> None:
    half = line(1).split(" learning")[0] + "\n"

    assert [record.step for record in read((half + line(2)).encode()) if isinstance(record, Step)] == [1, 2]
    assert read(b" iteration 4/ 9 | consumed samples: 3 |\n") == []


def test_a_line_of_many_megabytes_costs_no_more_than_its_bytes() -> None:
    """Work per byte must not grow with the line: count how many bytes are ever looked through for a record."""
    reader = LogReader()
    piece = b"x" * (1 << 16)
    longest = 0
    for _ in range(400):
        assert reader.feed(piece) == []
        longest = max(longest, len(reader._rest))
    assert longest <= 1 << 18
    assert [record for record in reader.feed(("|" + line(7)).encode()) if isinstance(record, Step)] == [
        Step(7, 100, 0.01, 1.25, 0.5, 8, 0, 0)
    ]


def test_a_validation_line_is_no_step() -> None:
    assert read(b" validation loss at iteration 10 | lm loss value: 1.0E+00 | lm loss PPL: 2.7E+00 |\n") == []
