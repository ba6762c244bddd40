"""Why a command failed, from the end of what it printed."""

from hypothesis import given
from hypothesis import strategies as st

from autotune_trials.command.last_words import ENDED_EARLY, WITHOUT_A_WORD, ended_early, why

STEP = (
    " [2026-01-02 03:04:05.678901] iteration        3/      10 | consumed samples:           24 |"
    " elapsed time per iteration (ms): 10.0 | learning rate: 1.000000E-03 | global batch size:     8 |"
    " lm loss: 6.700000E+00 | loss scale: 1.0 | grad norm: 1.234 | number of skipped iterations:   0 |"
    " number of nan iterations:   0 |\n"
)
OUT_OF_MEMORY = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
GONE = "torch.distributed.DistBackendError: NCCL error: remote process exited or there was a network error"


def traceback(error):
    frames = "".join(f'  File "/x/y{line}.py", line {line}, in f{line}\n    call(a, b)\n' for line in range(8))
    return f"Traceback (most recent call last):\n{frames}{error}\n"


@given(st.integers(0, 15), st.integers(0, 15))
def test_lack_of_memory_is_found_among_the_complaints_of_the_ranks_that_waited(before, after):
    text = STEP + traceback(GONE) * before + traceback(OUT_OF_MEMORY) + traceback(GONE) * after
    assert why(text, 1, 3, 10) == ("out_of_memory", "OutOfMemoryError", OUT_OF_MEMORY)
    without_frames = STEP + OUT_OF_MEMORY + "\n" + traceback(GONE) * after
    assert why(without_frames, 1, 3, 10) == ("out_of_memory", "OutOfMemoryError", OUT_OF_MEMORY)


def test_an_error_of_its_own_comes_before_the_launchers_and_the_waiting_ranks_words():
    text = "Error: an optional plug-in is missing\n" + traceback("ValueError: num_layers must be divisible by 3")
    text += traceback(GONE) + traceback("torch.distributed.elastic.multiprocessing.errors.ChildFailedError:")
    assert why(text, 1, 0, 10) == ("exception", "CommandFailed", "ValueError: num_layers must be divisible by 3")
    assert why(traceback(GONE), 1, 0, 10).message == GONE
    caught = OUT_OF_MEMORY + " Trying again.\n" + traceback("KeyError: 'experts'")
    assert why(caught, 1, 0, 10).message == "KeyError: 'experts'"


def test_a_usage_error_is_a_refusal():
    assert why("usage: train\ntrain: error: unknown option --x\n", 2, 0, 10).kind == "rejected"


def test_a_good_step_is_no_error():
    said = why(STEP, 3, 3, 10)
    assert said == ("exception", WITHOUT_A_WORD, "the command exited with status 3 after 3 of 10 steps")
    assert why("", 3, 0, 10).message == "the command exited with status 3"
    assert why("going down\n\n", 3, 0, 10).message.endswith("its last words: going down")


def test_a_command_that_leaves_early_with_status_0_says_why_only_by_a_traceback():
    assert ended_early(STEP + "WARNING: an Error was handled\n", 3, 10) == (
        "exception", ENDED_EARLY, "the command left with status 0 after 3 of 10 steps",
    )  # fmt: skip
    piped = STEP + traceback(OUT_OF_MEMORY)
    assert ended_early(piped, 3, 10) == ("out_of_memory", "OutOfMemoryError", OUT_OF_MEMORY)
    assert ended_early(STEP + "Traceback (most recent call last):\n", 3, 10).error == ENDED_EARLY
