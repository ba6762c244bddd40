"""Child processes that cannot outlive their parent, and how to end a whole family of them.

Linux only: the kernel's parent-death signal and ``/proc`` do the work. Standard library only.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, NamedTuple

FAMILY_VARIABLE = "AUTOTUNE_FAMILY"
"""Environment variable that all processes of one family inherit; finds descendants that left the tree."""

# Runs in the child and then becomes the program, so the program keeps the process id. A function run between
# fork and exec instead (preexec_fn) would fork a process full of gRPC threads, with all their fork handlers.
_TETHER = """
import ctypes, os, signal, sys
parent = int(sys.argv[1])
if ctypes.CDLL(None, use_errno=True).prctl(1, signal.SIGKILL, 0, 0, 0):
    sys.exit("cannot tie this process to its parent: " + os.strerror(ctypes.get_errno()))
if os.getppid() != parent:
    sys.exit("the parent was gone before this process had started")
try:
    os.execvp(sys.argv[2], sys.argv[2:])
except OSError as error:
    print(f"cannot run {sys.argv[2]}: {error}", file=sys.stderr)
    sys.exit(127)
"""


def spawn(
    argv: Sequence[str], env: Mapping[str, str], *, stdout: IO[bytes], stderr: IO[bytes]
) -> subprocess.Popen[bytes]:
    """Start a direct child that the kernel kills when the calling *thread* ends, however that happens.

    The thread matters, not the process: call this from a thread that lives as long as the child may.

    Args:
        argv: Program and arguments; a program that does not exist shows as exit status 127.
        env: The whole environment of the child.
        stdout: File that takes its output.
        stderr: File that takes its error output.
    """
    command = [sys.executable, "-I", "-S", "-c", _TETHER, str(os.getpid()), *argv]
    return subprocess.Popen(command, env=dict(env), stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr)


class Living(NamedTuple):
    """A process that was alive a moment ago; zombies are not.

    Attributes:
        pid: Its number.
        parent: Its parent's.
        words: Its environment as ``NAME=value``; empty where it may not be read.
    """

    pid: int
    parent: int
    words: Sequence[bytes]


def living() -> Iterator[Living]:
    """All processes of this machine that this one can see, itself included."""
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        with contextlib.suppress(OSError):  # it ended while we looked
            stat = Path("/proc", name, "stat").read_bytes()
            state, parent = stat[stat.rindex(b")") + 2 :].split(None, 2)[:2]
            if state in (b"Z", b"X"):
                continue
            words: Sequence[bytes] = ()
            with contextlib.suppress(OSError):  # it belongs to somebody else
                words = environment_words(int(name))
            yield Living(int(name), int(parent), words)


def environment_words(pid: int) -> Sequence[bytes]:
    """The environment that a process started with, as ``NAME=value``.

    Raises:
        OSError: it is gone, or belongs to somebody else.
    """
    return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")


def in_use(of: Callable[[bytes], bool]) -> bool:
    """Whether a living process other than this one carries a word in its environment that the question says yes to."""
    return any(process.pid != os.getpid() and any(map(of, process.words)) for process in living())


def family(marker: str, roots: Iterable[int] = ()) -> list[int]:
    """Living processes that carry the marker in their environment or descend from one of the roots.

    The environment finds those whose parent died and who were adopted by another process; the tree finds
    those who cleared their environment. The roots themselves count; zombies and the calling process do not.
    An empty marker is nobody's.
    """
    wanted = f"{FAMILY_VARIABLE}={marker}".encode() if marker else None
    found = list(living())
    members = set(roots) | {process.pid for process in found if wanted and wanted in process.words}
    grown = True
    while grown:
        children = {process.pid for process in found if process.parent in members} - members
        members |= children
        grown = bool(children)
    return sorted(process.pid for process in found if process.pid in members and process.pid != os.getpid())


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent dies, so that none can leave the tree of this process."""
    import ctypes  # the janitor and most programs never need it

    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER; kernels since 3.4 know it


def kill_descendants(*, timeout_s: float = 10.0) -> bool:
    """SIGKILL to every descendant of this process until none is left; whether all of them are gone.

    After :func:`adopt_orphans` that holds for those in sessions of their own with an environment of their own, too.
    """
    end_s = time.monotonic() + timeout_s
    while members := family("", [os.getpid()]):
        if time.monotonic() > end_s:
            return False
        for pid in members:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.001)
    return True


def kill_family(marker: str, children: Sequence[subprocess.Popen[bytes]], *, timeout_s: float = 10.0) -> bool:
    """SIGKILL to everything in the family until nothing is left of it; reaps the direct children.

    Args:
        marker: Value of :data:`FAMILY_VARIABLE` in the family's environment.
        children: Direct children of this process among them.
        timeout_s: How long to go on; only a process stuck inside the kernel needs so long.

    Returns:
        Whether all of it is gone.
    """
    end_s = time.monotonic() + timeout_s
    pause_s = 0.001
    while True:
        roots = [child.pid for child in children if child.poll() is None]
        members = family(marker, roots)
        if not members and not roots:
            return True
        if time.monotonic() > end_s:
            return False
        for pid in members:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, 0.05)


class Janitor:
    """Kills a family when the process that made the janitor has died, and otherwise never acts.

    The parent-death signal reaches direct children only. Grandchildren in sessions of their own (compile workers,
    data loaders) would live on after a SIGKILL of their grandparent; nobody but an outsider can end them then.
    It cannot find a grandchild that cleared its environment: by then the tree above that one is gone too.

    Args:
        marker: Value of :data:`FAMILY_VARIABLE` in the family's environment.
    """

    def __init__(self, marker: str) -> None:
        env = {name: value for name, value in os.environ.items() if name != FAMILY_VARIABLE}
        command = [sys.executable, "-I", "-S", __file__, marker]
        quiet = subprocess.DEVNULL
        self._process = subprocess.Popen(
            command, env=env, stdin=subprocess.PIPE, stdout=quiet, stderr=quiet, start_new_session=True
        )

    def dismiss(self) -> None:
        """Let it go: it looks once more for what is left of the family, and ends. May be repeated."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def _wait_as_janitor(marker: str) -> None:
    """Wait until the maker closes its end of our input, by will or by death, then kill the family."""
    if os.fork():
        os._exit(0)  # the rest goes on as nobody's child: Ray kills the children of a worker that it ends
    sys.stdin.buffer.read()
    kill_family(marker, [])


def describe_exit(code: int) -> str:
    """An exit status in words: ``exited with status 3`` or ``was ended by SIGSEGV``."""
    if code >= 0:
        return f"exited with status {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"


if __name__ == "__main__":
    _wait_as_janitor(sys.argv[1])
