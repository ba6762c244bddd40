"""Whose package goes by the name ``deep_ep``, told from its files and its metadata, without importing it.

Four packages that do not replace one another share the name, and an index has a fifth one that is none of them.
"""

import importlib.util
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

V1 = "DeepEP V1"
V2 = "DeepEP V2"
HYBRID = "DeepEP's hybrid-ep branch"
UCCL = "UCCL's wrapper"
UNKNOWN = "an unknown package"


class Provider(NamedTuple):
    """Who provides a module.

    Attributes:
        name: One of the words above, or the name of the module itself.
        distribution: Name and version of the installed distribution; empty = its files belong to none.
        file: What would be imported; empty for a folder without code.
        libraries: Its shared objects.
    """

    name: str
    distribution: str
    file: str
    libraries: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.name} ({self.distribution or 'no distribution'}, {self.file or 'no file'})"


def provider_of(module: str, extensions: tuple[str, ...]) -> Provider | None:
    """Who would be imported by the name; None when nobody would.

    Args:
        module: A top-level module.
        extensions: Top-level modules of compiled code that it may load.
    """
    spec = importlib.util.find_spec(module)
    if spec is None:
        return None
    folder = Path(spec.origin).parent if spec.origin and spec.submodule_search_locations is not None else None
    origins = {name: _origin(name) for name in extensions}
    own = sorted(str(path) for path in folder.glob("_C*.so")) if folder else []
    libraries = [*own, *(origin for origin in origins.values() if origin.endswith(".so"))]
    name = _deep_ep(folder) if module == "deep_ep" else module
    return Provider(name, _distribution(module, folder), spec.origin or "", tuple(libraries))


def _deep_ep(folder: Path | None) -> str:
    if folder is None:
        return UNKNOWN
    if _origin("hybrid_ep_cpp"):
        return HYBRID
    if any(folder.glob("_C*")) or (folder / "buffers").is_dir():
        return V2
    if _imports_uccl(folder):
        return UCCL
    if _origin("deep_ep_cpp"):
        return V1
    return UNKNOWN


def _imports_uccl(folder: Path) -> bool:
    words = (line.split() for path in sorted(folder.glob("*.py")) for line in _lines(path))
    return any(line[0] in ("import", "from") and line[1].partition(".")[0] == "uccl" for line in words if len(line) > 1)


def _lines(path: Path) -> Iterator[str]:
    yield from path.read_text(encoding="utf-8", errors="replace").splitlines()


def _origin(module: str) -> str:
    """The file of a top-level module, empty when there is none."""
    spec = importlib.util.find_spec(module)
    return (spec.origin or "") if spec is not None else ""


def _distribution(module: str, folder: Path | None) -> str:
    """The distribution whose metadata lies beside the module and goes by one of its usual names."""
    usual = {module, f"sgl_{module}", "uccl"} if module == "deep_ep" else {module}
    beside = [str(folder.parent)] if folder else None
    for found in metadata.distributions(path=beside) if beside else metadata.distributions():
        name = str(found.metadata["Name"] or "")
        if name.lower().replace("-", "_").replace(".", "_") in usual:
            return f"{name} {found.version}"
    return ""
