"""Which variables a policy may set."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune_policies.environment import ALLOWED, MAX_VALUE_LENGTH, check_variable
from autotune_policies.errors import PolicyError

COUNTS = [
    "CUDA_DEVICE_MAX_CONNECTIONS", "NCCL_MAX_NCHANNELS", "NCCL_MIN_NCHANNELS",
    "NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN",
    "NUM_OF_IN_FLIGHT_S2G_DISPATCH_API", "NUM_OF_STAGES_DISPATCH_API", "NUM_OF_STAGES_G2S_COMBINE_API",
    "NUM_OF_STAGES_S2G_COMBINE_API", "NUM_OF_TOKENS_PER_CHUNK_COMBINE_API", "NUM_OF_TOKENS_PER_CHUNK_DISPATCH_API",
    "NUM_OF_TOKENS_PER_CHUNK_PREPROCESSING_API", "NVLINK_DOMAIN_SIZE", "NVTE_BWD_LAYERNORM_SM_MARGIN",
    "NVTE_FWD_LAYERNORM_SM_MARGIN", "OMP_NUM_THREADS",
]  # fmt: skip


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
    if not value or not value.isprintable():
        with pytest.raises(PolicyError, match="one line"):
            check_variable(name, value)
    elif name not in COUNTS:
        assert check_variable(name, value) == value


@settings(deadline=None)
@given(st.sampled_from(COUNTS), st.integers(1, 10**9 - 1))
def test_what_counts_something_is_a_whole_number(name: str, count: int) -> None:
    assert check_variable(name, str(count)) == str(count)


@pytest.mark.parametrize("value", ["abc", "0", "-1", "1.5", " 1", "1 ", "²", "1_0", "9" * 30])
def test_no_count_is_refused(value: str) -> None:
    with pytest.raises(PolicyError, match=r"^OMP_NUM_THREADS=.* must be a whole number from 1, of at most 9 digits$"):
        check_variable("OMP_NUM_THREADS", value)


def test_a_margin_may_be_nothing() -> None:
    assert check_variable("NVTE_FWD_LAYERNORM_SM_MARGIN", "0") == "0"


@pytest.mark.parametrize("value", ["a\0b", "a\nb", "a\rb", "\x1b[2J", "x" * (MAX_VALUE_LENGTH + 1)])
def test_control_characters_and_endless_values_are_refused(value: str) -> None:
    with pytest.raises(PolicyError, match="one line"):
        check_variable("OMP_NUM_THREADS", value)


def test_every_name_has_its_reason() -> None:
    assert all(reason and "\n" not in reason for reason in ALLOWED.values())
    assert list(ALLOWED) == sorted(ALLOWED)
