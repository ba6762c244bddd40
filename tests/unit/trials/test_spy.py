"""Looking into the processes of a command, with the real py-spy and with stand-ins that misbehave."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from autotune.measure.failure import innermost
from autotune_trials import spy as module
from autotune_trials.spy import MOST_PROCESSES, spy

HANGS = """
import os, sys, time
def wait_for_ever():
    time.sleep(60)
os.write(1, b"up\\\\n")
wait_for_ever()
"""
LAUNCHES = f"""
import subprocess, sys, time
children = [subprocess.Popen([sys.executable, "-I", "-S", "-c", '''{HANGS}''']) for _ in range(int(sys.argv[1]))]
children[0].wait()
"""
MARK = "a-mark-of-the-test"


@pytest.fixture
def command():
    """``command(2)`` starts a rank whose command is a launcher of two hanging processes; returns the rank's pid."""
    started = []

    def start(count):
        words = [sys.executable, "-I", "-S", "-c"]
        supervise = f"import subprocess; subprocess.run({[*words, LAUNCHES, str(count)]!r})"
        started.append(subprocess.Popen([*words, supervise], stdout=subprocess.PIPE, start_new_session=True))
        for _ in range(count):
            assert started[-1].stdout.readline() == b"up\n"
        return started[-1].pid

    yield start
    for each in started:
        subprocess.run(["kill", "-9", "--", f"-{each.pid}"], check=True)
        each.communicate()


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    def make(script):
        path = tmp_path / "py-spy"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o700)
        monkeypatch.setattr(module, "_program", lambda: str(path))

    return make


@pytest.mark.service
def test_the_process_that_hangs_is_told_and_not_its_launcher(command):
    found = spy({5: command(1)}, MARK, wait_s=10.0)
    assert list(found) == [5]
    assert found[5].count("process ") == 2
    assert found[5].rindex("in wait_for_ever") > found[5].rindex("subprocess.py")
    assert innermost(found[5]) == "wait_for_ever (<string>:4)"


def test_a_rank_without_processes_has_nothing_to_show(command):
    with subprocess.Popen([sys.executable, "-I", "-S", "-c", "input()"], stdin=subprocess.PIPE) as alone:
        assert spy({0: alone.pid, 1: 2**22 + 1}, MARK) == {}
        alone.communicate(b"\n")


def test_without_py_spy_it_is_said_how_to_get_it(command, monkeypatch):
    monkeypatch.setattr(module, "_program", lambda: None)
    assert spy({0: command(1)}, MARK) == {0: "py-spy is not here to look into them: pip install py-spy\n"}


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo 'Permission Denied: Try running again' >&2; exit 1", "the container needs the capability SYS_PTRACE"),
        ("echo 'Error: Operation not permitted (os error 1)' >&2; exit 1", "the capability SYS_PTRACE"),
        ("echo 'Error: Failed to find python version' >&2; exit 1", "py-spy: Error: Failed to find python version"),
        ("exit 1", "py-spy: no answer"),
        ("echo '[{\"frames\": 7}]'", "py-spy: no answer"),
        ("echo '{}'; echo garbage >&2", "py-spy: garbage"),
    ],
)
def test_a_py_spy_that_finds_nothing_says_why(command, stand_in, script, said):
    stand_in(script)
    [text] = spy({0: command(1)}, MARK, wait_s=10.0).values()
    assert text.count(said) == 2
    assert innermost(text) == ""


def test_a_py_spy_that_hangs_is_ended_in_time(command, stand_in):
    stand_in("exec sleep 60")
    began_s = time.monotonic()
    [text] = spy({0: command(1)}, MARK, wait_s=0.3).values()
    assert time.monotonic() - began_s < 2.0
    assert text.count("py-spy did not come back within 0.3 s") == 2
    spies = [path for path in Path("/proc").glob("[0-9]*/environ") if MARK.encode() in _read(path)]
    assert spies == []


def test_many_processes_and_long_stacks_are_cut(command, stand_in):
    frame = '{"filename": "a.py", "line": 1, "name": "deep"}'
    thread = f'{{"thread_id": 1, "os_thread_id": 1, "thread_name": "t", "frames": [{", ".join([frame] * 500)}]}}'
    stand_in(f"cat <<'END'\n[{thread}]\nEND")
    [text] = spy({0: command(MOST_PROCESSES + 2)}, MARK, wait_s=10.0).values()
    assert text.startswith("3 more processes were not looked into\n")
    assert text.count("process ") == MOST_PROCESSES
    assert len(text) < MOST_PROCESSES * (5 << 10)


def _read(path):
    try:
        return path.read_bytes()
    except OSError:
        return b""
