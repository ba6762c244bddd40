"""What gangs leave in a node's scratch folder, and what of it is kept.

Each gang has a folder there, which the worker that made it holds by a lock for as long as it lives. The kernel lets go
of the lock however the worker dies, so a folder that nobody holds and that no process uses is a dead worker's.
"""

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO

from autotune_trials.events import EVENTS_VARIABLE
from autotune_trials.processes import in_use
from autotune_trials.rank_log import cut

MOST_KEPT = 8
"""Folders of failed gangs that stay on a node, over all studies."""

_ENDED = "ended"
_OWNER = "owner"
_DOOR = ".lock"


def claim(folder: Path) -> IO[bytes]:
    """Make the work folder of a gang, empty; those of dead workers beside it are tidied on the way, as failed ones.

    Args:
        folder: Work folder of one gang on this node; those of other gangs are its neighbours.

    Returns:
        The lock that says whose it is; closed with the folder's last use, or with this process.

    Raises:
        OSError: it cannot be made, or a living worker holds it.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _alone_in(folder.parent):
        for other in [path for path in folder.parent.iterdir() if path.is_dir() and path != folder]:
            if not (other / _ENDED).exists() and not _held(other):
                tidy(other, failed=True)
        if folder.exists() and not _held(folder):
            shutil.rmtree(folder)
        folder.mkdir()
        owner = (folder / _OWNER).open("wb")
        with contextlib.suppress(OSError):  # a file system without locks: then nobody will think it is stale either
            fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return owner


def tidy(folder: Path, *, failed: bool) -> None:
    """Delete the folder of a gang that has ended; that of a failed one stays for a while, its long logs cut.

    Of the failed ones beside it the newest :data:`MOST_KEPT` stay. Gangs that still run are not touched, and what
    cannot be deleted is left.

    Args:
        folder: Work folder of one gang on this node; those of other gangs are its neighbours.
        failed: Whether somebody may want to read the logs.
    """
    if not failed:
        shutil.rmtree(folder, ignore_errors=True)
        return
    try:
        written_ns = folder.stat().st_mtime_ns
        for log in folder.glob("rank-*.log"):
            cut(log)
        (folder / _ENDED).touch()
        os.utime(folder / _ENDED, ns=(written_ns, written_ns))  # one that is found late is not a new one
    except OSError:  # a full disk, most of all: then it is better gone
        shutil.rmtree(folder, ignore_errors=True)
    for old in _newest_first(folder.parent.glob(f"*/{_ENDED}"))[MOST_KEPT:]:
        shutil.rmtree(old.parent, ignore_errors=True)


@contextlib.contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Workers that start at the same time come one by one, so that none takes a folder that is just being made."""
    with (folder / _DOOR).open("wb") as door:
        with contextlib.suppress(OSError):
            fcntl.flock(door, fcntl.LOCK_EX)
        yield


def _held(folder: Path) -> bool:
    """Whether a living worker holds a folder, or a living process writes there."""
    try:
        with (folder / _OWNER).open("rb") as owner:
            fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        pass  # its worker died before it could take it
    except OSError:  # held; or no locks here, and then nobody can tell
        return True
    written = f"{EVENTS_VARIABLE}={folder}{os.sep}".encode()
    return in_use(lambda word: word.startswith(written))


def _newest_first(marks: Iterable[Path]) -> list[Path]:
    aged = []
    for mark in marks:
        try:
            aged.append((mark.stat().st_mtime_ns, mark))
        except FileNotFoundError:  # another gang's worker was faster
            continue
    return [mark for _, mark in sorted(aged, reverse=True)]
