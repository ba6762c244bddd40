"""Standard output that cannot be written to: closed, full, or without a reader."""

import os
from typing import TextIO


def discard(stream: TextIO) -> None:
    """Let what the stream still holds go nowhere, so that the interpreter does not complain of it at its end."""
    try:
        target = stream.fileno()
    except (OSError, ValueError):  # no file stands behind it
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, target)
    os.close(nowhere)
