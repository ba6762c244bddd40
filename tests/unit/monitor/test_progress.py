"""What a person is told while a study runs."""

from io import StringIO

import pytest
from rich.console import Console

from autotune.measure.outcome import TrialOutcome, TrialState
from autotune.monitor.progress import Progress
from autotune.request import load_request

pytestmark = pytest.mark.service


@pytest.fixture
def settings(tmp_path):
    request = load_request("tiny-moe", "local", home=tmp_path)
    return request.settings(request.space.baseline)


@pytest.fixture
def told():
    """A progress and what it has said so far, as lines."""
    text = StringIO()
    return Progress(9, Console(file=text, width=200)), lambda: text.getvalue().splitlines()


def complete(trial, speed, settings):
    return TrialOutcome(
        trial, TrialState.COMPLETE, settings, step_time_s=1.0, tokens_per_s_per_gpu=speed, peak_memory_bytes=2**20
    )


def test_the_fastest_so_far_is_that_of_earlier_runs_too(told, settings):
    progress, lines = told
    progress.done(1, [complete(0, 100.0, settings)])
    progress.ended(complete(1, 90.0, settings))
    progress.ended(complete(2, 110.0, settings))
    assert ["fastest" in line for line in lines()] == [False, True]


def test_a_new_epoch_has_no_fastest_yet(told, settings):
    progress, lines = told
    progress.done(1, [complete(0, 100.0, settings)])
    progress.done(0, [])
    progress.ended(complete(1, 90.0, settings))
    assert lines()[-1].endswith("<- fastest so far")


def test_advice_is_given_once_per_cause_and_notes_always(told, settings):
    progress, lines = told
    for trial, cause in enumerate(["hang", "hang", "device_memory"]):
        outcome = TrialOutcome(trial, TrialState.LOST, settings, notes=[f"note of {trial}"])
        progress.ended(outcome.because(cause, TrialState.INFEASIBLE, "reason"))
    said = lines()
    assert sum("hang: see stacks.txt" in line for line in said) == 1
    assert sum("device_memory: lower micro_batch_size" in line for line in said) == 1
    assert [line.strip() for line in said if "note:" in line] == [f"note: note of {trial}" for trial in range(3)]
