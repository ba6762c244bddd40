"""Equal runs of which one was disturbed: the disturbance is recognised, and nobody wins by it."""

import re
from pathlib import Path

import pytest

from tests.support.disturbed_steps import DISTURBANCES, Disturb, Recognition, paused, recognition, slowed, slowed_again

DOCUMENT = Path(__file__).parents[3] / "docs" / "compare.md"
LongRun = tuple[str, list[float]]


@pytest.mark.parametrize("at_end", [False, True], ids=["within", "at the end"])
@pytest.mark.parametrize("factor", [1.05, 1.1, 1.5])
@pytest.mark.parametrize("steps", [8, 20])
def test_nobody_wins_by_a_slow_stretch_of_the_other(steps: int, factor: float, at_end: bool, long_run: LongRun) -> None:
    found = recognition(long_run[1], slowed(steps, factor, at_end=at_end))
    assert found.won <= 0.05
    assert found.seen >= (0.9 if factor >= 1.1 else 0.3)


@pytest.mark.parametrize(("times", "steps"), [(2, 10), (3, 6)])
def test_hardly_anybody_wins_by_several_stretches_of_the_other(times: int, steps: int, long_run: LongRun) -> None:
    assert recognition(long_run[1], slowed_again(times, steps, 1.1)).won <= 0.1


@pytest.mark.parametrize("disturb", [paused(1, 3.0), paused(3, 3.0)], ids=["once", "three times"])
def test_nobody_wins_by_pauses_of_the_other(disturb: Disturb, long_run: LongRun) -> None:
    found = recognition(long_run[1], disturb)
    assert found.won <= 0.02
    assert found.seen >= 0.9


@pytest.mark.slow
@pytest.mark.parametrize("name", DISTURBANCES)
def test_the_document_says_how_much_is_recognised(name: str, long_run: LongRun) -> None:
    run, times = long_run
    found = recognition(times, DISTURBANCES[name])
    assert _stated(run, name) == pytest.approx(
        (found.seen, found.won), abs=0.02
    )  # one of 46 pairs may differ elsewhere
    assert found.won <= 0.05 or "5% longer" in name
    assert found.seen >= 0.9 or not ("10% slower" in name or "50% slower" in name)


def _stated(run: str, disturbance: str) -> tuple[float, float]:
    """Shares of the table in the document that has a column for each run."""
    lines = DOCUMENT.read_text(encoding="utf-8").splitlines()
    [heading] = [line for line in lines if line.startswith("| one of two equal runs had |")]
    [row] = [line for line in lines if line.startswith(f"| {disturbance} |")]
    cell = row.split("|")[[name.strip() for name in heading.split("|")].index(run)]
    seen, won = re.findall(r"[0-9.]+", cell)
    return float(seen) / 100.0, float(won) / 100.0


def test_a_disturbance_that_nobody_sees_counts_as_unseen(long_run: LongRun) -> None:
    found = recognition(long_run[1], DISTURBANCES["nothing"])
    assert found == Recognition(pytest.approx(0.0, abs=0.1), pytest.approx(0.0, abs=0.04))
