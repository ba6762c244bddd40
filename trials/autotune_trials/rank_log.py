"""What a rank prints: a file of which the head and the tail are kept, however much it prints.

Ranks write straight to the file, so nothing stands between a rank and its output. When the file has grown too long, its
middle is given back to the disk by a hole; the offsets do not change, and the rank notices nothing. Linux only.
Standard library only.
"""

import ctypes
import os
import shutil
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import IO

HEAD_BYTES = 1 << 20
"""So much of the beginning of a log is kept: versions, the configuration, the first error."""

TAIL_BYTES = 16 << 20
"""So much of its end: the last words, and the stacks of a crash."""

LOOK_S = 0.2
"""A log is looked at so often; on the disk it takes head, tail, as much again, and what is printed in this time."""

_NOTE_BYTES = 64
_PUNCH_HOLE = 0x01 | 0x02  # FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE


def open_log(path: Path) -> IO[bytes]:
    """A new, empty log. Whoever inherits it writes at its end, wherever that is by then."""
    path.unlink(missing_ok=True)
    return path.open("ab", buffering=0)


class LogKeeper:
    """Keeps logs short while ranks write them.

    Args:
        logs: Files of :func:`open_log`.
        head_bytes: How much of the beginning is kept.
        tail_bytes: How much of the end.
    """

    def __init__(self, logs: Iterable[Path], *, head_bytes: int = HEAD_BYTES, tail_bytes: int = TAIL_BYTES) -> None:
        self._head_bytes = head_bytes
        self._tail_bytes = tail_bytes
        self._cut_to = dict.fromkeys(logs, head_bytes)
        self._done = threading.Event()
        self._stopping = threading.Lock()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Look at the logs from now on, in a thread of its own."""
        self._thread = threading.Thread(target=self._run, name="log-keeper", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop looking; the logs become plain files that say how much is missing. For when their writers have ended."""
        with self._stopping:
            if self._done.is_set():
                return
            self._done.set()
            if self._thread is not None:
                self._thread.join()
            for log in self._cut_to:
                try:
                    cut(log, self._head_bytes, self._tail_bytes)
                except OSError:  # a full disk: what is there must do
                    continue

    def look(self) -> None:
        """Give back the middle of every log that has grown too long."""
        for log, start in self._cut_to.items():
            try:
                end = log.stat().st_size - self._tail_bytes
                if end - start > self._head_bytes + self._tail_bytes:
                    self._cut_to[log] = self._drop(log, start, end)
            except OSError:  # it is not there, or the disk is in trouble, which the rank will say better
                continue

    def _run(self) -> None:
        while not self._done.wait(LOOK_S):
            self.look()

    def _drop(self, log: Path, start: int, end: int) -> int:
        """Drop these bytes; returns from where on to drop the next time."""
        with log.open("r+b") as file:
            if punch(file.fileno(), start, end - start):
                return end
            # Without holes the tail is moved to the front. What is printed in between is lost.
            file.seek(end)
            tail = file.read()
            os.ftruncate(file.fileno(), self._head_bytes)
        with log.open("ab") as file:
            file.write(_missing(end - start) + tail)
        return self._head_bytes


def punch(file: int, start: int, size: int) -> bool:
    """Give back the disk space of a part of a file, which then reads as zeros; whether this file system can do that."""
    libc = ctypes.CDLL(None, use_errno=True)
    offset = ctypes.c_int64
    return bool(libc.fallocate(file, _PUNCH_HOLE, offset(start), offset(size)) == 0)


def cut(log: Path, head_bytes: int = HEAD_BYTES, tail_bytes: int = TAIL_BYTES) -> None:
    """Drop the middle of a file that is longer than head and tail; a line in its place says how much is gone.

    Raises:
        OSError: it cannot be read or written.
    """
    size = log.stat().st_size
    gone = size - head_bytes - tail_bytes
    if gone <= _NOTE_BYTES:  # it is short, or was cut before
        return
    shorter = log.with_suffix(".cut")
    with log.open("rb") as source, shorter.open("wb") as target:
        target.write(source.read(head_bytes))
        target.write(_missing(gone))
        source.seek(size - tail_bytes)
        shutil.copyfileobj(source, target)
    os.replace(shorter, log)


def tail(log: Path, max_bytes: int) -> str:
    """The last ``max_bytes`` of a log; empty when there is none."""
    try:
        with log.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - max_bytes))
            return file.read().decode(errors="replace")
    except FileNotFoundError:
        return ""


def _missing(count: int) -> bytes:
    return f"\n[{count} bytes are cut out here]\n".encode()
