"""Plain tables and paragraphs of text for commands, as wide as the terminal where there is one."""

import os
import shutil
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence

from autotune_policies.settings import Value

_LAST_COLUMN = 24
"""Where the last column would be narrower it goes below its row."""


def terminal_width() -> int | None:
    """Columns of the terminal, or what ``COLUMNS`` says; null where nobody said: a file or a pipe is not wrapped."""
    columns = os.environ.get("COLUMNS", "")
    if columns.isdigit() and int(columns) > 0:
        return int(columns)
    return shutil.get_terminal_size((110, 0)).columns if sys.stdout.isatty() else None


def aligned(rows: Sequence[Sequence[str]], width: int | None = None) -> str:
    """Rows as lines with aligned columns: numbers to the right, the last column to the left and as long as it is.

    Args:
        rows: Cells, as many in each.
        width: Columns of the terminal: the last column is wrapped, below its row where nothing is left for it.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    start = sum(widths[:-1]) + 2 * (len(widths) - 1)
    gap, below = "  ", False
    if width is not None and start + min(widths[-1], _LAST_COLUMN) > width:
        gap, below = " ", True
    lines = []
    for row in rows:
        head = gap.join(cell.rjust(size) for cell, size in zip(row[:-1], widths, strict=False))
        if below:
            lines += [head, *(wrapped([f"    {row[-1]}"], width) if row[-1] else [])]
        elif width is None:
            lines.append(gap.join([head, row[-1]]) if head or len(row) > 1 else row[-1])
        else:
            pieces = _pieces(row[-1], max(width - start, 1)) or [""]
            lines += [gap.join([head, pieces[0]]), *(" " * start + piece for piece in pieces[1:])]
    return "\n".join(lines)


def wrapped(lines: Iterable[str], width: int | None) -> list[str]:
    """Lines no longer than the terminal, where words allow it; what goes on below is indented."""
    if width is None:
        return list(lines)
    found = []
    for line in lines:
        indent = line[: len(line) - len(line.lstrip())]
        if len(line) <= width:
            found.append(line)
            continue
        first, *rest = _pieces(line.strip(), max(width - len(indent), 1)) or [""]
        found.append(indent + first)
        more = " ".join(rest)
        found += [f"{indent}    {piece}" for piece in _pieces(more, max(width - len(indent) - 4, 1))]
    return found


def value_text(value: Value) -> str:
    """A setting's value as people write it and ``--set`` takes it: lists comma-joined, true, false, none in words."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(value) or "none" if isinstance(value, list) else str(value)


def settings_text(settings: Mapping[str, Value]) -> str:
    """Settings as ``--set`` takes them, one beside the other."""
    return " ".join(f"{name}={value_text(value)}" for name, value in settings.items())


def _pieces(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False)
