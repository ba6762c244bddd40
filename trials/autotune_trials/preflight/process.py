"""A program that looks at something that may crash or hang, kept at arm's length from the one that asks."""

import contextlib
import json
import os
import re
import subprocess
import sys
import sysconfig
import tempfile
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import IO, Any

from autotune_policies.surroundings import stale_variables
from autotune_trials.checkout import import_path
from autotune_trials.ending import leave
from autotune_trials.preflight.advice import advice
from autotune_trials.preflight.verdict import Verdict, is_verdict, verdict
from autotune_trials.processes import FAMILY_VARIABLE, Janitor, adopt_orphans, describe_exit, kill_family, spawn

_MOST_PRINTED_BYTES = 64 << 20
_LAST_WORDS_BYTES = 64 << 10
_FRAME = re.compile(r'^ *File "([^"]+)", line (\d+),? in (\S+)', re.MULTILINE)
_PYTHON = sysconfig.get_path("stdlib")
_DOING = {"installed": "reading its files", "exchange": "the exchange of tokens", "permute": "the fused permutation"}


def variables_for(subject: str, env: Mapping[str, str]) -> dict[str, str]:
    """Those of a study's variables that trials of a dispatcher get: HybridEP's are for HybridEP alone."""
    unwanted = stale_variables({"dispatcher": subject})
    return {name: value for name, value in env.items() if name not in unwanted}


class Probe:
    """One running probe and its output: JSON lines, each a level that it has reached, the last one its verdict.

    Args:
        subject: What it looks at; its verdict has the same word.
        arguments: Words after ``python -m``.
        env: Variables set on top of this process's own.
        level: Where it is until it says that it has reached another level.
    """

    def __init__(self, subject: str, arguments: Sequence[str], env: Mapping[str, str], level: str = "import") -> None:
        self.subject = subject
        self._level = level
        self._marker = uuid.uuid4().hex
        self._started_s = time.monotonic()
        self._out: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed by close()
        self._err: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        full = {**os.environ, **env}
        full |= {"PYTHONPATH": import_path(full.get("PYTHONPATH")), FAMILY_VARIABLE: self._marker}
        full["PYTHONFAULTHANDLER"] = "1"  # a crash then says where
        argv = [sys.executable, "-m", *arguments]
        self._janitor = Janitor(self._marker)  # for what the probe started, should this process be killed meanwhile
        self.process: subprocess.Popen[bytes] = spawn(argv, full, stdout=self._out, stderr=self._err)

    @property
    def over(self) -> bool:
        """Whether there is nothing to wait for: it has ended, or prints without end, which would fill the disk."""
        return self.process.poll() is not None or self._floods()

    def verdict(self, timeout_s: float) -> Verdict:
        """What it found, or how it failed to say so."""
        code = self.process.poll()
        lines = list(self._lines())
        if code == 0 and lines and is_verdict(lines[-1]) and lines[-1]["backend"] == self.subject:
            return lines[-1]
        last: dict[str, Any] = next((line for line in reversed(lines) if "level" in line), {})
        level, whose = str(last.get("level", self._level)), str(last.get("provider", ""))
        doing = _DOING.get(level, f"the {level}" if level == "import" else f"the check of its {level}")
        if code is None and self._floods():
            return self._unavailable(
                level, whose, "Flood", f"{doing} printed more than {_MOST_PRINTED_BYTES >> 20} MiB"
            )
        if code is None:
            return self._unavailable(level, whose, "Hang", f"{doing} did not come back within {timeout_s:g} s")
        self._err.seek(max(0, os.fstat(self._err.fileno()).st_size - _LAST_WORDS_BYTES))
        said = _last_words(self._err.read().decode(errors="replace"))
        said = f": {said}" if said else ""
        return self._unavailable(level, whose, "Crash" if code < 0 else "Exit", f"{doing} {describe_exit(code)}{said}")

    def close(self) -> None:
        """Kill what still runs of it."""
        kill_family(self._marker, [self.process])
        self._janitor.dismiss()
        self._out.close()
        self._err.close()

    def _floods(self) -> bool:
        return os.fstat(self._err.fileno()).st_size > _MOST_PRINTED_BYTES

    def _lines(self) -> Iterator[dict[str, Any]]:
        self._out.seek(0)
        for line in self._out.read().splitlines():
            with contextlib.suppress(ValueError):
                value = json.loads(line)
                if isinstance(value, dict):
                    yield value

    def _unavailable(self, level: str, whose: str, error: str, reason: str) -> Verdict:
        seconds, fix = time.monotonic() - self._started_s, advice(reason, error=error, provider=whose)
        return verdict(self.subject, seconds, level=level, error=error, reason=reason, fix=fix, provider=whose)


def await_all(probes: Iterable[Probe], timeout_s: float, *, together: bool = False) -> list[Verdict]:
    """The verdicts of probes that run side by side; nothing of them is left behind.

    Args:
        probes: In the order of the answer.
        timeout_s: After so long a probe counts as hanging and is killed, with everything it started.
        together: Whether they wait for each other, so that the first one that fails ends the rest.
    """
    running = list(probes)
    end_s = time.monotonic() + timeout_s
    try:
        while time.monotonic() < end_s:
            ended = [probe for probe in running if probe.over]
            if len(ended) == len(running) or (
                together and not all(probe.verdict(timeout_s)["available"] for probe in ended)
            ):
                break
            time.sleep(0.02)
        return [probe.verdict(timeout_s) for probe in running]
    finally:
        for probe in running:
            probe.close()


def _last_words(text: str) -> str:
    """Where a program crashed, as far as Python knows: the innermost code that is not Python's own; else its last line.

    Args:
        text: The end of what it printed.
    """
    _, crashed, stack = text.rpartition("Fatal Python error: ")
    places = _FRAME.findall(stack) if crashed else []
    for file, line, function in places:
        if not file.startswith(("<", _PYTHON)) or "site-packages" in file:
            return f"in {function} ({file}:{line})"
    lines = text.partition("Fatal Python error: ")[0].strip().splitlines() if crashed else text.strip().splitlines()
    return lines[-1] if lines else ""


class Answer:
    """The way out of a probe's process: standard output, which is then taken from whatever else would print on it.

    What an import starts ends with the probe, however it hides.
    """

    def __init__(self) -> None:
        adopt_orphans()
        self._file = os.dup(1)
        os.dup2(2, 1)

    def reached(self, level: str, provider: str = "") -> None:
        """Say which level begins, and of whose package, in case it never ends."""
        self._write({"level": level, "provider": provider})

    def finish(self, found: Verdict) -> None:
        """Say the verdict and end: a half-imported extension may crash or hang while Python takes it down."""
        self._write(found)
        leave(0)

    def _write(self, line: Mapping[str, Any]) -> None:
        os.write(self._file, (json.dumps(line) + "\n").encode())
