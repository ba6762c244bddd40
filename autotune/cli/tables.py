"""Plain tables of text for commands."""

from collections.abc import Sequence

from autotune_policies.settings import Value


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Rows as lines with aligned columns: numbers to the right, the last column to the left and as long as it is."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join([*(cell.rjust(width) for cell, width in zip(row[:-1], widths, strict=False)), row[-1]])
        for row in rows
    )


def value_text(value: Value) -> str:
    """A setting's value as people write it: lists comma-joined, true, false and none in words."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(value) or "none" if isinstance(value, list) else str(value)
