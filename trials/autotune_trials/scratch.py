"""The node-local folder for compile caches, verdicts of the preflight, and what running gangs write."""

import os
import tempfile
from pathlib import Path

SCRATCH_VARIABLE = "AUTOTUNE_SCRATCH"
"""Environment variable naming the node-local folder for caches and logs; a private one in /tmp otherwise."""


def scratch() -> Path:
    """The node-local folder for caches and logs, made private to this user if missing.

    Raises:
        PermissionError: somebody else made it: compiled code from there must not be loaded.
    """
    named = os.environ.get(SCRATCH_VARIABLE)
    folder = Path(named) if named else Path(tempfile.gettempdir(), f"autotune-{os.getuid()}")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    owner = folder.stat().st_uid
    if owner != os.getuid():
        raise PermissionError(f"{folder} belongs to user {owner}; name another folder in {SCRATCH_VARIABLE}")
    return folder
