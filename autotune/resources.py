"""Where shipped data lives; the only module that knows.

``autotune/_data`` is a link to ``search_spaces/`` in a checkout and a copy of it in a wheel.
"""

from pathlib import Path

from autotune.errors import RequestError
from autotune_policies.settings import closest

_DATA = Path(__file__).parent / "_data"


def names(kind: str) -> list[str]:
    """Shipped names of one kind (``models`` or ``clusters``), sorted."""
    return sorted(path.stem for path in (_DATA / kind).glob("*.yaml"))


def guide_path() -> Path:
    """The file of the selection guide."""
    return _DATA / "guide.yaml"


def locate(kind: str, name: str) -> Path:
    """The file of a shipped name, or a user's own file when the name is a path.

    Raises:
        RequestError: neither a shipped name nor a file; the hint names the closest shipped ones.
    """
    if "/" in name or name.endswith((".yaml", ".yml")):
        path = Path(name).expanduser()
        if not path.is_file():
            raise RequestError(f"no such file: {name}")
        return path
    path = _DATA / kind / f"{name}.yaml"
    if name not in names(kind):
        raise RequestError(f"unknown {kind[:-1]} {name!r}", hint=closest(name, names(kind)))
    return path
