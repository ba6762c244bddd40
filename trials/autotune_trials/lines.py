"""Words of other programs, as they may stand in one line of ours. Standard library only."""

import re

_TERMINAL = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?")
"""Escape sequences: colours and cursor moves, and titles."""

_LINE_LIMIT = 300


def one_line(text: str) -> str:
    """The text on one line of bounded length, white space collapsed, without what a terminal would obey."""
    shown = (letter for letter in _TERMINAL.sub("", text) if letter.isprintable() or letter.isspace())
    line = " ".join("".join(shown).split())
    return line if len(line) <= _LINE_LIMIT else line[: _LINE_LIMIT - 3] + "..."
