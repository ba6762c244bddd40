"""Settings that live in the environment or in the launcher."""

from hypothesis import given
from hypothesis import strategies as st

from autotune_policies.environment import ALLOWED, check_variable
from autotune_policies.settings import SETTINGS, resolve
from autotune_policies.surroundings import (
    ENVIRONMENT_SETTINGS,
    LAUNCH_SETTINGS,
    environment_of,
    launch_of,
    read_environment,
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
