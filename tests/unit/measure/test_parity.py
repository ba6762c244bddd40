"""Wrong numbers are found, and sound runs of other layouts are not accused."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.measure.parity import ALIKE, FIRST_STEP, TOLERANCE, begin_alike, out_of_parity
from autotune_policies.settings import resolve
from autotune_trials.spec import Contract, Routing

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
    assert out_of_parity("bf16", late, NORMS, FLAT, NORMS).startswith("loss is +8% off")


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
    share = TOLERANCE[precision.partition("_")[0]].loss / 4
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


@pytest.mark.parametrize("precision", sorted(FIRST_STEP))
@given(seed=st.integers(0, 10**6))
def test_sound_runs_that_begin_alike_pass(precision, seed):
    first, later = FIRST_STEP[precision], ALIKE[precision]
    ours, theirs = (scattered(FLAT, later.loss / 5, seed + run) for run in (0, 1))
    norms = scattered(NORMS, later.grad_norm / 5, seed + 2)
    ours[0], norms[0] = theirs[0] * (1 + first.loss / 2), NORMS[0] * (1 - first.grad_norm / 2)
    assert out_of_parity(precision, ours, norms, theirs, NORMS, alike=True) == ""


# Shares by which loss and gradient norm of the first step of tiny-moe (bf16, 2 ranks) differed from the baseline's.
FIRST_STEPS = {
    "every expert's output is nothing": (0.00013, -0.0091, True),
    "every output twice": (-0.00022, 0.0170, True),
    "the experts of one rank are silent": (0.00014, -0.0067, True),
    "gradients of the experts twice": (0.0, 0.0297, True),
    "no gradients of the experts": (0.0, -0.0103, True),
    "every other token lost": (0.00008, -0.0023, True),
    "one expert of eight is silent": (-0.00003, -0.0024, True),
    "every tenth token lost": (-0.00004, -0.0015, False),
    "tokens handed to their neighbours": (0.00004, -0.0011, False),
    "TP2": (0.000003, 0.00046, False),
}


@pytest.mark.parametrize("name", sorted(FIRST_STEPS))
def test_what_the_first_step_shows(name):
    loss, norm, seen = FIRST_STEPS[name]
    ours, norms = [FLAT[0] * (1 + loss), *FLAT[1:]], [NORMS[0] * (1 + norm), *NORMS[1:]]
    assert bool(out_of_parity("bf16", ours, norms, FLAT, NORMS, alike=True)) == seen
    assert out_of_parity("bf16", ours, norms, FLAT, NORMS) == "", "runs that begin otherwise differ by as much"
    assert out_of_parity("fp8_mxfp8", ours, norms, FLAT, NORMS, alike=True) == "", "not measured"


def test_micro_batches_of_another_size_are_granted_their_balancing_loss():
    norms = [NORMS[0] * 1.001, *NORMS[1:]]
    assert "gradient norm" in out_of_parity("fp32", FLAT, norms, FLAT, NORMS, alike=True)
    assert out_of_parity("fp32", FLAT, norms, FLAT, NORMS, alike=True, same_micro_batches=False) == ""


@pytest.mark.parametrize(
    ("program", "device", "source", "changed", "alike"),
    [
        ("native", "cpu", "natural", {"tensor_parallel": 2, "micro_batch_size": 4}, True),
        ("native", "cuda", "natural", {"tensor_parallel": 2, "micro_batch_size": 4}, False),
        ("native", "cuda", "natural", {"dispatcher": "deepep", "num_sms": 20}, True),
        ("native", "cuda", "forced_balance", {"dispatcher": "deepep", "num_sms": 20}, True),
        ("native", "cpu", "forced_balance", {"tensor_parallel": 2}, False),
        ("native", "cpu", "forced_balance", {"recompute_granularity": "full"}, False),
        ("bridge", "cpu", "natural", {"dispatcher": "allgather"}, False),
        ("command", "cpu", "forced_balance", {}, False),
    ],
)
def test_which_runs_begin_alike(program, device, source, changed, alike):
    contract = Contract(seq_length=8, global_batch_size=2, routing=Routing(source=source))
    assert begin_alike(resolve(changed), resolve({}), contract, program, device) is alike
