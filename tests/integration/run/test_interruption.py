"""What happens when the driver is killed or interrupted in the middle of a run."""

import json
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from .conftest import Command

pytestmark = [pytest.mark.service, pytest.mark.trial]

Outcomes = Callable[[Path], dict[int, dict[str, Any]]]
START = ("start", "--model", "tiny-moe", "--cluster", "local", "--trials", "3", "--json")


def interrupt_in_the_second_launch(command: Command, number: int) -> "subprocess.CompletedProcess[str]":
    """Run until the first trial has ended and the second one trains, then send the driver a signal."""
    process = command.start(*START)
    study = command.home / "tiny-moe-local" / "trials"
    end_s = time.monotonic() + 180
    while time.monotonic() < end_s and process.poll() is None:
        steps = study / "0001" / "steps.jsonl"
        if steps.exists() and steps.read_text(encoding="utf-8"):
            break
        time.sleep(0.1)
    else:
        process.kill()
        raise AssertionError(f"the second trial never trained: {process.communicate()}")
    process.send_signal(number)
    out, talk = process.communicate(timeout=60)
    return subprocess.CompletedProcess(START, process.returncode, out, talk)


def test_a_killed_driver_leaves_nothing_and_the_same_command_goes_on(own_command: Command, outcomes: Outcomes) -> None:
    killed = interrupt_in_the_second_launch(own_command, signal.SIGKILL)
    left = own_command.wait_until_gone(20)
    study = own_command.home / "tiny-moe-local"
    before = (study / "trials/0000/outcome.json").stat().st_mtime_ns

    again = own_command.run(*START)

    assert killed.returncode == -signal.SIGKILL
    assert left == []
    assert again.returncode == 0, again.stderr
    launched = outcomes(study)
    assert (study / "trials/0000/outcome.json").stat().st_mtime_ns == before
    assert len({json.dumps(outcome["settings"], sort_keys=True) for outcome in launched.values()}) == 3
    summary = json.loads(again.stdout)
    assert sum(n for state, n in summary["counts"].items() if state in ("COMPLETE", "INFEASIBLE", "FALLBACK")) == 3
    assert own_command.wait_until_gone(15) == []


def test_ctrl_c_ends_the_gang_and_keeps_the_study(own_command: Command, outcomes: Outcomes) -> None:
    interrupted = interrupt_in_the_second_launch(own_command, signal.SIGINT)

    assert interrupted.returncode == 1
    assert "error: interrupted; study 'tiny-moe-local' keeps what had finished" in interrupted.stderr
    assert "hint: the same command goes on from there" in interrupted.stderr
    assert "Traceback" not in interrupted.stderr
    assert own_command.wait_until_gone(20) == []
    assert list(outcomes(own_command.home / "tiny-moe-local")) == [0]
