"""Opens the study storage and keeps a second driver out of it."""

import fcntl
import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import optuna

from autotune.errors import ClusterError, RequestError, RunError, StudyError

_NETWORK = ("nfs", "nfs4", "lustre", "gpfs", "beegfs", "cifs", "smb3", "fuse.sshfs", "9p", "afs", "ceph")
_SQLITE = "sqlite:///"


def open_storage(url: str, *, create: bool = True) -> optuna.storages.RDBStorage:
    """The storage behind a URL, made when it does not exist unless ``create`` is false.

    Raises:
        StudyError: it cannot be reached, or it is a sqlite file on a network file system, where locks cannot be
            relied on.
    """
    if url.startswith(_SQLITE):
        path = Path(url[len(_SQLITE) :])
        if not create and not path.exists():
            raise StudyError(
                f"the study's database {path} is gone", hint="its trials are in the folder `trials` beside it"
            )
        kind = filesystem(path.parent)
        if kind in _NETWORK:
            raise StudyError(
                f"study storage {path} is on {kind}, where sqlite's locks cannot be relied on",
                hint="keep it on local disk (--home), or give a database with --storage postgresql://...",
            )
    try:
        # Waits for a reader (a report, a dashboard) to finish instead of failing at once.
        arguments = {"timeout": 60, "factory": _Connection} if url.startswith(_SQLITE) else {}
        return optuna.storages.RDBStorage(url, engine_kwargs={"connect_args": arguments})
    except Exception as error:  # sqlalchemy is optuna's dependency, not ours: its error classes are not imported
        if type(error).__module__.startswith(("sqlalchemy", "optuna", "sqlite3")) or isinstance(error, ImportError):
            raise StudyError(
                f"study storage {_without_password(url)} cannot be opened: {_first_line(error)}"
            ) from error
        raise


@contextmanager
def storage_errors() -> Iterator[None]:
    """A storage that fails in the middle of a run (disk full, database gone) as one line.

    Raises:
        RunError: instead of Optuna's own error; what was written before is kept.
    """
    try:
        yield
    except optuna.exceptions.StorageInternalError as error:
        cause = error.__cause__ or error
        raise RunError(
            f"the study storage failed: {_first_line(cause)}", hint="make room, then the same command goes on"
        ) from error


@contextmanager
def leaving_no_empty_study(folder: Path) -> Iterator[None]:
    """A request that is refused leaves no study behind."""
    existed = folder.exists()
    try:
        yield
    except (ClusterError, RequestError):
        if not existed:
            shutil.rmtree(folder, ignore_errors=True)
        raise


class _Connection(sqlite3.Connection):
    """A write-ahead log survives the death of the driver without waiting for the disk at every write.

    Only a crash of the whole machine may lose the last writes, and then the trial folders have them.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.execute("PRAGMA journal_mode=WAL")
        self.execute("PRAGMA synchronous=NORMAL")


class StudyLock:
    """Held by the one driver of a study; the kernel releases it when the driver dies, however it dies."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "lock"
        self._file: IO[str] | None = None

    def __enter__(self) -> "StudyLock":
        """Take it.

        Raises:
            StudyError: another process holds it, or the folder cannot be used.
        """
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self._path.open("a+", encoding="utf-8")
        except OSError as error:
            raise StudyError(
                f"study folder {self._path.parent} cannot be used: {error.strerror}",
                hint="name another one with --home",
            ) from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._file.seek(0)
            holder = self._file.read().strip() or "unknown"
            self._file.close()
            raise StudyError(
                f"study {self._path.parent.name!r} is already being run by process {holder}",
                hint="wait for it, stop it, or choose another name with --study",
            ) from error
        self._file.truncate(0)
        self._file.write(str(os.getpid()))
        self._file.flush()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._file is not None
        self._file.close()


def filesystem(path: Path) -> str:
    """Kind of the file system that holds a path, e.g. ``ext4`` or ``nfs4``; empty when the kernel does not say."""
    resolved = str(path.resolve())
    best, kind = "", ""
    try:
        mounts = Path("/proc/self/mounts").read_text(encoding="utf-8")
    except OSError:
        return ""
    for line in mounts.splitlines():
        _, mount, found, *_ = line.split(" ")
        mount = mount.encode().decode("unicode_escape")
        inside = resolved == mount or resolved.startswith(mount.rstrip("/") + "/")
        if inside and len(mount) >= len(best):
            best, kind = mount, found
    return kind


def _without_password(url: str) -> str:
    scheme, separator, rest = url.partition("://")
    return f"{scheme}{separator}{rest.rpartition('@')[2]}"


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
