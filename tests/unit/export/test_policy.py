from dataclasses import replace
from math import exp, lcm
from random import Random
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.errors import RunError
from autotune.export.pareto import winner
from autotune.export.policy import (
    gpu_condition,
    make_policy,
    minor_range,
    parity,
    stack_conditions,
    write_policy,
)
from autotune.measure.outcome import TrialState
from autotune_policies.applicability import compare
from autotune_policies.errors import PolicyFormatError
from autotune_policies.policy import dump_policy, load_policy
from autotune_policies.settings import SETTINGS, resolve
from autotune_trials.programs import RecipeSpec
from autotune_trials.spec import contract_from, model_from, recipe_from


@pytest.fixture
def policy(study):
    front = study.front
    return make_policy(
        study.facts,
        winner=winner(front),
        baseline=study.outcomes[0],
        front=front,
        outcomes=study.outcomes,
    )


def test_the_policy_reads_as_expected(policy, golden):
    golden("policy.yaml", dump_policy(policy))


def test_what_ran_is_recorded_where_it_was_not_our_own_trainer(policy, study):
    assert set(policy.evidence["contract"]) == {"model", "contract", "gang"}
    facts = replace(study.facts, program="bridge", recipe=RecipeSpec("recipes.dsv3:config", ("train.log_interval=1",)))
    made = make_policy(facts, winner=winner(study.front), baseline=None, front=study.front)
    assert made.evidence["contract"]["program"] == "bridge"
    assert recipe_from(made.evidence["contract"]["recipe"]) == facts.recipe
    assert "command" not in made.evidence["contract"]


def test_a_written_policy_loads_equal_and_leaves_no_draft(policy, tmp_path):
    write_policy(tmp_path / "policy.yaml", policy)
    assert load_policy(tmp_path / "policy.yaml") == policy
    assert [path.name for path in tmp_path.iterdir()] == ["policy.yaml"]


def test_everything_is_said_and_nothing_shared(policy, study):
    best, baseline = study.outcomes[2], study.outcomes[0]
    assert policy.settings == best.settings
    assert policy.fallback == baseline.settings
    assert set(policy.settings) == set(SETTINGS)
    assert [entry["trial"] for entry in policy.alternatives] == [1, 5, 3]
    evidence = policy.evidence
    assert evidence["trial"] == 2
    assert evidence["device"] == "cpu"
    assert "this machine only" in evidence["note"]
    assert evidence["routing"]["label"] == "benchmark-only"
    assert evidence["step_time_s"]["steps"] == 7
    assert evidence["step_time_s"]["ci95"] == [0.3 * 0.97, 0.3 * 1.3]
    assert evidence["trials"] == {
        "REFUSED": 2, "UNAVAILABLE": 2, "COMPLETE": 6, "INFEASIBLE": 1, "FALLBACK": 1, "LOST": 1
    }  # fmt: skip
    assert evidence["activation"]["settings_not_read_back"] == []
    assert "mfu" not in evidence
    assert "tflops_per_gpu" not in evidence
    evidence["activation"]["stages"].append("changed")
    assert best.resolved["stages"] == [["embedding", "decoder", "decoder", "loss"]]


def test_the_run_can_be_repeated_from_the_policy_alone(policy, study, tmp_path):
    write_policy(tmp_path / "policy.yaml", policy)
    record = load_policy(tmp_path / "policy.yaml").evidence["contract"]
    assert model_from(record["model"]) == study.facts.shape
    assert contract_from(record["contract"]) == study.facts.contract
    assert type(study.facts.gang)(**record["gang"]) == study.facts.gang


def test_parity_is_the_largest_difference_at_the_same_step(study):
    baseline = study.outcomes[0]
    shifted = replace(baseline, trial=3, losses=[*baseline.losses[:-1], baseline.losses[-1] - 0.25])
    found = parity(shifted, baseline)
    assert found["steps"] == 10
    assert found["max_abs_loss_difference"] == 0.25
    assert found["last_loss_difference"] == -0.25


