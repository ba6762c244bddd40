"""From a policy and outcomes to the answer of ``policy check``."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.errors import RequestError, RunError
from autotune.measure.outcome import TrialOutcome, TrialState
from autotune.measure.recorded import Recorded, changed_stack, recorded_of, request_again
from autotune.measure.still_right import judge_runs, judge_study, require_comparable
from autotune.measure.surroundings import Surroundings
from autotune.request import TuneRequest
from autotune_policies.policy import Policy, load_policy
from autotune_policies.settings import Settings

POLICY = Path(__file__).parents[2] / "golden" / "export" / "policy.yaml"


@pytest.fixture(scope="module")
def policy() -> Policy:
    return load_policy(POLICY)


@pytest.fixture
def recorded(policy: Policy) -> Recorded:
    return recorded_of(policy)


@pytest.fixture
def here(recorded: Recorded) -> Surroundings:
    """The stack of the policy."""
    return Surroundings(recorded.fingerprint, dict(recorded.stack), {})


@pytest.fixture
def elsewhere(here: Surroundings) -> Surroundings:
    return replace(here, fingerprint="another", stack={**here.stack, "torch": "2.14.0"})


def ran(settings: Settings, trial: int, step_time_s: float, state: TrialState = TrialState.COMPLETE) -> TrialOutcome:
    steps = [step_time_s * (1 + (index % 5 - 2) / 1000) for index in range(10)]
    return TrialOutcome(
        trial, state, settings, reason="gone" if state is not TrialState.COMPLETE else "", step_time_s=step_time_s,
        peak_memory_bytes=1000, step_times_s=[9.0, *steps], steps_used=10,
    )  # fmt: skip


@pytest.fixture
def ours(recorded: Recorded) -> Callable[..., list[TrialOutcome]]:
    return lambda *times: [ran(recorded.spec.settings, trial, time) for trial, time in enumerate(times)]


@pytest.fixture
def theirs(recorded: Recorded) -> Callable[..., list[TrialOutcome]]:
    assert recorded.runner_up is not None
    return lambda *times: [ran(recorded.runner_up, 10 + trial, time) for trial, time in enumerate(times)]  # type: ignore[arg-type]


def test_what_a_policy_says_of_itself(recorded: Recorded, policy: Policy) -> None:
    assert (recorded.step_time.low_s, recorded.step_time.median_s, recorded.step_time.high_s) == (0.291, 0.3, 0.39)
    assert recorded.runner_up == policy.alternatives[0]["settings"]
    assert recorded.runner_up_step_time_s == 0.4
    assert not recorded.runner_up_was_faster
    assert recorded.cluster == "local"
    assert recorded.spec.gang.world_size == 4


def test_the_fallback_is_the_runner_up_of_a_policy_without_alternatives(policy: Policy) -> None:
    assert recorded_of(policy._replace(alternatives=[])).runner_up == policy.fallback
    assert recorded_of(policy._replace(alternatives=[], fallback=policy.settings)).runner_up is None


def test_without_an_interval_the_range_counts_and_without_that_the_median(policy: Policy) -> None:
    def timing(**step_time_s: object) -> tuple[float, float]:
        changed = policy._replace(evidence={**policy.evidence, "step_time_s": {"median": 0.3, **step_time_s}})
        found = recorded_of(changed).step_time
        return found.low_s, found.high_s

    assert timing(ci95=None, range=[0.2, 0.5]) == (0.2, 0.5)
    assert timing() == (0.3, 0.3)
    assert timing(range="wide") == (0.3, 0.3)


def test_what_was_not_measured_cannot_be_checked(policy: Policy) -> None:
    predicted = policy._replace(evidence={"kind": "predicted"})
    with pytest.raises(RequestError, match="kind is predicted"):
        recorded_of(predicted)
    without = {name: value for name, value in policy.evidence.items() if name != "contract"}
    with pytest.raises(RequestError, match="contract is missing"):
        recorded_of(policy._replace(evidence=without))


def test_the_request_runs_exactly_the_policy(recorded: Recorded, tmp_path: Path) -> None:
    request = request_again(recorded, cluster=None, home=tmp_path)
    spec = request.spec(0, recorded.spec.settings)
    assert (spec.model, spec.contract, spec.gang) == (recorded.spec.model, recorded.spec.contract, recorded.spec.gang)
    assert spec.settings == recorded.spec.settings
    assert request.study == "tiny-moe-local-0001"
    (tmp_path / request.study).mkdir()
    assert request_again(recorded, cluster=None, home=tmp_path).study == "tiny-moe-local-0002"


def test_a_policy_of_a_recipe_is_measured_with_the_recipe(policy: Policy, tmp_path: Path) -> None:
    def described(**program: object) -> Policy:
        contract = {**policy.evidence["contract"], **program}
        return policy._replace(evidence={**policy.evidence, "contract": contract})

    recipe = {"function": "recipes.dsv3:config", "overrides": ["train.log_interval=1"]}
    found = recorded_of(described(program="bridge", recipe=recipe))
    request = request_again(found, cluster=None, home=tmp_path)
    assert request.program == "bridge"
    assert request.recipe is not None
    assert request.recipe.function == "recipes.dsv3:config"
    assert request.recipe.overrides == ("train.log_interval=1",)
    with pytest.raises(RequestError, match="recipe"):
        recorded_of(described(program="bridge", recipe={"function": "no function"}))


def test_a_study_name_that_is_no_folder_name(recorded: Recorded, tmp_path: Path) -> None:
    odd = replace(recorded, spec=replace(recorded.spec, study="../a b"))
    assert request_again(odd, cluster=None, home=tmp_path).study == "a-b-0001"


def test_ok(recorded: Recorded, here: Surroundings, ours: Callable, theirs: Callable) -> None:
    found = judge_runs(recorded, here, ours(0.3, 0.31, 0.3, 0.31), theirs(0.4, 0.41, 0.4, 0.41))
    assert found.drift.verdict == "OK"
    assert not found.new_epoch
    assert found.recorded is not None
    assert found.step_time_s == pytest.approx(0.305)


def test_drift_regression_and_gain(recorded: Recorded, here: Surroundings, ours: Callable, theirs: Callable) -> None:
    slow, fast = (0.5, 0.51, 0.5, 0.51), (0.2, 0.21, 0.2, 0.21)
    assert judge_runs(recorded, here, ours(*slow), theirs(*fast)).drift.verdict == "DRIFT"
    assert judge_runs(recorded, here, ours(*slow), theirs(0.9, 0.9, 0.9, 0.9)).drift.verdict == "REGRESSION"
    assert judge_runs(recorded, here, ours(*fast), theirs(0.9, 0.9, 0.9, 0.9)).drift.verdict == "GAIN"
    assert judge_runs(recorded, here, ours(*slow), []).drift.verdict == "REGRESSION"


def test_runs_that_scatter_say_nothing_of_the_record(recorded: Recorded, here: Surroundings, ours: Callable) -> None:
    assert judge_runs(recorded, here, ours(0.42, 0.9, 0.42, 0.9), []).drift.verdict == "OK"


def test_on_another_stack_only_the_order_counts(
    recorded: Recorded, elsewhere: Surroundings, ours: Callable, theirs: Callable
) -> None:
    found = judge_runs(recorded, elsewhere, ours(0.6, 0.6, 0.6, 0.6), theirs(0.8, 0.8, 0.8, 0.8))
    assert found.drift.verdict == "OK"
    assert found.recorded is None
    assert found.new_epoch
    assert found.changed_stack == {"torch": ["2.13.0+cpu", "2.14.0"]}
    assert "torch 2.13.0+cpu -> 2.14.0" in found.notes[0]
    assert judge_runs(recorded, elsewhere, ours(*[0.3] * 4), theirs(*[0.2] * 4)).drift.verdict == "DRIFT"


def test_another_stack_without_a_runner_up_is_refused_before_anything_runs(
    recorded: Recorded, here: Surroundings, elsewhere: Surroundings
) -> None:
    alone = replace(recorded, runner_up=None)
    require_comparable(alone, here)
    require_comparable(recorded, elsewhere)
    with pytest.raises(RequestError, match=r"torch 2.13.0\+cpu -> 2.14.0.*without a runner-up"):
        require_comparable(alone, elsewhere)


def test_a_policy_that_no_longer_runs_is_a_failed_run(
    recorded: Recorded, here: Surroundings, ours: Callable, theirs: Callable
) -> None:
    broken = [*ours(0.3), ran(recorded.spec.settings, 1, 1.0, TrialState.INFEASIBLE)]
    with pytest.raises(RunError, match="INFEASIBLE: gone"):
        judge_runs(recorded, here, broken, theirs(0.4, 0.4))


def test_a_runner_up_that_no_longer_runs_is_named(recorded: Recorded, here: Surroundings, ours: Callable) -> None:
    assert recorded.runner_up is not None
    failed = [ran(recorded.runner_up, 10, 1.0, TrialState.FALLBACK)]
    found = judge_runs(recorded, here, ours(0.3, 0.3), failed)
    assert found.runner_up is None
    assert found.notes == ("a run of the runner-up was FALLBACK: gone",)
    with pytest.raises(RunError, match="nothing can be said"):
        judge_runs(recorded, replace(here, fingerprint="another"), ours(0.3, 0.3), failed)


@pytest.fixture
def request_of(recorded: Recorded, tmp_path: Path) -> TuneRequest:
    return replace(request_again(recorded, cluster=None, home=tmp_path), study="s")


def test_a_study_in_which_the_policy_is_still_on_top(
    recorded: Recorded, here: Surroundings, request_of: TuneRequest, ours: Callable, theirs: Callable
) -> None:
    outcomes = [*theirs(0.5, 0.4), *ours(0.3)]
    found = judge_study(recorded, request_of, here, outcomes)
    assert found.drift.verdict == "OK"
    assert found.notes == ("the runner-up is trial 11 of the study",)
    assert found.drift.confidence >= 0.95


def test_a_study_that_found_something_faster(
    recorded: Recorded, here: Surroundings, request_of: TuneRequest, ours: Callable, theirs: Callable
) -> None:
    assert judge_study(recorded, request_of, here, [*ours(0.3), *theirs(0.2)]).drift.verdict == "DRIFT"
    near = judge_study(recorded, request_of, here, [*ours(0.3), *theirs(0.295)])
    assert near.drift.verdict == "OK", "one run each: within the tolerance"
    limited = replace(request_of, memory_limit_bytes=10)
    alone = judge_study(recorded, limited, here, [*ours(0.3), *theirs(0.2)])
    assert (alone.drift.verdict, alone.runner_up) == ("OK", None)


def test_a_study_without_the_policys_settings(
    recorded: Recorded, here: Surroundings, request_of: TuneRequest, theirs: Callable
) -> None:
    with pytest.raises(RequestError, match="never tried"):
        judge_study(recorded, request_of, here, theirs(0.4))
    failed = ran(recorded.spec.settings, 3, 1.0, TrialState.INFEASIBLE)
    with pytest.raises(RequestError, match=r"INFEASIBLE \(gone\)"):
        judge_study(recorded, request_of, here, [*theirs(0.4), failed])


def test_a_study_of_another_contract_is_refused_by_field(
    recorded: Recorded, here: Surroundings, request_of: TuneRequest, ours: Callable
) -> None:
    other = replace(request_of, contract=replace(request_of.contract, seq_length=256))
    with pytest.raises(RequestError, match=r"contract\.seq_length=256, but .* was measured with 128"):
        judge_study(recorded, other, here, ours(0.3))
    moved = replace(request_of, cluster=request_of.cluster.model_copy(update={"name": "h100"}))
    with pytest.raises(RequestError, match="cluster='h100'"):
        judge_study(recorded, moved, here, ours(0.3))


def test_the_same_versions_on_other_machines(recorded: Recorded, here: Surroundings) -> None:
    assert changed_stack(recorded, here.stack) == {}
    with pytest.raises(RequestError, match="same versions, other machines"):
        require_comparable(replace(recorded, runner_up=None), replace(here, fingerprint="another"))


def test_another_stack_and_nothing_else_in_the_study(
    recorded: Recorded, elsewhere: Surroundings, request_of: TuneRequest, ours: Callable
) -> None:
    with pytest.raises(RequestError, match="nothing else"):
        judge_study(recorded, request_of, elsewhere, ours(0.3))
