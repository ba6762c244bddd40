"""Wrong numbers are found, and sound runs of other layouts are not accused."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.measure.parity import RELATIVE_TOLERANCE, out_of_parity

FLAT = [11.0 - 0.05 * step for step in range(20)]
NORMS = [2.0 - 0.01 * step for step in range(20)]


def scattered(values, share, seed):
    dice = random.Random(seed)
    return [value * (1 + dice.gauss(0, share)) for value in values]


def test_the_published_silent_corruption_is_found():
    corrupted = [3.2 + 0.6 * step for step in range(20)]  # 3.2 -> 15, where the baseline goes on falling
    assert "loss is +" in out_of_parity("bf16", corrupted, [], [3.2 - 0.02 * step for step in range(20)], [])


def test_it_may_begin_late():
    late = [value * (1.0 if step < 10 else 1.08) for step, value in enumerate(FLAT)]
    assert out_of_parity("bf16", late, NORMS, FLAT, NORMS).startswith("loss is +8.0% off")


@pytest.mark.parametrize("wrong", [0.0, -1.0])
def test_a_loss_or_norm_of_nothing_is_gross(wrong):
    assert "nothing trains" in out_of_parity("bf16", [value * wrong for value in FLAT], NORMS, FLAT, NORMS)
    assert "nothing trains" in out_of_parity("bf16", FLAT, [0.0] * len(NORMS), FLAT, NORMS)


def test_a_run_that_bursts_at_its_end_is_told():
    assert out_of_parity("bf16", [*FLAT[:-2], 90.0, 95.0], NORMS, FLAT, NORMS).startswith("loss is +")
    assert out_of_parity("bf16", [*FLAT[:-1], FLAT[-1] * 1.01], NORMS, FLAT, NORMS) == "", "one step is an accident"


def test_a_wrong_gradient_shows_before_the_loss_does():
    assert out_of_parity("bf16", FLAT, [norm * 2 for norm in NORMS], FLAT, NORMS).startswith("gradient norm is +")


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp8_mxfp8", "fp4_nvfp4"])
@given(seed=st.integers(0, 10**6))
def test_sound_runs_pass(precision, seed):
    share = RELATIVE_TOLERANCE[precision.partition("_")[0]] / 4
    ours, theirs = scattered(FLAT, share, seed), scattered(FLAT, share, seed + 1)
    assert out_of_parity(precision, ours, scattered(NORMS, share, seed + 2), theirs, NORMS) == ""


def test_a_noisy_baseline_grants_more():
    noisy = scattered(FLAT, 0.2, 5)
    assert out_of_parity("fp32", [value * 1.02 for value in noisy], [], noisy, []) == ""
    assert out_of_parity("fp32", [value * 1.02 for value in FLAT], [], FLAT, []) != ""


@given(st.lists(st.floats(), max_size=9), st.lists(st.floats(), max_size=9))
def test_any_numbers_get_an_answer(ours, theirs):
    assert isinstance(out_of_parity("bf16", ours, theirs, theirs, ours), str)
    assert out_of_parity("bf16", ours, theirs, ours, theirs) == ""
