"""Good verdicts of a node, kept by what they depend on; a bad one is always looked at again, in case it was mended."""

import contextlib
import hashlib
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autotune_trials.preflight.levels import SUBJECTS
from autotune_trials.preflight.verdict import Verdict, is_verdict

_VARIABLES = ("PYTHONPATH", "LD_LIBRARY_PATH", "LD_PRELOAD", "PATH", "CUDA_HOME", "CUDA_PATH", "CUDA_VISIBLE_DEVICES")


class VerdictCache:
    """Verdicts in a folder of this node, one file each; what cannot be read or written is as good as absent.

    Args:
        folder: Where they are; made when the first one is kept.
        depends_on: What every verdict depends on: the node's facts, findings about its devices, the trial's variables,
            what :func:`~autotune_trials.preflight.stamps.library_files` says under them.
    """

    def __init__(self, folder: Path, depends_on: Mapping[str, Any]) -> None:
        here = {name: os.environ.get(name) for name in _VARIABLES}
        self._folder = folder
        self._shared = {**depends_on, "here": here, "python": sys.executable, "prefix": sys.prefix}

    def get(self, backend: str) -> Verdict | None:
        """A good verdict on the same stack, the same devices and the same files of the library; else None."""
        try:
            kept = json.loads(self._path(backend).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return kept if is_verdict(kept) and kept["backend"] == backend and kept["available"] else None

    def keep(self, found: Verdict) -> None:
        """Keep a verdict if it is good, and of something whose files are known: not of a user's module."""
        if found["available"] and found["backend"] in SUBJECTS:
            path = self._path(str(found["backend"]))
            with contextlib.suppress(OSError):
                path.parent.mkdir(parents=True, exist_ok=True)
                partial = path.with_name(f"{path.name}.{os.getpid()}")
                partial.write_text(json.dumps(found), encoding="utf-8")
                partial.replace(path)

    def _path(self, backend: str) -> Path:
        canonical = json.dumps({**self._shared, "backend": backend}, sort_keys=True)
        return self._folder / f"{hashlib.sha256(canonical.encode()).hexdigest()[:24]}.json"
