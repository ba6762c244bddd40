"""How an error is told to the launcher: its kind and one line."""

import traceback
from pathlib import Path


def kind_of(error: BaseException) -> str:
    """How the failure is to be judged: ``out_of_memory``, ``numerics`` or ``exception``."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return "out_of_memory"
    if isinstance(error, RuntimeError) and "can't allocate memory" in str(error):
        return "out_of_memory"
    return "numerics" if type(error).__name__ == "NumericsError" else "exception"


def one_line(error: BaseException) -> str:
    """The error's text as one line; for errors without a text (bare asserts) the line that raised."""
    text = " ".join(str(error).split())
    if text:
        return text[:500]
    frames = traceback.extract_tb(error.__traceback__)
    if not frames:
        return type(error).__name__
    return f"{Path(frames[-1].filename).name}:{frames[-1].lineno}: {frames[-1].line}"
