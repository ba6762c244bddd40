"""Verdicts on a policy from step times: exact coverage, and the properties that a verdict must have."""

from itertools import product
from math import exp

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.measure.drift import (
    CROSS_ALLOCATION_NOISE,
    Ratio,
    Timing,
    judge_drift,
    ratio_of_pairs,
    ratio_of_series,
    ratio_of_timings,
    spread,
    timing_of_runs,
    timing_of_steps,
)

TIMES = st.floats(min_value=1e-3, max_value=1e3)
RUNS = st.lists(TIMES, min_size=1, max_size=8)
PAIRS = st.lists(st.tuples(TIMES, TIMES), min_size=1, max_size=8)
SCALE = st.floats(min_value=1.0, max_value=100.0)
RECORDED = st.builds(
    lambda middle, below, above: Timing(middle, middle / below, middle * above, 0.95),
    TIMES, st.floats(1.0, 2.0), st.floats(1.0, 2.0),
)  # fmt: skip
SEVERITY = {"GAIN": 0, "OK": 1, "REGRESSION": 2, "DRIFT": 3}


@given(st.integers(1, 9))
def test_the_coverage_of_a_ratio_is_exact(count: int) -> None:
    """Between equals either of a pair is as likely the slower one: count the patterns whose interval holds equality."""
    held = 0
    for pattern in product((-1, 1), repeat=count):
        # Magnitudes that are all different, so that no two ranks tie.
        found = ratio_of_pairs([(exp(sign * 1.5**place), 1.0) for place, sign in enumerate(pattern)])
        held += found.low < 1 < found.high
    assert held / 2**count == pytest.approx(found.coverage)


@given(st.integers(1, 12))
def test_the_coverage_of_a_median_is_exact(count: int) -> None:
    """Each run is above the true median or below it, like a coin: count the patterns whose interval holds it."""
    held = 0
    for heads in range(2**count):
        runs = [2.0 + index / 100 if heads >> index & 1 else 1.0 + index / 100 for index in range(count)]
        timing = timing_of_runs(runs)
        held += timing.low_s < 1.5 < timing.high_s
    assert held / 2**count == pytest.approx(timing.coverage)


@pytest.mark.parametrize(("pairs", "coverage"), [(1, 0.0), (2, 0.5), (4, 0.875), (6, 0.96875), (8, 0.9609375)])
def test_how_many_runs_it_takes(pairs: int, coverage: float) -> None:
    assert ratio_of_pairs([(1.0, 2.0)] * pairs).coverage == pytest.approx(coverage)


@given(PAIRS)
def test_the_other_way_round_is_the_inverse(pairs: list[tuple[float, float]]) -> None:
    found, inverse = ratio_of_pairs(pairs), ratio_of_pairs([(theirs, ours) for ours, theirs in pairs])
    assert found.low == pytest.approx(1 / inverse.high)
    assert found.high == pytest.approx(1 / inverse.low)
    assert found.coverage == inverse.coverage
    assert not (found.slower and inverse.slower)
    assert found.low <= found.value <= found.high


@given(PAIRS, st.data())
def test_what_both_of_a_pair_meet_does_not_matter(pairs: list[tuple[float, float]], data: st.DataObject) -> None:
    """A machine that gets slower from pair to pair, or another unit."""
    slower = [data.draw(st.floats(0.1, 10.0)) for _ in pairs]
    found = ratio_of_pairs(pairs)
    other = ratio_of_pairs([(ours * by, theirs * by) for (ours, theirs), by in zip(pairs, slower, strict=True)])
    assert (other.low, other.value, other.high) == pytest.approx((found.low, found.value, found.high))


@given(RUNS, RECORDED)
def test_a_policy_beside_itself_is_never_overtaken(ours: list[float], recorded: Timing) -> None:
    drift = judge_drift(ratio_of_timings(timing_of_runs(ours), recorded), ratio_of_pairs([(one, one) for one in ours]))
    assert drift.verdict != "DRIFT"


@given(PAIRS, RECORDED, SCALE)
def test_slower_is_never_better(pairs: list[tuple[float, float]], recorded: Timing, slower: float) -> None:
    ours, theirs = [one for one, _ in pairs], [other for _, other in pairs]

    def verdict(runs: list[float]) -> str:
        against = ratio_of_timings(timing_of_runs(runs), recorded, max(CROSS_ALLOCATION_NOISE, spread(runs)))
        return judge_drift(against, ratio_of_pairs(list(zip(runs, theirs, strict=True)))).verdict

    # A hair more, since the noise that is computed from the runs may move in its last digit.
    moved = [value * slower * (1 + 1e-9) for value in ours]
    assert SEVERITY[verdict(moved)] >= SEVERITY[verdict(ours)]