@pytest.mark.parametrize("trial", [4, None])
def test_without_an_alltoall_baseline_there_is_no_parity(study, trial):
    baseline = None if trial is None else study.outcomes[trial]
    policy = make_policy(study.facts, winner=study.outcomes[2], baseline=baseline, front=study.front)
    assert policy.evidence["parity"] is None
    assert policy.fallback == (baseline.settings if baseline else None)
    dump_policy(policy)


def test_a_baseline_that_failed_is_no_fallback(study):
    policy = make_policy(study.facts, winner=study.outcomes[2], baseline=study.outcomes[9], front=study.front)
    assert policy.fallback is None
    assert policy.evidence["parity"] is None


@pytest.mark.parametrize("state", [state for state in TrialState if state is not TrialState.COMPLETE])
def test_only_a_complete_trial_is_exported_as_measured(study, state):
    other = replace(study.outcomes[2], state=state)
    with pytest.raises(RunError, match=f"trial 2 is {state}"):
        make_policy(study.facts, winner=other, baseline=None, front=())
    with pytest.raises(RunError, match=f"trial 2 is {state}"):
        make_policy(study.facts, winner=study.outcomes[1], baseline=None, front=(other,))


def test_few_steps_have_no_interval_and_say_so(study):
    few = replace(study.outcomes[2], steps_used=5)
    step_time = make_policy(study.facts, winner=few, baseline=None, front=()).evidence["step_time_s"]
    assert step_time["ci95"] is None
    assert step_time["ci95_method"] == ("none: a distribution-free interval needs 6 measured steps, but there are 5")


def test_dependence_widens_the_interval_of_one_run(study):
    def evidence(memory):
        source, state, times = Random(1), 0.0, []
        for _ in range(60):
            state = memory * state + source.gauss(0.0, 0.01)
            times.append(exp(state))
        outcome = replace(study.outcomes[2], step_times_s=times, steps_used=60, step_time_s=median(times))
        return make_policy(study.facts, winner=outcome, baseline=None, front=()).evidence["step_time_s"]

    (low, high), (wide_low, wide_high) = evidence(0.0)["ci95"], evidence(0.5)["ci95"]
    assert wide_high - wide_low > 1.3 * (high - low)
    assert "allowing for their dependence" in evidence(0.0)["ci95_method"]
    assert evidence(0.99)["ci95"] is None
    assert evidence(0.99)["ci95_method"] == "none: the 60 measured steps depend on each other too much"


def test_a_variable_that_no_policy_may_set_is_never_written(study, tmp_path):
    facts = replace(study.facts, env={"LD_PRELOAD": "x.so"})
    policy = make_policy(facts, winner=study.outcomes[2], baseline=None, front=())
    with pytest.raises(PolicyFormatError, match="LD_PRELOAD"):
        write_policy(tmp_path / "policy.yaml", policy)
    assert list(tmp_path.iterdir()) == []


def test_the_policy_holds_for_its_own_run_and_no_other(policy):
    run = {
        "model": "tiny-moe",
        "cluster": "local",
        "num_gpus": 4,
        "precision": "bf16",
        "seq_length": 128,
        "global_batch_size": 8,
        "stack.megatron_core": "0.16.1",
        "stack.torch": "2.13.0+cpu",
    }
    found = compare(policy.applies_to, run)
    assert (found.mismatches, found.unchecked) == ((), ())
    others = {
        "model": "dsv3",
        "cluster": "gb300",
        "num_gpus": 8,
        "precision": "fp32",
        "seq_length": 256,
        "global_batch_size": 16,
        "stack.megatron_core": "0.17.0",
        "stack.torch": "2.12.1",
    }
    for name, other in others.items():
        (mismatch,) = compare(policy.applies_to, {**run, name: other}).mismatches
        assert mismatch.startswith(f"{name} is {other}")


