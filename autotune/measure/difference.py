"""Where two plain documents differ, by dotted name."""

from collections.abc import Iterator
from typing import Any


def differences(stored: Any, mine: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Fields that differ between two JSON values, as (dotted name, stored, mine)."""
    if isinstance(stored, dict) and isinstance(mine, dict):
        for name in [*stored, *(name for name in mine if name not in stored)]:
            yield from differences(stored.get(name), mine.get(name), f"{path}.{name}" if path else str(name))
    elif stored != mine:
        yield path, stored, mine
