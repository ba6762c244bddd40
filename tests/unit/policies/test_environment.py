"""Which variables a policy may set."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune_policies.environment import ALLOWED, MAX_VALUE_LENGTH, check_variable
from autotune_policies.errors import PolicyError


@pytest.mark.parametrize(
    "name",
    [
        "LD_PRELOAD", "LD_LIBRARY_PATH", "LD_AUDIT", "PATH", "PYTHONPATH", "PYTHONSTARTUP", "PYTHONHOME", "HOME",
        "BASH_ENV", "NCCL_NET_PLUGIN", "NCCL_TUNER_PLUGIN", "NCCL_CONF_FILE", "CUDA_HOME", "CUDA_INJECTION64_PATH",
        "NVSHMEM_DIR", "TRITON_CACHE_DIR", "HYBRID_EP_CACHE_DIR", "HTTP_PROXY", "MASTER_ADDR", "WORLD_SIZE", "RANK", "",
    ],
)  # fmt: skip
def test_nothing_that_chooses_code_files_or_peers_can_be_set(name: str) -> None:
    with pytest.raises(PolicyError, match="cannot be set by a policy"):
        check_variable(name, "1")


@settings(deadline=None)
@given(st.text(max_size=30))
def test_only_listed_names_pass(name: str) -> None:
    if name in ALLOWED:
        return
    with pytest.raises(PolicyError):
        check_variable(name, "1")


@settings(deadline=None)
@given(st.sampled_from(sorted(ALLOWED)), st.text(max_size=30))
def test_a_value_is_one_printable_line(name: str, value: str) -> None:
    if value and value.isprintable():
        assert check_variable(name, value) == value
    else:
        with pytest.raises(PolicyError, match="one line"):
            check_variable(name, value)


@pytest.mark.parametrize("value", ["a\0b", "a\nb", "a\rb", "\x1b[2J", "x" * (MAX_VALUE_LENGTH + 1)])
def test_control_characters_and_endless_values_are_refused(value: str) -> None:
    with pytest.raises(PolicyError, match="one line"):
        check_variable("OMP_NUM_THREADS", value)


def test_every_name_has_its_reason() -> None:
    assert all(reason and "\n" not in reason for reason in ALLOWED.values())
    assert list(ALLOWED) == sorted(ALLOWED)
