"""What happens when the driver is killed or interrupted in the middle of a run."""

import json
import re
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from .conftest import Command

pytestmark = [pytest.mark.service, pytest.mark.trial, pytest.mark.head]

Outcomes = Callable[[Path], dict[int, dict[str, Any]]]
START = ("start", "--cluster", "local", "--confirm", "0", "--json")
SHORT = 3
LONG = 12  # trials: more than pass while a busy machine answers questions about the run


def interrupt_in_the_second_launch(
    command: Command, number: int, arguments: tuple[str, ...], look: Callable[[], None] = lambda: None
) -> "subprocess.CompletedProcess[str]":
    """Run until the first trial has ended and the second one trains, look around, then send the driver a signal."""
    process = command.start(*arguments)
    study = command.home / "tiny-moe-local" / "trials"
    end_s = time.monotonic() + 400
    while time.monotonic() < end_s and process.poll() is None:
        steps = study / "0001" / "steps.jsonl"
        if steps.exists() and steps.read_text(encoding="utf-8"):
            break
        time.sleep(0.1)
    else:
        process.kill()
        raise AssertionError(f"the second trial never trained: {command.talk}")
    look()
    process.send_signal(number)
    return command.finish(process, timeout_s=150)


def test_a_killed_driver_leaves_nothing_and_the_same_command_goes_on(
    own_command: Command, short_model: str, outcomes: Outcomes
) -> None:
    asked = (*START, "--model", short_model, "--trials", str(SHORT))
    killed = interrupt_in_the_second_launch(own_command, signal.SIGKILL, asked)
    left = own_command.wait_until_gone(60)
    study = own_command.home / "tiny-moe-local"
    before = (study / "trials/0000/outcome.json").stat().st_mtime_ns

    again = own_command.run(*asked)

    assert killed.returncode == -signal.SIGKILL
    assert left == []
    assert again.returncode == 0, again.stderr
    launched = outcomes(study)
    assert (study / "trials/0000/outcome.json").stat().st_mtime_ns == before
    assert len({json.dumps(outcome["settings"], sort_keys=True) for outcome in launched.values()}) == SHORT
    summary = json.loads(again.stdout)
    assert sum(n for state, n in summary["counts"].items() if state in ("COMPLETE", "INFEASIBLE", "FALLBACK")) == SHORT
    assert own_command.wait_until_gone(60) == []


def ray_state(dashboard: str, what: str) -> list[dict[str, Any]]:
    """What the dashboard of the run knows, asked with the token that Ray keeps for this user."""
    token = Path("~/.ray/auth_token").expanduser().read_text(encoding="utf-8").strip()
    request = urllib.request.Request(
        f"{dashboard}/api/v0/{what}?limit=1000&detail=1", headers={"Authorization": f"Bearer {token}"}
    )
    with urllib.request.urlopen(request, timeout=20) as answer:
        found = json.loads(answer.read())["data"]["result"]["result"]
    assert isinstance(found, list)
    return found


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_and_sigterm_end_the_gang_and_keep_the_study(
    own_command: Command, short_model: str, outcomes: Outcomes, number: int
) -> None:
    seen: dict[str, list[dict[str, Any]]] = {}

    def look() -> None:
        [dashboard] = re.findall(r"ray dashboard: (http://127\.0\.0\.1:\d+)", own_command.talk)
        seen.update({what: ray_state(dashboard, what) for what in ("actors", "placement_groups")})
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(f"{dashboard}/api/v0/actors", timeout=20)

    interrupted = interrupt_in_the_second_launch(
        own_command, number, (*START, "--model", short_model, "--trials", str(LONG)), look
    )

    assert interrupted.returncode == 1
    assert "error: interrupted; study 'tiny-moe-local' keeps what had finished" in interrupted.stderr
    assert "hint: the same command goes on from there" in interrupted.stderr
    assert "Traceback" not in interrupted.stderr
    assert "***" not in interrupted.stderr
    assert own_command.wait_until_gone(60) == []
    kept = list(outcomes(own_command.home / "tiny-moe-local"))
    assert 0 in kept
    assert len(kept) < LONG
    assert "tiny-moe-local/trial-0001/node-0" in {actor["name"] for actor in seen["actors"]}
    assert any("tiny-moe-local" in group["name"] for group in seen["placement_groups"])
