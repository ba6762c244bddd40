"""What a command's own processes are doing: their Python stacks, read from outside by py-spy.

Ranks of ours answer a signal with their stacks (:mod:`autotune_trials.stacks`); a process that a command starts knows
nothing of that, and the signal would end it. Standard library only; py-spy is a program, which ``ray[default]`` brings.
"""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from autotune_trials.processes import FAMILY_VARIABLE, Living, living

MOST_PROCESSES = 16
"""Of one node; those nearest to the ranks come first, so that data workers are the ones left out."""

_LONGEST_BYTES = 4 << 10
_AT_ONCE = 8
_LAUNCHERS = ("torch/distributed/elastic/", "torch/distributed/run.py", "/subprocess.py", "/popen_fork.py")
"""Files in which a process waits for another one that it has started."""


def spy(roots: Mapping[int, int], mark: str, wait_s: float = 2.0) -> dict[int, str]:
    """The stacks of the Python processes below some ranks, written as faulthandler writes them.

    Args:
        roots: Process id by rank; the process itself is not looked into.
        mark: Family of the ranks, which the helpers join, so that they end with it.
        wait_s: Longest time for all of them together.

    Returns:
        Text by rank, for those with such processes. The process and the thread that tell most come last: the nearest
        to the rank that does not just wait for another one, and its main thread.
    """
    below = _python_processes(roots)
    if not below:
        return {}
    program = _program()
    if program is None:
        return dict.fromkeys(set(below.values()), "py-spy is not here to look into them: pip install py-spy\n")
    left_out = list(below)[MOST_PROCESSES:]
    found = _dump_all(program, list(below)[:MOST_PROCESSES], mark, wait_s)
    texts = {}
    for rank in set(below.values()):
        own = [found[pid] for pid in below if below[pid] == rank and pid in found]
        more = sum(below[pid] == rank for pid in left_out)
        texts[rank] = "".join(_telling_last(own)) if own else ""
        if more:
            texts[rank] = f"{more} more processes were not looked into\n" + texts[rank]
    return texts


def _python_processes(roots: Mapping[int, int]) -> dict[int, int]:
    """Rank by process id of what runs Python below each rank, level by level over all ranks."""
    children: dict[int, list[Living]] = {}
    for process in living():
        children.setdefault(process.parent, []).append(process)
    found: dict[int, int] = {}
    level = [(pid, rank) for rank, pid in sorted(roots.items())]
    while level:
        level = [(child.pid, rank) for pid, rank in level for child in children.get(pid, ())]
        found |= {pid: rank for pid, rank in level if _is_python(pid)}
    return found


def _is_python(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return "python" in os.path.basename(os.readlink(f"/proc/{pid}/exe"))
    return False


def _program() -> str | None:
    """py-spy of this environment, which need not be on the search path, or any."""
    beside = Path(sys.executable).with_name("py-spy")
    return str(beside) if os.access(beside, os.X_OK) else shutil.which("py-spy")


def _dump_all(program: str, pids: Sequence[int], mark: str, wait_s: float) -> dict[int, str]:
    waiting, running, found = list(pids), dict[int, _Dump](), dict[int, str]()
    end_s = time.monotonic() + wait_s
    try:
        while (waiting or running) and time.monotonic() < end_s:
            while waiting and len(running) < _AT_ONCE:
                pid = waiting.pop(0)
                running[pid] = _Dump(program, pid, mark)
            for pid in [pid for pid, dump in running.items() if dump.process.poll() is not None]:
                found[pid] = running.pop(pid).text()
            time.sleep(0.01)
    finally:
        for dump in running.values():
            dump.close()
    late = {pid: _heading(pid) + f"py-spy did not come back within {wait_s:g} s\n" for pid in [*running, *waiting]}
    return found | late


class _Dump:
    """One running py-spy. It does not pause its process: one that hangs in a driver could not be paused."""

    def __init__(self, program: str, pid: int, mark: str) -> None:
        self._pid = pid
        self._out: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed by close()
        self._err: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        command = [program, "dump", "--nonblocking", "--full-filenames", "--json", "--pid", str(pid)]
        env = {**os.environ, FAMILY_VARIABLE: mark}
        self.process = subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=self._out, stderr=self._err)

    def text(self) -> str:
        """What it found, or why it found nothing."""
        self._out.seek(0)
        self._err.seek(0)
        said, complaint = self._out.read(), self._err.read().decode(errors="replace")
        self.close()
        try:
            main_last = sorted(json.loads(said), key=lambda thread: thread["os_thread_id"] == self._pid)
            threads = "".join(map(_thread, main_last))
        except (ValueError, TypeError, KeyError):
            threads = ""
        return _heading(self._pid) + (_shortened(threads) if threads else _complaint(complaint))

    def close(self) -> None:
        """End it, if it still runs."""
        self.process.kill()
        self.process.wait()
        self._out.close()
        self._err.close()


def _heading(pid: int) -> str:
    words = ""
    with contextlib.suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return f"process {pid}: {' '.join(words.split())[:200]}\n"


def _complaint(text: str) -> str:
    if "denied" in text.lower() or "not permitted" in text.lower():
        return "py-spy may not look into it: the container needs the capability SYS_PTRACE\n"
    return f"py-spy: {(text.strip().splitlines() or ['no answer'])[0][:200]}\n"


def _thread(thread: Mapping[str, Any]) -> str:
    name = f" [{thread['thread_name']}]" if thread.get("thread_name") else ""
    frames = [f'  File "{frame["filename"]}", line {frame["line"]} in {frame["name"]}\n' for frame in thread["frames"]]
    return f"Thread 0x{thread['thread_id']:x}{name} (most recent call first):\n{''.join(frames)}\n"


def _shortened(threads: str) -> str:
    """The end of it, which has the main thread."""
    return threads if len(threads) <= _LONGEST_BYTES else "[...]\n" + threads[-_LONGEST_BYTES:].partition("\n")[2]


def _telling_last(texts: Iterable[str]) -> list[str]:
    """Launchers first, then the others, of which the nearest to the rank comes last."""
    nearest_last = list(texts)[::-1]
    return sorted(nearest_last, key=lambda text: not _launches(text))


def _launches(text: str) -> bool:
    main = text.rpartition("\nThread 0x")[2]
    return any(file in main for file in _LAUNCHERS) or "  File " not in text
