"""Settings that live in the environment or in the launcher."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune_policies.environment import ALLOWED, check_variable
from autotune_policies.errors import PolicyError
from autotune_policies.settings import SETTINGS, resolve
from autotune_policies.surroundings import (
    ENVIRONMENT_SETTINGS,
    HYBRID_EP_VARIABLES,
    LAUNCH_SETTINGS,
    check_hybrid_ep,
    environment_of,
    launch_of,
    read_environment,
    stale_variables,
    topology_of,
)

settings_of_the_environment = st.fixed_dictionaries(
    {
        name: st.none()
        | (
            st.sampled_from(SETTINGS[name].choices)
            if SETTINGS[name].kind == "str"
            else st.integers(SETTINGS[name].minimum, 512)
        )
        for name in ENVIRONMENT_SETTINGS
    }
)


@given(asked=settings_of_the_environment)
def test_what_is_written_to_the_environment_reads_back_the_same(asked: dict[str, object]) -> None:
    variables = environment_of(asked)
    assert read_environment(variables) == asked
    assert {name: check_variable(name, value) for name, value in variables.items()} == variables


def test_every_setting_of_the_environment_has_a_variable_and_null_asks_for_none() -> None:
    for name in ENVIRONMENT_SETTINGS:
        row = SETTINGS[name]
        assert set(environment_of({name: row.choices[0] if row.choices else 1})) <= set(ALLOWED)
        assert environment_of({name: row.choices[0] if row.choices else 1})
    assert environment_of(resolve({})) == {}
    assert launch_of(resolve({})) == {}


def test_values_that_disagree_or_have_no_canonical_form_are_null() -> None:
    variables = {
        "NVTE_FWD_LAYERNORM_SM_MARGIN": "16", "NVTE_BWD_LAYERNORM_SM_MARGIN": "20", "CUDA_DEVICE_MAX_CONNECTIONS": "x",
        "PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:512",
    }  # fmt: skip
    assert set(read_environment(variables).values()) == {None}


def test_allocator_flags_are_read_in_any_order() -> None:
    text = "graph_capture_record_stream_reuse:True, expandable_segments:True"
    assert read_environment({"PYTORCH_CUDA_ALLOC_CONF": text})["cuda_allocator"] == "expandable_segments_graph_reuse"


def test_binding_is_a_launch_setting() -> None:
    assert LAUNCH_SETTINGS == ("gpus_per_numa_node",)
    assert launch_of({"gpus_per_numa_node": 2}) == {"numa_binding": {"gpus_per_numa_node": 2}}


def hybrid(expert: int, expert_tensor: int = 1, **more: object) -> dict[str, object]:
    return {"dispatcher": "hybridep", "expert_parallel": expert, "expert_tensor_parallel": expert_tensor, **more}


@pytest.mark.parametrize(
    ("settings", "domain", "node", "expected"),
    [
        (hybrid(4), 8, 8, ("4", "8", "0")),
        (hybrid(32), 8, 8, ("8", "8", "0")),
        (hybrid(4, 2), 8, 8, ("8", "8", "0")),
        (hybrid(64), 72, 4, ("64", "72", "1")),
        (hybrid(1), 72, 4, ("1", "72", "1")),
    ],
)
def test_hybridep_sees_the_ranks_of_its_group_in_one_nvlink_domain(
    settings: dict[str, object], domain: int, node: int, expected: tuple[str, ...]
) -> None:
    found = topology_of(settings, nvlink_domain_gpus=domain, gpus_per_node=node)
    names = ("NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN", "NVLINK_DOMAIN_SIZE", "USE_MNNVL")
    assert found == dict(zip(names, expected, strict=True))


@given(
    expert=st.integers(1, 128), expert_tensor=st.integers(1, 4), domain=st.sampled_from([1, 4, 8, 72]),
    node=st.sampled_from([4, 8]), chunk=st.none() | st.integers(1, 512),
)  # fmt: skip
def test_a_topology_is_whole_or_refused_and_always_checks(
    expert: int, expert_tensor: int, domain: int, node: int, chunk: int | None
) -> None:
    settings, group = hybrid(expert, expert_tensor, tokens_per_chunk=chunk), expert * expert_tensor
    if group > domain and group % domain:
        with pytest.raises(PolicyError, match=f"= {group} ranks are not whole NVLink domains of {domain} GPUs"):
            topology_of(settings, nvlink_domain_gpus=domain, gpus_per_node=node)
        return
    found = topology_of(settings, nvlink_domain_gpus=domain, gpus_per_node=node)
    assert group % int(found["NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN"]) == 0
    whole = {**environment_of(settings), **found}
    assert {name: check_variable(name, value) for name, value in whole.items()} == whole
    assert set(whole) <= set(HYBRID_EP_VARIABLES)
    check_hybrid_ep(settings, whole)
    for name in found:
        with pytest.raises(PolicyError, match=f"^{name} is missing, but dispatcher is hybridep"):
            check_hybrid_ep(settings, {key: value for key, value in whole.items() if key != name})
    with pytest.raises(PolicyError, match=r"is for hybridep, but dispatcher is alltoall$"):
        check_hybrid_ep({**settings, "dispatcher": "alltoall"}, whole)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN": "4"},
            "is 4, but 16 ranks of an expert group .* of 8 GPUs make 8",
        ),
        ({"NVLINK_DOMAIN_SIZE": "16"}, "is 8, but 16 ranks of an expert group .* of 16 GPUs make 16"),
        ({"NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN": "6", "NVLINK_DOMAIN_SIZE": "6"}, "16 ranks .* no multiple of it"),
        ({"USE_MNNVL": "yes"}, "USE_MNNVL is 'yes'"),
    ],
)
def test_a_topology_that_contradicts_the_settings_is_refused(change: dict[str, str], message: str) -> None:
    right = topology_of(hybrid(16), nvlink_domain_gpus=8, gpus_per_node=8)
    check_hybrid_ep(hybrid(16), right)
    with pytest.raises(PolicyError, match=message):
        check_hybrid_ep(hybrid(16), {**right, **change})


def test_every_variable_of_hybridep_that_a_policy_may_set_is_stale_beside_other_dispatchers() -> None:
    named = {name for name, text in ALLOWED.items() if re.search("HybridEP", text)} | {"NVLINK_DOMAIN_SIZE"}
    assert set(stale_variables({"dispatcher": "deepep"})) == named
    assert stale_variables({"dispatcher": "hybridep"}) == ()
    assert topology_of({"dispatcher": "deepep", "expert_parallel": 8}, nvlink_domain_gpus=8, gpus_per_node=8) == {}
