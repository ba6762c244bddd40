"""What tells one installation of a library from another that has the same version: its files, without reading them."""

import contextlib
import hashlib
import importlib.util
import os
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path

from autotune_policies.backends import Backend
from autotune_trials.preflight.levels import SUBJECTS, provider
from autotune_trials.preflight.providers import UCCL

_MOST_FILES = 50_000
"""A package with more is somebody's home folder; nothing is kept of a library that cannot be looked at quickly."""

_MEGATRON = ("core/transformer/moe", "core/extensions")
"""Below the package ``megatron``: the code that imports the libraries, and calls them."""

_INSTALLED_WITH = (
    "torch", "megatron-core", "transformer-engine", "transformer-engine-torch", "transformer-engine-cu12",
    "transformer-engine-cu13", "nvidia-nvshmem-cu12", "nvidia-nvshmem-cu13",
)  # fmt: skip
"""Distributions that the libraries are built against or load; what an installer wrote of them is looked at."""

_WRITTEN_BY_INSTALLERS = ("RECORD", "direct_url.json", "METADATA")


def library_files() -> str | None:
    """A digest of names, sizes and times of the files behind all libraries, as this process would load them.

    One for all dispatchers, since Megatron-Core imports the libraries of all of them, whichever is asked for. None
    where there are too many files to look at.
    """
    try:
        stamps = [*_of_distributions(), *_stamps(_places())]
    except _TooManyError:
        return None
    return hashlib.sha256(repr(stamps).encode()).hexdigest()[:24]


class _TooManyError(Exception):
    """Too many files below a package."""


def _places() -> Iterator[Path]:
    """Files and folders whose content decides how a dispatcher behaves, and what a look at it sees."""
    yield Path(__file__).parent
    yield from (folder / part for folder in _module("megatron") for part in _MEGATRON)
    for name in sorted({name for subject in SUBJECTS.values() for name in _modules(subject)}):
        yield from _module(name)


def _modules(subject: Backend) -> Iterator[str]:
    if subject.imports:
        yield subject.imports[0][0].partition(".")[0]
        yield from subject.extensions
        whose = provider(subject)
        if whose is not None and whose.name == UCCL:
            yield "uccl"


def _module(name: str) -> list[Path]:
    """Where a top-level module is: its folders, or its file; nothing where a broken package breaks the search."""
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError, AttributeError):
        return []
    if spec is None:
        return []
    if spec.submodule_search_locations is not None:
        return [Path(folder) for folder in spec.submodule_search_locations]
    return [Path(spec.origin)] if spec.origin else []


def _stamps(places: Iterable[Path]) -> list[tuple[object, ...]]:
    stamps: list[tuple[object, ...]] = []
    for path in (path for place in places for path in _files(place)):
        if len(stamps) == _MOST_FILES:
            raise _TooManyError
        with contextlib.suppress(OSError):
            status = os.stat(path)
            stamps.append((str(path), status.st_size, status.st_mtime_ns))
    return sorted(stamps)


def _files(place: Path) -> Iterator[Path]:
    if not place.is_dir():
        yield place
    for folder, folders, names in os.walk(place):
        folders[:] = [each for each in folders if each != "__pycache__"]  # importing writes there
        yield from (Path(folder, name) for name in names if not name.endswith(".pyc"))


def _of_distributions() -> Iterator[tuple[object, ...]]:
    for name in _INSTALLED_WITH:
        with contextlib.suppress(metadata.PackageNotFoundError):
            distribution = metadata.distribution(name)
            for written in _WRITTEN_BY_INSTALLERS:
                text = distribution.read_text(written) or ""
                yield name, written, hashlib.sha256(text.encode()).hexdigest()
