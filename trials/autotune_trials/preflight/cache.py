"""Good verdicts of a node, kept by what they depend on; a bad one is always looked at again, in case it was mended."""

import contextlib
import hashlib
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autotune_trials.preflight.levels import SUBJECTS, provider
from autotune_trials.preflight.verdict import Verdict, verdict

_VARIABLES = ("PYTHONPATH", "LD_LIBRARY_PATH", "LD_PRELOAD", "PATH", "CUDA_HOME", "CUDA_PATH", "CUDA_VISIBLE_DEVICES")


class VerdictCache:
    """Verdicts in a folder of this node, one file each; what cannot be read or written is as good as absent.

    Args:
        folder: Where they are; made when the first one is kept.
        depends_on: What every verdict depends on: the node's facts, findings about its devices, the trial's variables.
        libraries: By subject, what :func:`library_files` says of it under the trial's variables.
    """

    def __init__(self, folder: Path, depends_on: Mapping[str, Any], libraries: Mapping[str, Any]) -> None:
        here = {name: os.environ.get(name) for name in _VARIABLES}
        self._folder = folder
        self._libraries = libraries
        self._shared = {**depends_on, "here": here, "python": sys.executable, "prefix": sys.prefix}

    def get(self, backend: str) -> Verdict | None:
        """A good verdict on the same stack, the same devices and the same files of the library; else None."""
        try:
            kept = json.loads(self._path(backend).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        same_words = isinstance(kept, dict) and kept.keys() == verdict(backend, 0.0).keys()
        return kept if same_words and kept["backend"] == backend and kept["available"] is True else None

    def keep(self, found: Verdict) -> None:
        """Keep a verdict if it is good, and of something whose files are known."""
        if found["available"] and found["backend"] in self._libraries:
            path = self._path(str(found["backend"]))
            with contextlib.suppress(OSError):
                path.parent.mkdir(parents=True, exist_ok=True)
                partial = path.with_name(f"{path.name}.{os.getpid()}")
                partial.write_text(json.dumps(found), encoding="utf-8")
                partial.replace(path)

    def _path(self, backend: str) -> Path:
        canonical = json.dumps(
            {**self._shared, "backend": backend, "files": self._libraries.get(backend)}, sort_keys=True
        )
        return self._folder / f"{hashlib.sha256(canonical.encode()).hexdigest()[:24]}.json"


def library_files() -> dict[str, list[list[Any]]]:
    """Name, size and time of the files behind each subject, as this process would load them."""
    found: dict[str, list[list[Any]]] = {}
    for name, subject in SUBJECTS.items():
        stamps = found.setdefault(name, [])
        with contextlib.suppress(Exception):  # a broken package breaks the search for it too: the levels will tell
            whose = provider(subject)
            for file in [whose.file, *whose.libraries] if whose else []:
                with contextlib.suppress(OSError):
                    status = os.stat(file)
                    stamps.append([file, status.st_size, status.st_mtime_ns])
    return found
