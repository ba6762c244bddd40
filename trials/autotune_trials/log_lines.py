"""Reads what Megatron-LM and Megatron-Bridge print: steps, memory, and the dump of the arguments in force.

A log is no clean text: progress bars end lines with carriage returns, colours are escape sequences, a pipe delivers
half lines, and libraries print banners into the middle of others' lines. So text comes in as bytes, in pieces of any
size, and a step line that was torn apart is put together again from its own end mark.
"""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_LINE_END = re.compile(rb"[\r\n]")

_HEAD = re.compile(r"\biteration\s+(\d+)\s*/\s*(\d+)\s*\|")
_END = re.compile(r"\bnumber of nan iterations:\s*(\d+)\s*\|?")
_NUMBER = r"([-+]?(?:nan|inf|\d+(?:\.\d*)?(?:[eE][-+]?\d+)?))"
_MEMORY = re.compile(r"(?:\[Rank (\d+)\]\s*)?\(after (\d+) iterations\) memory \((MB|GB)\)((?: *\|[^|]*)+)")
_PEAK = re.compile(r"\b(?:mem-max-allocated-gigabytes|max allocated):\s*" + _NUMBER)
_BYTES = {"GB": 1e9, "MB": 1024.0**2}  # Bridge counts in powers of ten, Megatron-LM's MB is a mebibyte

_DUMP_START = re.compile(r"-{3,} arguments -{3,}\s*$")
_DUMP_END = re.compile(r"-{3,} end of arguments -{3,}")

_TORN_LINES = 8
"""A step line that is not complete after so many more lines never will be."""
_LONGEST_LINE = 1 << 16
"""Of a longer line only so much of its end is read: a record that follows a dump of something without a line end."""


@dataclass(frozen=True)
class Step:
    """One line ``iteration N/ M | ...`` of the last rank.

    Attributes:
        step: From 1.
        steps: Steps of the whole run.
        step_time_s: Mean wall time of the iterations since the last such line; None where it is not said.
        loss: Language-model loss; NaN where iterations were counted as such, None where it is not said.
        grad_norm: Global gradient norm; None where it is not said.
        global_batch_size: Sequences per optimizer step; None where it is not said.
        skipped: Iterations since the last line whose update was skipped.
        nan: Iterations since the last line whose loss was no number.
    """

    step: int
    steps: int
    step_time_s: float | None
    loss: float | None
    grad_norm: float | None
    global_batch_size: int | None
    skipped: int
    nan: int


@dataclass(frozen=True)
class Memory:
    """One memory line, which the first rank of each data-parallel group prints.

    Attributes:
        rank: Who says it; None where it is not said.
        step: After how many steps; only from the second on does it hold the optimizer's state.
        peak_bytes: Most bytes that the allocator had given out so far.
    """

    rank: int | None
    step: int
    peak_bytes: int


@dataclass(frozen=True)
class ArgumentDump:
    """The block in which rank 0 of Megatron-LM prints every argument that is in force, marks included."""

    text: str


Record = Step | Memory | ArgumentDump


class LogReader:
    """Turns the output of a program into records, whatever the pieces in which it arrives."""

    def __init__(self) -> None:
        self._rest = bytearray()
        self._torn = ""
        self._torn_lines = 0
        self._dump: list[str] | None = None

    def feed(self, data: bytes) -> list[Record]:
        """The records that these bytes complete."""
        records: list[Record] = []
        *ends, rest = _LINE_END.split(data)
        for end in ends:
            self._rest += end
            records += self._whole()
        self._rest += rest
        if len(self._rest) > 2 * _LONGEST_LINE:  # rarely, so that the cost of a byte does not grow with the line
            del self._rest[:-_LONGEST_LINE]
        return records

    def close(self) -> list[Record]:
        """The records in what is left at the end of the output."""
        return self._whole() + list(self._give_up())

    def _whole(self) -> list[Record]:
        """The records of the line that has come to its end; an empty one is none, as between a CR and its LF."""
        line = bytes(self._rest[-_LONGEST_LINE:])
        self._rest.clear()
        return list(self._line(_text(line))) if line else []

    def _line(self, line: str) -> Iterator[Record]:
        if self._dump is not None or _DUMP_START.search(line):
            yield from self._dump_line(line)
            return
        memory = _memory(line)
        if memory is not None:
            yield memory
        head = _HEAD.search(line)
        if head is not None:
            yield from self._give_up()
            self._torn, self._torn_lines = line[head.start() :], 0
        elif self._torn:
            self._torn = f"{self._torn} {line}"
            self._torn_lines += 1
        if self._torn and (_END.search(self._torn) or self._torn_lines >= _TORN_LINES):
            yield from self._give_up()

    def _give_up(self) -> Iterator[Record]:
        """What a step line says as far as it came."""
        step = _step(self._torn)
        self._torn = ""
        if step is not None:
            yield step

    def _dump_line(self, line: str) -> Iterator[Record]:
        if self._dump is None or _DUMP_START.search(line):
            self._dump = []
        self._dump.append(line)
        if _DUMP_END.search(line):
            yield ArgumentDump("\n".join(self._dump) + "\n")
            self._dump = None


def _text(line: bytes) -> str:
    return _ESCAPE.sub("", line.decode("utf-8", errors="replace"))


def _step(text: str) -> Step | None:
    """The step in a complete or torn line; None when it has neither a time nor its end mark."""
    head, end = _HEAD.search(text), _END.search(text)
    if head is None:
        return None
    milliseconds = _value(text, r"elapsed time per iteration \(ms\)")
    if milliseconds is None and end is None:
        return None
    nan = int(end[1]) if end else 0
    loss = _value(text, r"lm loss")
    batch = _value(text, r"global batch size")
    return Step(
        step=int(head[1]),
        steps=int(head[2]),
        step_time_s=None if milliseconds is None else milliseconds / 1e3,
        # A loss that is no number is left out of the line and only counted.
        loss=math.nan if loss is None and nan else loss,
        grad_norm=_value(text, r"grad norm"),
        global_batch_size=None if batch is None or not batch.is_integer() else int(batch),
        skipped=int(_value(text, r"number of skipped iterations") or 0),
        nan=nan,
    )


def _value(text: str, name: str) -> float | None:
    found = re.search(rf"\b{name}:\s*{_NUMBER}\s*\|", text)
    return float(found[1]) if found else None


def _memory(line: str) -> Memory | None:
    found = _MEMORY.search(line)
    peak = _PEAK.search(found[4]) if found else None
    if found is None or peak is None or not math.isfinite(float(peak[1])):
        return None
    rank = int(found[1]) if found[1] is not None else None
    return Memory(rank, int(found[2]), round(float(peak[1]) * _BYTES[found[3]]))
