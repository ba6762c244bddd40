"""What a gang leaves in a node's scratch folder, and what of it is kept."""

import os
import shutil
from collections.abc import Iterable
from pathlib import Path

MOST_KEPT = 8
"""Folders of failed gangs that stay on a node, over all studies."""

LOG_LIMIT_BYTES = 16 << 20
"""Of a rank's log that is kept so much of the end stays."""

_ENDED = "ended"


def tidy(folder: Path, *, failed: bool) -> None:
    """Delete the folder of a gang that has ended; that of a failed one stays for a while, its logs cut at the front.

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
        for log in folder.glob("rank-*.log"):
            cut(log, LOG_LIMIT_BYTES)
        (folder / _ENDED).touch()
    except OSError:  # a full disk, most of all: then it is better gone
        shutil.rmtree(folder, ignore_errors=True)
    for old in _newest_first(folder.parent.glob(f"*/{_ENDED}"))[MOST_KEPT:]:
        shutil.rmtree(old.parent, ignore_errors=True)


def cut(log: Path, limit_bytes: int) -> None:
    """Drop the beginning of a file that is longer than so many bytes; says how much is gone in a first line.

    Raises:
        OSError: it cannot be read or written.
    """
    size = log.stat().st_size
    if size <= limit_bytes:
        return
    shorter = log.with_suffix(".cut")
    with log.open("rb") as source, shorter.open("wb") as target:
        source.seek(size - limit_bytes)
        target.write(f"[the first {size - limit_bytes} bytes are cut off]\n".encode())
        shutil.copyfileobj(source, target)
    os.replace(shorter, log)


def _newest_first(marks: Iterable[Path]) -> list[Path]:
    aged = []
    for mark in marks:
        try:
            aged.append((mark.stat().st_mtime_ns, mark))
        except FileNotFoundError:  # another gang's worker was faster
            continue
    return [mark for _, mark in sorted(aged, reverse=True)]
