"""How a trial program ends: with one event that says why, and at once."""

import contextlib
import os
import sys
import traceback
from typing import NoReturn

from autotune_trials.events import EventWriter
from autotune_trials.native.failures import one_line
from autotune_trials.processes import kill_descendants

REJECTED = 2
"""Exit status of a configuration that cannot run as asked; any other failure is 1."""

_PATIENCE_S = 2.0
"""For a process that is stuck inside the kernel; whoever started this one goes on looking for it."""


def fail(events: EventWriter, kind: str, error: BaseException) -> NoReturn:
    """Say why, in the events and in the log, and end the process."""
    message = one_line(error)
    events.write("failed", kind=kind, error=type(error).__name__, message=message)
    if kind == "rejected":
        print(f"rejected: {message}", file=sys.stderr)  # noqa: T201 - the rank's log
    else:
        traceback.print_exception(error)
    leave(REJECTED if kind == "rejected" else 1)


def leave(status: int) -> NoReturn:
    """End the process without waiting for anybody: peers in a collective must not keep a failed rank alive.

    What its libraries started ends with it: afterwards nobody could find a process in a session and with an
    environment of its own.
    """
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # whatever was imported may have closed or replaced it
            stream.flush()
    kill_descendants(timeout_s=_PATIENCE_S)
    os._exit(status)
