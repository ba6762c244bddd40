"""What commands say: data on standard output, talk on standard error, and an output that cannot be written to."""

import json
import os
import sys
from typing import TextIO


def put(text: str) -> None:
    """Write data to standard output; to nowhere when the caller closed it."""
    if sys.stdout is not None:
        sys.stdout.write(text)


def say(line: str) -> None:
    """Tell a person one line, on standard error."""
    if sys.stderr is not None:
        sys.stderr.write(line + "\n")
        sys.stderr.flush()


def json_line(document: object) -> str:
    """A document as exactly one line of JSON."""
    return json.dumps(document) + "\n"


def json_text(document: object) -> str:
    """A document as JSON that people read too."""
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def reason(error: OSError) -> str:
    """Why a file cannot be read or written: ``x.yaml: No such file or directory``."""
    return f"{error.filename}: {error.strerror}"


def discard(stream: TextIO) -> None:
    """Let what the stream still holds go nowhere, so that the interpreter does not complain of it at its end."""
    try:
        target = stream.fileno()
    except (OSError, ValueError):  # no file stands behind it
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, target)
    os.close(nowhere)
