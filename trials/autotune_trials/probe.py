"""Whether a token dispatcher's backend can be used here, found out at arm's length.

``python -m autotune_trials.probe deepep`` prints one JSON line per level that it reaches and then its verdict, and
exits with 0, whatever the verdict::

    {"backend": "deepep", "available": false, "reason": "No module named 'deep_ep'", "error": "ModuleNotFoundError",
     "fix": "...", "level": "installed", "provider": "", "notes": [], "untried": {}, "seconds": 0.01}

The imports are those of Megatron-Core's ``fused_a2a`` module, where a failure other than ImportError would end the
training. A backend that crashes, hangs or exits takes only its own probe with it: nothing is imported in the
process that asks. What is looked at in which order is in :mod:`autotune_trials.preflight.levels`.
"""

import importlib
import re
import sys
import time
from collections.abc import Callable, Iterable, Mapping

from autotune_trials.preflight.advice import advice
from autotune_trials.preflight.levels import SUBJECTS, Notes, UnusableError, pass_levels, provider
from autotune_trials.preflight.process import Answer, Probe, await_all, variables_for
from autotune_trials.preflight.providers import V2
from autotune_trials.preflight.verdict import Verdict, verdict

MODULE_PREFIX = "module:"
"""``module:a.b`` is probed like a backend: whether ``a.b`` can be imported, as a recipe needs it."""


def probe_all(
    backends: Iterable[str], env: Mapping[str, str] | None = None, timeout_s: float = 120.0
) -> dict[str, Verdict]:
    """Probe backends side by side, each in a process of its own.

    Args:
        backends: Dispatcher names, the fused permutation, and modules (:data:`MODULE_PREFIX`).
        env: Variables set on top of this process's own.
        timeout_s: After so long a probe counts as hanging and is killed, with everything it started.

    Returns:
        One verdict per backend; no exception, signal or exit of a probe reaches the caller.
    """
    names = list(dict.fromkeys(backends))
    probes = [Probe(name, ["autotune_trials.probe", name], variables_for(name, env or {})) for name in names]
    return dict(zip(names, await_all(probes, timeout_s), strict=True))


def probe(backend: str, reached: Callable[[str, str], None] = lambda *_: None) -> Verdict:
    """Import what the backend needs, in this process. Only ever called in a process made for it.

    Args:
        backend: A dispatcher, the fused permutation, or a module.
        reached: Called with the name of each level before it begins, and with whose package it is.
    """
    started_s = time.monotonic()
    at, whose = "installed", ""
    notes: Notes = []

    def enter(level: str) -> None:
        nonlocal at
        at = level
        reached(level, whose)

    try:
        if backend.startswith(MODULE_PREFIX):
            enter("import")
            importlib.import_module(backend.removeprefix(MODULE_PREFIX))
        else:
            found = provider(SUBJECTS[backend])
            whose = str(found) if found is not None else ""
            notes = pass_levels(SUBJECTS[backend], enter)
    except BaseException as error:  # a broken extension may raise anything, SystemExit included
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        if at == "import" and whose.startswith(V2):
            reason += f"; {V2} is installed, which Megatron-Core does not take"
        kind = error.error if isinstance(error, UnusableError) else _kind(error, reason)
        fix = advice(reason, error=kind, provider=whose)
        seconds = time.monotonic() - started_s
        return verdict(backend, seconds, level=at, error=kind, reason=reason, fix=fix, provider=whose)
    return verdict(backend, time.monotonic() - started_s, level=at, provider=whose, notes=notes)


def _kind(error: BaseException, reason: str) -> str:
    """The class of an exception, but of an import that the dynamic linker refused, why it did."""
    if isinstance(error, ImportError) and re.search(r"undefined symbol|version [`'].*' not found", reason):
        return "AbiMismatch"
    if isinstance(error, ImportError) and "cannot open shared object file" in reason:
        return "MissingLibrary"
    return type(error).__name__


def main() -> None:
    """Probe the backend named on the command line; whatever its import prints goes to standard error."""
    [backend] = sys.argv[1:]
    if backend not in SUBJECTS and not backend.startswith(MODULE_PREFIX):
        sys.exit(f"unknown backend {backend!r}; legal: {', '.join(SUBJECTS)}")
    answer = Answer()
    answer.finish(probe(backend, answer.reached))


if __name__ == "__main__":
    main()
