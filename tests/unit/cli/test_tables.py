"""Text of commands: aligned, and as wide as the terminal where somebody said how wide that is."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.cli.tables import aligned, terminal_width, wrapped

WORDS = st.lists(st.text(alphabet="abc=,-", min_size=1, max_size=12), min_size=1, max_size=30)


@given(WORDS, st.integers(20, 100), st.sampled_from(["", "  ", "    "]))
def test_wrapped_lines_keep_their_words_and_fit(words: list[str], width: int, indent: str) -> None:
    lines = wrapped([indent + " ".join(words)], width)
    assert " ".join(lines).split() == words
    assert all(len(line) <= width for line in lines)
    assert all(line.startswith(indent) for line in lines)


def test_nothing_is_wrapped_where_nobody_said_how_wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    assert terminal_width() is None
    assert wrapped(["word " * 100], None) == ["word " * 100]
    monkeypatch.setenv("COLUMNS", "40")
    assert terminal_width() == 40


@pytest.mark.parametrize("width", [40, 60, 100])
def test_the_last_column_is_wrapped_beside_or_below_its_row(width: int) -> None:
    rows = [("", "tokens/s/GPU", "step s", "MFU", "settings"), ("1", "13460", "19.476", "31.3%", "abc=1 " * 20)]
    lines = aligned(rows, width).splitlines()
    assert all(len(line) <= width for line in lines)
    assert " ".join(lines).split().count("abc=1") == 20
    assert aligned(rows).count("\n") == 1
