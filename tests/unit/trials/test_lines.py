"""Words of others fit into one line of ours."""

from hypothesis import given
from hypothesis import strategies as st

from autotune_trials.lines import one_line
from autotune_trials.preflight.verdict import verdict


def test_what_a_terminal_would_obey_is_not_passed_on() -> None:
    assert one_line("\x1b[31mred\x1b[0m \x1b]0;title\x07 a\x08b\x1b[2J") == "red ab"


@given(st.text() | st.text(st.characters(categories=["Cs", "Cc", "Zs", "Zl"])))
def test_it_is_always_one_short_line_that_can_be_printed(text: str) -> None:
    line = one_line(text)
    assert len(line) <= 300
    assert line.isprintable()
    line.encode("utf-8")
    assert one_line(line) == line


def test_a_verdict_passes_nothing_on_that_hurts_a_terminal() -> None:
    found = verdict(
        "deepep",
        0.1,
        error="Odd\x1b[2JError",
        reason="a\udcff\x1b[31m\n" + "x" * 10**6,
        provider="p\x07q",
        notes=["n\x00o"],
    )
    assert (found["error"], found["provider"], found["notes"]) == ("OddError", "pq", ["no"])
    assert found["reason"].startswith("a xxx")
    assert len(found["reason"]) == 300
