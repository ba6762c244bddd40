"""What every rank is doing at this moment: a dump of its threads' stacks, made by a signal.

The handler runs in the signal itself, so that it also shows a main thread that hangs in an import or in a collective.
Standard library only; to be registered before anything else is imported.
"""

import contextlib
import faulthandler
import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path

STACKS_VARIABLE = "AUTOTUNE_STACKS"
"""Environment variable naming the file that takes a rank's stacks."""

OF_THE_COMMAND = "the processes of its command, seen by py-spy:\n"
"""Between the stacks of a rank that runs a command, which waits for it, and those of what it runs."""

_SIGNAL = signal.SIGUSR1
_LONGEST_BYTES = 32 << 10
_END = b"Current thread 0x"


def register() -> None:
    """Dump all stacks into the named file on SIGUSR1, and the crashing thread's to stderr on a fatal signal."""
    with contextlib.suppress(RuntimeError, ValueError, AttributeError, OSError):  # somebody replaced stderr
        faulthandler.enable()
    name = os.environ.get(STACKS_VARIABLE)
    if name:
        file = open(name, "a", encoding="utf-8")  # noqa: SIM115 - the handler keeps it for the process's life
        faulthandler.register(_SIGNAL, file=file, all_threads=True)
        _KEPT.append(file)


_KEPT: list[object] = []


def collect(
    processes: Mapping[int, tuple[int, Path]], wait_s: float = 1.0, *, command_mark: str | None = None
) -> dict[int, str]:
    """Ask living ranks for their stacks, and wait for them.

    Args:
        processes: Process id and stacks file by rank. A rank that has not registered yet has no file; it would die of
            the signal, so it is not sent one, and its kernel wait channel stands in for its stack.
        wait_s: Longest time for all of them together.
        command_mark: Family of ranks that run commands, whose processes are looked into as well, which takes up to
            two seconds more; None = there are none.

    Returns:
        Text by rank; empty where a rank gave none in time.
    """
    asked = {}
    for rank, (pid, path) in processes.items():
        if path.exists():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, _SIGNAL)
                asked[rank] = path
    end_s = time.monotonic() + wait_s
    while time.monotonic() < end_s and not all(_complete(path) for path in asked.values()):
        time.sleep(0.02)
    found = {
        rank: _tail(asked[rank]) if rank in asked else f"not started yet; {_kernel(pid)}\n"
        for rank, (pid, _) in processes.items()
    }
    if command_mark is not None:
        from autotune_trials.spy import spy  # every rank imports this module; few need that one

        for rank, text in spy({rank: pid for rank, (pid, _) in processes.items()}, command_mark).items():
            found[rank] += f"\n{OF_THE_COMMAND}{text}"
    return found


def _complete(path: Path) -> bool:
    """The main thread comes last when it is the one that took the signal; its outermost frame ends the dump."""
    try:
        data = path.read_bytes()
    except OSError:
        return False
    return _END in data and data.endswith(b"\n") and b"in <module>" in data[data.rfind(_END) :]


def _tail(path: Path) -> str:
    with contextlib.suppress(OSError):
        return path.read_bytes()[-_LONGEST_BYTES:].decode(errors="replace")
    return ""


def _kernel(pid: int) -> str:
    with contextlib.suppress(OSError):
        return f"the kernel has it in {Path(f'/proc/{pid}/wchan').read_text(encoding='ascii') or '0'}"
    return "nothing is known"
