"""Failures are recognised from the shapes of real logs, and the table of causes keeps its own rules."""

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.measure.causes import CAUSES, recognise
from autotune.measure.failure import diagnose, innermost
from autotune.measure.run import GangRun, RankExit

SAMPLES = sorted((Path(__file__).parents[2] / "data" / "logs" / "failures").glob("*.log"))
DOCUMENT = Path(__file__).parents[3] / "docs" / "outcomes.md"


def sample(path):
    head, _, text = path.read_text().partition("\n")
    return json.loads(head), text


def diagnosed(log_tail, **rank):
    dead = RankExit(3, 0, rank["exit_code"], False, rank["last_event"], rank["last_step"], log_tail=log_tail)
    others = tuple(RankExit(other, 0, -9, True, "step", 9) for other in range(3))
    return diagnose(GangRun("rank_died", (*others, dead)), steps=10)


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
def test_a_log_shows_its_cause(path):
    rank, text = sample(path)
    failure = diagnosed(text, **rank)
    assert failure.cause.name == path.stem.rpartition("-")[0]
    assert failure.cause.advice
    assert "(rank 3, node 0, " in failure.reason
    assert "\n" not in failure.reason


def test_every_cause_that_a_text_shows_has_a_sample():
    shown = {path.stem.rpartition("-")[0] for path in SAMPLES}
    assert shown == {cause.name for cause in CAUSES if cause.pattern is not None}


def test_names_are_unique_and_every_row_is_complete():
    assert len({cause.name for cause in CAUSES}) == len(CAUSES)
    for cause in CAUSES:
        assert cause.advice
        assert "\n" not in cause.advice
        assert bool(cause.title) <= (cause.pattern is not None)


def test_a_warning_about_a_missing_package_is_not_why_a_later_step_crashed():
    log = "warning: No module named 'deep_ep'; DeepEP is not installed\n"
    assert diagnosed(log, exit_code=-11, last_event="step", last_step=4).cause.name == "crash"
    assert diagnosed(log, exit_code=-11, last_event="started", last_step=0).cause.name == "import_crash"


def test_an_ordinary_log_shows_nothing():
    for log in ("megatron_lm.log", "megatron_bridge.log"):
        assert recognise((Path(__file__).parents[2] / "data" / "logs" / log).read_text(errors="replace")) is None


@given(st.text())
def test_any_text_gets_a_cause_or_none(text):
    assert recognise(text) in (*CAUSES, None)


def test_the_place_of_a_hang_is_the_innermost_frame_of_the_main_thread_that_says_something():
    stack = (
        'Thread 0x00007f01 [watcher] (most recent call first):\n  File "/x/selectors.py", line 4 in select\n\n'
        'Current thread 0x00007f02 (most recent call first):\n  File "/usr/lib/threading.py", line 355 in wait\n'
        '  File "/x/deep_ep/buffer.py", line 88 in dispatch\n  File "/x/main.py", line 1 in <module>\n'
    )
    assert innermost(stack) == "dispatch (/x/deep_ep/buffer.py:88)"
    assert innermost("not started yet") == ""


def test_the_document_prints_the_table():
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \| (\w+) \| (.*) \|$", DOCUMENT.read_text(), flags=re.MULTILINE)
    assert rows == [(cause.name, cause.kind, cause.retry, cause.advice) for cause in CAUSES]


def test_a_command_that_ended_without_a_word_is_unknown_with_its_status():
    failure = {"kind": "exception", "error": "CommandExited", "message": "the command exited with status 3"}
    dead = RankExit(1, 0, 3, False, "started", 0, failure=failure)
    found = diagnose(GangRun("rank_died", (RankExit(0, 0, -9, True, "step", 3), dead)), 10, representatives=True)
    assert found.cause.name == "unknown"
    assert found.reason == "the command exited with status 3 (rank 1, node 0, before step 1)"


def test_a_rank_that_tells_no_steps_is_not_behind_one_that_does():
    ranks = (RankExit(0, 0, -9, True, "started", 0), RankExit(1, 1, -9, True, "step", 4))
    found = diagnose(GangRun("stall", ranks), 10, representatives=True)
    assert found.reason == "hang: rank 1 silent after step 4 of 10, rank 0 tells no steps"
    assert found.node is None
    native = diagnose(GangRun("stall", ranks), 10)
    assert native.reason == "hang: rank 0 silent during imports, rank 1 was further on"
    assert native.node == 0


def test_a_command_that_hangs_before_its_first_step_blames_no_rank_for_what_another_printed():
    ranks = (RankExit(0, 0, -9, True, "built", 0), RankExit(1, 1, -9, True, "started", 0))
    found = diagnose(GangRun("stall", ranks, stacks={1: "x"}), 10, representatives=True)
    assert found.reason == "hang: ranks 0-1 silent before step 1 (all of them)"
    assert (found.cause.name, found.node) == ("hang", None)
