"""Whether a token dispatcher's backend can be imported here, found out at arm's length.

``python -m autotune_trials.probe deepep`` prints one JSON line and exits with 0, whatever the verdict::

    {"backend": "deepep", "available": false, "reason": "No module named 'deep_ep'",
     "error": "ModuleNotFoundError", "seconds": 0.01}

The imports are those of Megatron-Core's ``fused_a2a`` module, where a failure other than ImportError would end the
training. A backend that crashes, hangs or exits takes only its own probe with it: nothing is imported in the
process that asks.
"""

import importlib
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterable, Mapping
from importlib import metadata
from typing import IO, Any

from autotune_policies.backends import BACKENDS
from autotune_trials.checkout import import_path
from autotune_trials.processes import FAMILY_VARIABLE, describe_exit, kill_family, spawn

Verdict = dict[str, Any]
"""``backend``, ``available``, ``reason`` (one line), ``error`` (class name or kind) and ``seconds``."""

_FUSED_A2A = "megatron.core.transformer.moe.fused_a2a"


def probe_all(
    backends: Iterable[str], env: Mapping[str, str] | None = None, timeout_s: float = 120.0
) -> dict[str, Verdict]:
    """Probe backends side by side, each in a process of its own.

    Args:
        backends: Dispatcher names.
        env: Variables set on top of this process's own.
        timeout_s: After so long a probe counts as hanging and is killed, with everything it started.

    Returns:
        One verdict per backend; no exception, signal or exit of a probe reaches the caller.
    """
    running = [_Probe(backend, env or {}) for backend in dict.fromkeys(backends)]
    try:
        end_s = time.monotonic() + timeout_s
        while any(probe.process.poll() is None for probe in running) and time.monotonic() < end_s:
            time.sleep(0.02)
        return {probe.backend: probe.verdict(timeout_s) for probe in running}
    finally:
        for probe in running:
            probe.close()


class _Probe:
    """One running probe and its output."""

    def __init__(self, backend: str, env: Mapping[str, str]) -> None:
        self.backend = backend
        self._marker = uuid.uuid4().hex
        self._started_s = time.monotonic()
        self._out: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed by close()
        self._err: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        full = {**os.environ, **env}
        full |= {"PYTHONPATH": import_path(full.get("PYTHONPATH")), FAMILY_VARIABLE: self._marker}
        argv = [sys.executable, "-m", "autotune_trials.probe", backend]
        self.process: subprocess.Popen[bytes] = spawn(argv, full, stdout=self._out, stderr=self._err)

    def verdict(self, timeout_s: float) -> Verdict:
        """What it found, or how it failed to say so."""
        code = self.process.poll()
        if code is None:
            return self._unavailable("Hang", f"the import did not come back within {timeout_s:g} s")
        self._out.seek(0)
        try:
            verdict = json.loads(self._out.read())
            if code == 0 and verdict["backend"] == self.backend:
                return dict(verdict)
        except (ValueError, TypeError, KeyError):
            pass
        self._err.seek(0)
        last_words = self._err.read().decode(errors="replace").strip().splitlines()[-1:]
        said = f": {last_words[0]}" if last_words else ""
        return self._unavailable("Crash" if code < 0 else "Exit", f"the import {describe_exit(code)}{said}")

    def close(self) -> None:
        """Kill what still runs of it."""
        kill_family(self._marker, [self.process])
        self._out.close()
        self._err.close()

    def _unavailable(self, error: str, reason: str) -> Verdict:
        return _verdict(self.backend, time.monotonic() - self._started_s, error, reason)


def probe(backend: str) -> Verdict:
    """Import what the backend needs, in this process. Only ever called in a process made for it."""
    started_s = time.monotonic()
    try:
        if not BACKENDS[backend].flex:
            _check_collective()
        else:
            _check_import(backend)
    except BaseException as error:  # a broken extension may raise anything, SystemExit included
        lines = str(error).strip().splitlines() or [type(error).__name__]
        return _verdict(backend, time.monotonic() - started_s, type(error).__name__, lines[0])
    return _verdict(backend, time.monotonic() - started_s)


def _check_import(backend: str) -> None:
    modules, flagged = BACKENDS[backend].imports, str(BACKENDS[backend].flag)
    top = modules[0][0].partition(".")[0]
    if importlib.util.find_spec(top) is None:  # saves importing torch to learn that nothing is there
        raise ModuleNotFoundError(f"No module named {top!r}")
    importlib.import_module("torch")  # its libraries must be loaded before an extension that links to them
    for name, attributes in modules:
        module = __import__(name, fromlist=attributes)  # what `from name import attributes` does first
        for attribute in attributes:
            if not hasattr(module, attribute):
                raise ImportError(f"cannot import name {attribute!r} from {name!r}")
    if importlib.util.find_spec("megatron") is not None:
        flag = getattr(importlib.import_module(_FUSED_A2A), flagged, None)
        if not flag:
            why = "has no support for it" if flag is None else f"says {flagged} = {flag}"
            raise ImportError(f"{backend} can be imported, but this megatron-core {why}")


def _check_collective() -> None:
    try:
        metadata.version("megatron-core")
    except metadata.PackageNotFoundError:
        raise ModuleNotFoundError("megatron-core is not installed") from None
    torch: Any = importlib.import_module("torch")
    distributed: Any = importlib.import_module("torch.distributed")
    library = "nccl" if torch.cuda.is_available() else "gloo"
    if not (distributed.is_available() and distributed.is_backend_available(library)):
        raise ImportError(f"this torch was built without {library}")


def _verdict(backend: str, seconds: float, error: str = "", reason: str = "") -> Verdict:
    return {
        "backend": backend,
        "available": not error,
        "reason": reason,
        "error": error,
        "seconds": round(seconds, 3),
    }


def main() -> None:
    """Probe the backend named on the command line; whatever its import prints goes to standard error."""
    [backend] = sys.argv[1:]
    if backend not in BACKENDS:
        sys.exit(f"unknown backend {backend!r}; legal: {', '.join(BACKENDS)}")
    answer = os.dup(1)
    os.dup2(2, 1)
    line = json.dumps(probe(backend)) + "\n"
    os.write(answer, line.encode())
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # a half-imported extension may crash or hang while Python takes it down; the verdict stands


if __name__ == "__main__":
    main()