@given(st.lists(st.floats(0.99, 1.01), min_size=4, max_size=8), st.floats(1.2, 5.0))
def test_a_clear_difference_is_found(near_one: list[float], factor: float) -> None:
    now = [value * factor for value in near_one]
    record = Timing(1.0, 0.99, 1.01, 0.95)
    against = ratio_of_timings(timing_of_runs(now), record)
    assert judge_drift(against, None).verdict == "REGRESSION"
    assert judge_drift(ratio_of_timings(timing_of_runs([1 / value for value in now]), record), None).verdict == "GAIN"
    pairs = list(zip(now, near_one, strict=True))
    assert judge_drift(None, ratio_of_pairs(pairs)).verdict == "DRIFT"
    assert judge_drift(against, ratio_of_pairs([(one, other) for other, one in pairs])).verdict == "REGRESSION"


@given(st.lists(st.floats(0.99, 1.01), min_size=1, max_size=8))
def test_noise_between_days_is_no_finding(near_one: list[float]) -> None:
    record = Timing(1.0, 1.0, 1.0)
    assert judge_drift(ratio_of_timings(timing_of_runs(near_one), record), None).verdict == "OK"


def test_being_overtaken_comes_before_everything_else() -> None:
    faster_than_recorded = Ratio(0.5, 0.4, 0.6, 0.9, 0.04)
    overtaken = Ratio(2.0, 1.8, 2.2, 0.97, 0.001)
    drift = judge_drift(faster_than_recorded, overtaken)
    assert (drift.verdict, drift.confidence) == ("DRIFT", 0.97)
    assert len(drift.reasons) == 2


def test_a_policy_that_was_never_the_fastest_cannot_be_overtaken() -> None:
    assert judge_drift(None, Ratio(2.0, 1.8, 2.2, 0.97, 0.001), was_slower=True).verdict == "OK"


def test_a_verdict_needs_something_to_compare_with() -> None:
    with pytest.raises(ValueError, match="runner-up"):
        judge_drift(None, None)


def test_the_confidence_of_ok_is_that_of_the_weaker_interval() -> None:
    drift = judge_drift(Ratio(1.0, 0.9, 1.03, 0.875, 0.04), Ratio(0.9, 0.8, 1.0, 0.97, 0.001))
    assert (drift.verdict, drift.confidence, drift.conclusive) == ("OK", 0.875, True)
    assert drift.not_ruled_out == 1.03


def test_an_ok_that_excludes_nothing_claims_nothing() -> None:
    scattered = ratio_of_timings(timing_of_runs([1.0, 2.0, 1.1, 2.1, 1.0, 2.0]), Timing(1.4, 0.9, 2.0, 0.95), 0.9)
    drift = judge_drift(scattered, ratio_of_pairs([(1.0, 2.0), (2.0, 1.0)] * 3))
    assert (drift.verdict, drift.confidence, drift.conclusive) == ("OK", 0.0, False)
    assert drift.not_ruled_out == pytest.approx(2.1 / 0.9)
    assert "0.500 to 2.000 with" in drift.reasons[0]
    assert "a finding is all of it more than 0.1% from 1" in drift.reasons[0]


@given(PAIRS, RECORDED, st.floats(0.0, 1.0))
def test_a_conclusive_ok_rules_out_every_slow_down_beyond_the_tolerance(
    pairs: list[tuple[float, float]], recorded: Timing, tolerance: float
) -> None:
    against = ratio_of_timings(timing_of_runs([one for one, _ in pairs]), recorded, tolerance)
    order = ratio_of_pairs(pairs)
    drift = judge_drift(against, order, tolerance=tolerance)
    if drift.verdict != "OK":
        assert (drift.conclusive, drift.not_ruled_out) == (True, None)
        return
    assert drift.not_ruled_out == max(against.high, order.high)
    assert drift.conclusive == (drift.not_ruled_out <= 1 + tolerance and min(against.coverage, order.coverage) > 0)
    assert (drift.confidence > 0) == drift.conclusive


def test_one_run_is_no_conclusion() -> None:
    drift = judge_drift(None, ratio_of_pairs([(1.0, 2.0)]))
    assert (drift.verdict, drift.conclusive, drift.confidence) == ("OK", False, 0.0)


def test_series_of_single_runs() -> None:
    ours, theirs = [1.0, 1.01, 0.99, 1.0, 1.02, 0.98], [1.5, 1.51, 1.49, 1.5, 1.52, 1.48]
    found = ratio_of_series(ours, theirs)
    assert found.value == pytest.approx(1 / 1.5, rel=0.02)
    assert found.faster
    few = ratio_of_series(ours[:2], theirs[:2])
    assert few.coverage == 0.0
    assert (few.low, few.high) == pytest.approx((1.0 / 1.51, 1.01 / 1.5))


def test_a_run_of_few_steps_has_a_range_and_no_coverage() -> None:
    assert timing_of_steps([1.0, 3.0]) == Timing(2.0, 1.0, 3.0, 0.0)
    assert timing_of_steps([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]).coverage > 0.95