@pytest.mark.parametrize(
    ("version", "condition"),
    [
        ("0.16.1", {"min": "0.16", "below": "0.17"}),
        ("2.13.0+cpu", {"min": "2.13", "below": "2.14"}),
        ("0.19.0rc1", {"min": "0.19", "below": "0.20"}),
        ("main-067987d", {"exact": "main-067987d"}),
    ],
)
def test_a_version_stands_for_its_minor_release(version, condition):
    assert minor_range(version) == condition


def test_the_dispatchers_library_is_exact_and_others_do_not_count():
    stack = {"megatron-core": "0.19.2", "torch": "2.13.0", "deep_ep": "1.2.1+9af0e0d", "numpy": "2.4"}
    ranges = {name: minor_range(stack[name]) for name in ("torch",)}
    ranges["megatron_core"] = {"min": "0.19", "below": "0.20"}
    assert stack_conditions(stack, resolve({})) == ranges
    for dispatcher in ("deepep", "hybridep"):
        found = stack_conditions(stack, resolve({"dispatcher": dispatcher}))
        assert found == {**ranges, "deep_ep": {"exact": "1.2.1+9af0e0d"}}


def test_a_stack_without_megatron_is_an_error():
    with pytest.raises(RunError, match="no megatron_core, only torch"):
        stack_conditions({"torch": "2.13.0"}, resolve({}))


def test_growth_is_in_data_parallelism_only():
    settings = resolve({"pipeline_parallel": 2, "virtual_pipeline": 2, "expert_parallel": 2})
    # One replica is 2 ranks, one expert group 4; 16 ranks = 8 replicas of 4 micro-batches each, the last that
    # leaves every stage whole rounds is 32 ranks = 2 micro-batches.
    assert gpu_condition(settings, 16, 32) == {"min": 16, "max": 32, "multiple_of": 16}
    assert gpu_condition(resolve({}), 1, 12) == {"min": 1, "max": 4, "multiple_of": 1}
    assert gpu_condition(resolve({}), 8, 8) == {"min": 8, "max": 8, "multiple_of": 1}


sizes = st.sampled_from([1, 2, 3, 4])


@given(sizes, sizes, sizes, sizes, sizes, st.sampled_from([1, 2]), st.integers(1, 6), st.integers(1, 40))
def test_every_admitted_size_splits_the_batch_and_the_model(tp, pp, ep, etp, vpp, mbs, replicas, rounds):
    measured = replicas * pp * lcm(tp, ep * etp)
    batch = rounds * pp * mbs * measured // (tp * pp)
    settings = resolve(
        {
            "tensor_parallel": tp,
            "pipeline_parallel": pp,
            "virtual_pipeline": vpp,
            "expert_parallel": ep,
            "expert_tensor_parallel": etp,
            "micro_batch_size": mbs,
        }
    )

    def runs(num_gpus):
        data_parallel, rest = divmod(num_gpus, tp * pp)
        if rest or num_gpus % (ep * etp * pp):
            return False
        micro_batches, rest = divmod(batch, mbs * data_parallel)
        return micro_batches >= 1 and rest == 0 and (vpp == 1 or micro_batches % pp == 0)

    assert runs(measured)
    condition = gpu_condition(settings, measured, batch)
    admitted = [size for size in range(measured, condition["max"] + 1) if size % condition["multiple_of"] == 0]
    assert admitted[0] == measured
    assert admitted[-1] == condition["max"]
    assert all(runs(size) for size in admitted)
    assert not runs(condition["max"] + condition["multiple_of"])


def test_profiles_are_told_without_the_place_of_their_trace(study):
    shown = {"trial": 2, "note": "unscored", "experts_s": 0.5, "host": "node-7", "trace": "/scratch/rank-0.trace"}
    named = {"winner": winner(study.front), "baseline": None, "front": study.front}

    told = make_policy(study.facts, **named, profiles={"winner": shown}).evidence

    assert told["profile"] == {"winner": {"trial": 2, "note": "unscored", "experts_s": 0.5}}
    assert "profile" not in make_policy(study.facts, **named).evidence
