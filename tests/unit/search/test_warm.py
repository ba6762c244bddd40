"""Seeds from a policy: settings become points of the space, or are named and dropped."""

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from autotune.errors import RequestError
from autotune.files import write_atomically
from autotune.request import TuneRequest, load_request, stored_request
from autotune.search.warm import point_of, warm_start
from autotune.space.parameters import Point
from autotune_policies.policy import Policy, dump_policy, load_policy
from autotune_policies.settings import Settings

Request = Callable[..., TuneRequest]

POLICY = Path(__file__).parents[2] / "golden" / "export" / "policy.yaml"


@pytest.fixture(scope="module")
def large() -> TuneRequest:
    """A space with generated layouts and conditions."""
    return load_request("dsv3", "gb300")


@pytest.fixture
def policy_of(tmp_path: Path) -> Callable[..., str]:
    """A policy file with these settings and alternatives."""

    def write(chosen: Settings, *alternatives: Settings, name: str = "warm.yaml") -> str:
        entries = [{"settings": one} for one in alternatives]
        policy: Policy = load_policy(POLICY)._replace(settings=chosen, alternatives=entries)
        path = tmp_path / name
        write_atomically(path, dump_policy(policy).encode())
        return str(path)

    return write


def draw(data: st.DataObject, request: TuneRequest) -> Point:
    point: Point = {}
    for parameter in request.space.parameters:
        if parameter.active(point):
            point[parameter.name] = data.draw(st.sampled_from(parameter.choices), label=parameter.name)
    return point


@given(st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
def test_the_settings_of_every_point_lead_back_to_it(large: TuneRequest, data: st.DataObject) -> None:
    """To the point, or to one that means the same settings: two generated layouts can be equal."""
    wanted = large.settings(draw(data, large))
    found = point_of(large, wanted)
    if isinstance(found, str):
        # Layouts that cannot exist stay null, which no choice stands for.
        assert found.startswith("pipeline_layout=None")
    else:
        assert large.settings(found) == wanted


def test_the_policys_settings_come_first_and_the_baseline_before_them(
    request_for: Request, policy_of: Callable[..., str]
) -> None:
    request = request_for()
    mine: Point = {**request.space.baseline, "micro_batch_size": 4}
    other: Point = {**request.space.baseline, "micro_batch_size": 2}
    source = policy_of(request.settings(mine), request.settings(other), request.settings(mine))
    warm = warm_start(request, source)
    assert warm.request.space.baseline == request.space.baseline
    assert warm.request.space.seeds == (mine, other, *request.space.seeds)
    assert warm.dropped == ()
    assert warm.request.identity() == request.identity(), "seeds do not make it another study"


def test_a_seed_that_the_space_has_already_is_not_repeated(request_for: Request, policy_of: Callable[..., str]) -> None:
    request = request_for()
    first, *rest = request.space.seeds
    assert warm_start(request, policy_of(request.settings(first))).request.space.seeds == (first, *rest)


def test_what_is_outside_is_dropped_and_named(request_for: Request, policy_of: Callable[..., str]) -> None:
    request = request_for()
    inside = request.settings(request.space.baseline)
    outside = {**inside, "micro_batch_size": 8}
    unfixed = {**inside, "distributed_optimizer": False}
    warm = warm_start(request, policy_of(inside, outside, unfixed))
    assert len(warm.request.space.seeds) == 1 + len(request.space.seeds)
    first, second = warm.dropped
    assert "alternative 1: not a point of this space: micro_batch_size=8 is not one of [1, 2, 4]" in first
    assert "distributed_optimizer=False does not vary here, it is True" in second


def test_nothing_inside_is_refused(request_for: Request, policy_of: Callable[..., str]) -> None:
    request = request_for()
    source = policy_of({**request.settings(request.space.baseline), "micro_batch_size": 8})
    with pytest.raises(RequestError, match=r"none of the 1 settings of .* micro_batch_size=8 is not one of"):
        warm_start(request, source)


def test_a_study_stands_for_its_policy(request_for: Request, policy_of: Callable[..., str]) -> None:
    request = request_for()
    write_atomically(request.home / "old" / "request.yaml", b"{}")
    with pytest.raises(RequestError, match="study 'old' has no policy"):
        warm_start(request, "old")
    policy_of(request.settings(request.space.baseline), name="old/policy.yaml")
    warm = warm_start(request, "old")
    assert warm.request.space.seeds[0] == request.space.baseline
    assert warm.request.asked["warm_start"] == "old"


def test_what_is_neither_a_file_nor_a_study(request_for: Request) -> None:
    with pytest.raises(RequestError, match="'nothing' is neither a file nor a study"):
        warm_start(request_for(), "nothing")
    with pytest.raises(RequestError, match=r"nothing\.yaml cannot be read: No such file"):
        warm_start(request_for(), "nothing.yaml")


def test_the_same_command_resumes_and_another_beginning_is_refused(
    request_for: Request, policy_of: Callable[..., str]
) -> None:
    request = request_for()
    source = policy_of(request.settings(request.space.baseline))
    warm = warm_start(request, source).request
    write_atomically(request.folder / "request.yaml", warm.to_yaml().encode())
    assert warm_start(request, source).request == warm
    assert stored_request("study", request.home).space.seeds == warm.space.seeds
    again = policy_of(request.settings(request.space.baseline), name="b.yaml")
    with pytest.raises(RequestError, match=r"exists and began with --warm-start .*warm.yaml"):
        warm_start(request, again)
    write_atomically(request.folder / "request.yaml", request.to_yaml().encode())
    with pytest.raises(RequestError, match="exists and began without one"):
        warm_start(request, source)
