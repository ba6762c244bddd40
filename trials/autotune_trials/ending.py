"""How a trial program ends: with one event that says why, and at once."""

import os
import sys
import traceback
from typing import NoReturn

from autotune_trials.events import EventWriter
from autotune_trials.native.failures import one_line

REJECTED = 2
"""Exit status of a configuration that cannot run as asked; any other failure is 1."""


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
    """End the process without waiting for anybody: peers in a collective must not keep a failed rank alive."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
