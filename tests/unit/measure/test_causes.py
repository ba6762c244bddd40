"""Failures are recognised from the shapes of real logs, and the table of causes keeps its own rules."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.measure.causes import CAUSES, recognise
from autotune.measure.failure import diagnose, innermost
from autotune.measure.run import GangRun, RankExit
from autotune_trials.events import StepRecord

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
    assert found.reason == "the command exited with status 3 (rank 1, node 0, no step known)"


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
    assert found.reason == "hang: ranks 0-1 silent before any step was told (all of them)"
    assert (found.cause.name, found.node) == ("hang", None)


LACKING = {
    "kind": "out_of_memory",
    "error": "OutOfMemoryError",
    "message": "CUDA out of memory. Tried to allocate 2 GiB",
}
MEMORY_LINE = "[Rank 0] (after 2 iterations) memory (MB) | allocated: 1.00 | max allocated: 2.00 |\n"
STEP_LINE = (
    " iteration        5/      10 | elapsed time per iteration (ms): 10.0 | lm loss: 6.7E+00 |"
    " number of nan iterations:   0 |\n"
)


@pytest.mark.parametrize(
    ("log", "told", "where", "violation"),
    [
        ("", 0, "no step known", 2.0),
        ("loading\n", 0, "no step known", 2.0),
        (MEMORY_LINE, 0, "after step 2", 1.8),
        (MEMORY_LINE + STEP_LINE, 0, "after step 5", 1.5),
        ("", 4, "after step 4", 1.6),
        ("", 7, "after step 7", 1.3),
    ],
)
def test_how_far_a_rank_came_that_tells_no_steps_is_read_from_its_log_or_left_open(log, told, where, violation):
    steps = tuple(StepRecord(number, 0.1, 1.0, 1.0, 8) for number in range(1, told + 1))
    ranks = (RankExit(0, 0, 1, False, "failed", failure=LACKING, log_tail=log), RankExit(1, 0, -9, True, "step", told))
    found = diagnose(GangRun("rank_died", ranks, steps), 10, representatives=True)
    assert found.reason.endswith(f"(rank 0, node 0, {where})")
    assert found.violation == pytest.approx(violation)
    native = diagnose(GangRun("rank_died", (replace(ranks[0], failure=LACKING),)), 10)
    assert native.reason.endswith("(rank 0, node 0, before step 1)")


def test_a_rank_that_leaves_early_with_status_0_ended_early_whoever_follows():
    said = {"kind": "exception", "error": "EndedEarly", "message": "the command left with status 0 after 3 of 10 steps"}
    gone = {"kind": "exception", "error": "DistBackendError", "message": "remote process exited"}
    ranks = (RankExit(0, 0, 1, failure=gone), RankExit(1, 0, 1, False, "failed", 3, failure=said))
    found = diagnose(GangRun("rank_died", ranks), 10, representatives=True)
    assert (found.cause.name, found.node) == ("ended_early", 0)
    assert found.reason == (
        "ended early: the command left with status 0 after 3 of 10 steps (rank 1, node 0, after step 3); "
        "rank 0 followed"
    )


@pytest.mark.parametrize(
    ("ending", "peer"),
    [
        ("rank_died", RankExit(0, 0, 1, last_event="step", last_step=3, failure={
            "kind": "exception", "error": "RuntimeError", "message": "Connection closed by peer"})),
        ("rank_died", RankExit(0, 0, -6, last_event="step", last_step=3)),
        ("stall", RankExit(0, 0, -9, True, "step", 3)),
    ],
)  # fmt: skip
def test_a_rank_that_left_with_status_0_before_its_end_is_the_cause_and_not_those_that_waited_for_it(ending, peer):
    ranks = (peer, RankExit(1, 0, 0, False, "step", 3))
    found = diagnose(GangRun(ending, ranks), 10)
    assert found.cause.name == "ended_early"
    assert found.reason.startswith(
        "ended early: it left with status 0 without having finished (rank 1, node 0, after step 3)"
    )


def test_ranks_that_left_beside_others_that_trained_on_ended_early():
    ranks = tuple(RankExit(rank, 0, 0, False, "finished", 3) for rank in range(2))
    message = "rank 0 ended after step 3 of 10, the others trained on without it"
    found = diagnose(GangRun("rank_died", ranks, message=message), 10)
    assert (found.cause.name, found.reason) == ("ended_early", f"ended early: {message}")
