"""Whose package goes by the name ``deep_ep``, told from its own code and its metadata, without importing it.

Four packages that do not replace one another share the name, and an index has a fifth one that is none of them. What
lies beside a package proves little: extensions of one that was there before are often left over.
"""

import ast
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
    own = sorted(str(path) for path in folder.glob("_C*.so")) if folder else []
    if module != "deep_ep":
        return Provider(module, _distribution(module, folder), spec.origin or "", (*own, *_compiled(extensions)))
    loads = _imports(folder, module) if folder else set()
    name = _deep_ep(folder, loads)
    if name in (V1, HYBRID):
        libraries = _compiled(tuple(each for each in extensions if each in loads) or extensions)
    else:
        libraries = _uccl_libraries() if name == UCCL else own
    return Provider(name, _distribution(module, folder), spec.origin or "", tuple(libraries))


def _deep_ep(folder: Path | None, loads: set[str]) -> str:
    """Whose it is, from what it imports; where it says nothing, from the files that lie there."""
    if folder is None:
        return UNKNOWN
    if "uccl" in loads:
        return UCCL
    if loads.isdisjoint({"deep_ep._C", "deep_ep.buffers", "deep_ep_cpp", "hybrid_ep_cpp"}):
        if any(folder.glob("_C*")) or any(folder.glob("buffers/*.py")):
            return V2
        return V1 if _origin("deep_ep_cpp") else UNKNOWN
    if loads.intersection({"deep_ep._C", "deep_ep.buffers"}):
        return V2
    return HYBRID if "hybrid_ep_cpp" in loads and _origin("hybrid_ep_cpp") else V1


def _imports(folder: Path, package: str) -> set[str]:
    """Top-level modules, and parts of itself (``package.part``), that a package imports when it is imported."""
    found: set[str] = set()
    todo, seen = [folder / "__init__.py"], set[Path]()
    while todo:
        path = todo.pop()
        if path in seen or not path.is_file():
            continue
        seen.add(path)
        inside = [package, *path.relative_to(folder).parent.parts]
        for name in _imported_names(path, inside):
            top, *parts = name.split(".")
            found.add(".".join([top, *parts[:1]]) if top == package else top)
            if top == package:
                for length in range(1, len(parts) + 1):
                    place = folder.joinpath(*parts[:length])
                    todo += [place.with_name(f"{place.name}.py"), place / "__init__.py"]
    return found


def _imported_names(path: Path, inside: list[str]) -> Iterator[str]:
    """Full names of what a file's imports may load; nothing of a file that is no Python."""
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = inside[: len(inside) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            yield module
            yield from (f"{module}.{name.name}" for name in node.names)


def _compiled(extensions: tuple[str, ...]) -> list[str]:
    return [origin for name in extensions if (origin := _origin(name)).endswith(".so")]


def _uccl_libraries() -> list[str]:
    folder = Path(_origin("uccl")).parent
    return sorted(str(path) for path in folder.glob("ep*.so")) if folder.name else []


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
