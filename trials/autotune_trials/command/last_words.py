"""Why a command failed, from the end of what it printed."""

import re
from typing import NamedTuple

from autotune_trials.ending import REJECTED
from autotune_trials.log_lines import LogReader

WITHOUT_A_WORD = "CommandExited"
"""Error name of a command that ended with a status and no error line."""

ENDED_EARLY = "EndedEarly"
"""Error name of a command that left with status 0 before its last step."""

_TRACEBACK = "Traceback (most recent call last)"
_OUT_OF_MEMORY = ("OutOfMemoryError", "out of memory")

_FOLLOWER = re.compile(
    r"remote process exited|connection (?:closed|reset|refused|was)|closed by peer|broken pipe|DistNetworkError"
    r"|ncclRemoteError|communicator was aborted|ChildFailedError",
    re.IGNORECASE,
)
"""What ranks and launchers say when another rank is gone."""


class LastWords(NamedTuple):
    """Fields of the event ``failed``."""

    kind: str
    error: str
    message: str


def why(text: str, status: int, step: int, steps: int) -> LastWords:
    """Kind, error and message of a command that failed.

    One command may hold the output of several ranks: the first to fail is followed by the complaints of those that
    waited for it. So the complaints are passed over, lack of memory counts before all else, and then the last error.

    Args:
        text: The end of what it printed.
        status: Its exit status, not 0.
        step: The last step it told.
        steps: Steps of the contract.
    """
    before, _, after = text.partition(_TRACEBACK)
    stray, traced = _error_lines(before), _error_lines(after)
    own = [line for line in traced if not _FOLLOWER.search(line)]
    # Not every error has a traceback; one without counts where the tracebacks name no cause.
    memory = [line for line in own or stray if any(word in line for word in _OUT_OF_MEMORY)]
    if memory:
        return LastWords("out_of_memory", "OutOfMemoryError", memory[0][:500])
    if errors := own or traced or stray:
        kind = "rejected" if status == REJECTED else "exception"
        return LastWords(kind, "CommandFailed", errors[-1][:500])
    exited = f"the command exited with status {status}" + (f" after {step} of {steps} steps" if step else "")
    last = next((line for line in reversed(text.splitlines()) if line.strip()), "").strip()
    if last and not _is_record(last):
        exited += f"; its last words: {last[:300]}"
    return LastWords("exception", WITHOUT_A_WORD, exited)


def ended_early(text: str, step: int, steps: int) -> LastWords:
    """Kind, error and message of a command that left with status 0 before its last step.

    A pipe in a shell (``... | tee log``) hides the status of a program that failed; its traceback it does not hide.

    Args:
        text: The end of what it printed.
        step: The last step it told.
        steps: Steps of the contract.
    """
    if _TRACEBACK in text and (said := why(text, 1, step, steps)).error != WITHOUT_A_WORD:
        return said
    return LastWords("exception", ENDED_EARLY, f"the command left with status 0 after {step} of {steps} steps")


def _error_lines(text: str) -> list[str]:
    lines = (line.strip() for line in text.splitlines())
    return [line for line in lines if ("Error" in line or "error:" in line) and not line.startswith("File ")]


def _is_record(line: str) -> bool:
    """Whether it is one of the log lines that tell how training goes, which is no reason to end."""
    reader = LogReader()
    return bool([*reader.feed(line.encode() + b"\n"), *reader.close()])
