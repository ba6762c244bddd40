"""A log stays short while its rank prints, and keeps what tells most."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from autotune_trials import rank_log
from autotune_trials.rank_log import LogKeeper, cut, open_log, tail

KIB = 1 << 10
PRINTS = """
import faulthandler, os, sys
os.write(1, b"the first line\\n")
for word in sys.stdin:
    os.write(1, b"x" * 1023 * 1024 + b"\\n" * 1024)
    if word == "crash\\n":
        faulthandler.dump_traceback(file=1)
        os._exit(3)
    print("printed", file=sys.stderr, flush=True)
"""


class Printer:
    """A program that prints a MiB straight to its output, as often as it is asked."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process

    def ask(self, word: str = "print") -> None:
        assert self.process.stdin is not None
        assert self.process.stderr is not None
        self.process.stdin.write(word + "\n")
        self.process.stdin.flush()
        self.process.stderr.readline()


@contextmanager
def printing(log: Path) -> Iterator[Printer]:
    pipe = subprocess.PIPE
    with (
        open_log(log) as out,
        subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", PRINTS], stdin=pipe, stdout=out, stderr=pipe, text=True
        ) as process,
    ):
        yield Printer(process)


@pytest.mark.parametrize("holes", [True, False])
def test_a_rank_that_prints_without_end_fills_no_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, holes: bool
) -> None:
    if not holes:
        monkeypatch.setattr(rank_log, "punch", lambda *_: False)
    log = tmp_path / "rank-0.log"
    keeper = LogKeeper([log], head_bytes=4 * KIB, tail_bytes=64 * KIB)
    with printing(log) as printer:
        for _ in range(8):
            printer.ask()
            keeper.look()
            assert log.stat().st_blocks * 512 < 150 * KIB
        assert (log.stat().st_size > 8000 * KIB) is holes
        assert tail(log, 64 * KIB) == "x" * 63 * KIB + "\n" * KIB
        printer.ask("crash")
        assert printer.process.wait() == 3
    keeper.stop()
    text = log.read_text()
    assert text.startswith("the first line\nxxx")
    assert " bytes are cut out here]\n" in text
    assert 'File "<string>", line 7 in <module>' in text[-200:]
    assert "\0" not in text
    assert log.stat().st_size < 70 * KIB


def test_what_is_printed_after_a_cut_comes_after_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_log, "punch", lambda *_: False)
    log = tmp_path / "rank-0.log"
    keeper = LogKeeper([log], head_bytes=10, tail_bytes=10)
    with open_log(log) as out:
        out.write(b"0123456789" * 10)
        keeper.look()
        out.write(b"the end")
    assert log.read_bytes() == b"0123456789\n[80 bytes are cut out here]\n0123456789the end"


def test_a_short_log_is_left_as_it_is(tmp_path: Path) -> None:
    log = tmp_path / "rank-0.log"
    log.write_bytes(b"short\n")
    keeper = LogKeeper([log, tmp_path / "never-written.log"])
    keeper.start()
    keeper.look()
    keeper.stop()
    keeper.stop()
    assert log.read_bytes() == b"short\n"
    assert [path.name for path in tmp_path.iterdir()] == ["rank-0.log"]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
@given(st.binary(max_size=400), st.integers(0, 50), st.integers(0, 50))
def test_cutting_keeps_both_ends_and_cuts_once(tmp_path: Path, content: bytes, head: int, end: int) -> None:
    log = tmp_path / "rank-3.log"
    log.write_bytes(content)
    cut(log, head, end)
    found = log.read_bytes()
    assert found.startswith(content[:head])
    assert found.endswith(content[len(content) - min(end, len(content)) :])
    assert len(found) <= max(head + end + 64, 0)
    cut(log, head, end)
    assert log.read_bytes() == found


def test_the_end_of_a_log_that_is_not_there_is_empty(tmp_path: Path) -> None:
    assert tail(tmp_path / "rank-0.log", 10) == ""
