"""Stays of one run at the speed of another, and what they say of a difference."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.measure.compare import compare_series
from autotune.measure.stays import Stays, may_be_chance, stays_at

FAST, SLOW = math.log(1.0), math.log(1.2)


def drawn(levels: str) -> list[float]:
    """Logarithms of a series drawn as ``_`` fast, ``^`` slow, ``.`` between, ``!`` far beyond."""
    return [{"_": FAST, "^": SLOW, ".": (FAST + SLOW) / 2.0, "!": 2.0}[level] for level in levels]


def times(levels: str, seed: int) -> list[float]:
    source = random.Random(seed)
    return [math.exp(value + source.gauss(0.0, 0.003)) for value in drawn(levels)]


@pytest.mark.parametrize(
    ("levels", "lengths", "telling"),
    [
        ("_" * 40, (), 0),
        ("_" * 20 + "!!!!!" + "_" * 15, (), 0),  # slower than the other run by far: no stay there
        ("_" * 20 + "....." + "_" * 15, (), 0),
        ("_" * 20 + "^^^" + "_" * 17, (3,), 0),
        ("_" * 20 + "^^^^" + "_" * 16, (4,), 4),
        ("^^" + "_" * 38, (2,), 2),  # it may have been there long before
        ("_" * 37 + "^^^", (3,), 3),
        ("_" * 39 + "^", (1,), 0),
        (
            "^^___^_____^______^____^_____^___________",
            (2, 1, 1, 1, 1, 1),
            0,
        ),  # one in six steps: two come first at times
        ("_^^__^_^^^^__^_^^__^_^^_^^^_^__^^^_^__^_", (2, 1, 4, 1, 2, 1, 2, 3, 1, 3, 1, 1), 0),  # a coin does that
    ],
)
def test_stays_are_found_and_told_from_chance(levels: str, lengths: tuple[int, ...], telling: int) -> None:
    found = stays_at(drawn(levels), FAST, SLOW)
    assert (found.steps, found.lengths, found.telling) == (len(levels), lengths, telling)
    assert found.share == pytest.approx(levels.count("^") / len(levels))


@given(st.text("_^.!", min_size=4, max_size=60))
def test_stays_are_the_same_backwards_and_of_either_side(levels: str) -> None:
    found, backwards = stays_at(drawn(levels), FAST, SLOW), stays_at(drawn(levels[::-1]), FAST, SLOW)
    assert (found.lengths, found.telling) == (backwards.lengths[::-1], backwards.telling)
    assert 0.0 <= found.share <= 1.0
    near = levels.replace("!", ".")  # far beyond is on one side only
    swapped = near.translate(str.maketrans("_^", "^_"))
    assert stays_at(drawn(swapped), SLOW, FAST) == stays_at(drawn(near), FAST, SLOW)


def test_few_long_stays_are_chance_and_as_many_steps_in_short_ones_are_not() -> None:
    none = Stays(40, ())
    assert may_be_chance(none, Stays(40, (3, 3, 3))) == ""
    assert may_be_chance(none, Stays(40, (3, 3, 3), telling=3)).startswith("B itself was at the speed of A for 3 steps")
    assert may_be_chance(Stays(40, (1,), telling=1), none).startswith("A itself was at the speed of B for 1 step on")
    short, long = Stays(40, (1,) * 12), Stays(40, (6, 6))
    assert may_be_chance(short, short) == ""
    assert may_be_chance(long, long) == (
        "A was at the speed of B in 2 and B at that of A in 2 stays (30% and 30% of the steps), so the difference may "
        "be chance"
    )


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("_" * 40, "^" * 30 + "_____" + "^" * 5),
        ("^" * 12 + "_" * 28, "^" * 40),  # what looks like a slow beginning is the speed of the other
        ("_" * 20 + "^" * 10 + "_" * 10, "^" * 40),
        ("_" * 34 + "^" * 6, "^" * 38 + "__"),
    ],
)
def test_a_run_that_was_at_the_speed_of_the_other_neither_wins_nor_loses(a: str, b: str) -> None:
    found = compare_series(times(a, 1), times(b, 2))
    assert found.verdict == "tie"
    assert found.reason
    mirrored = compare_series(times(b, 2), times(a, 1))
    assert mirrored.verdict == "tie"


def test_a_disturbance_that_is_not_the_speed_of_the_other_leaves_the_verdict() -> None:
    a, b = times("_" * 20 + "^" * 10 + "_" * 10, 1), [1.03 * value for value in times("_" * 40, 2)]
    assert compare_series(a, b).verdict == "a_faster"
    assert compare_series(b, a).verdict == "b_faster"
