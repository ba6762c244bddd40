"""CUDA's rule for the list of visible GPUs."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune_trials.visible import count_visible, entries

UUIDS = ["GPU-aa", "GPU-ab", "GPU-b"]
WORDS = st.sampled_from(["0", "1", "2", "7", "-1", "", " 1", "1gpu", "NoDevFiles", "GPU-aa", "GPU-a", "GPU-b", "MIG-x"])


@pytest.mark.parametrize(
    ("named", "visible"),
    [
        (None, 3),
        ("", 0), (" ", 0), ("-1", 0), ("-1,0", 0), ("NoDevFiles", 0), ("none", 0), (",0", 0),
        ("0", 1), ("2,0", 2), ("0,1,2", 3), ("0,", 1), ("0,-1,1", 1), ("0,x,1", 1), ("0,7,1", 1), ("7", 0),
        (" 1 , 2", 2),
        ("1gpu2,2ampere", 2), ("+1", 1), ("01,2", 2),
        ("0,0", 0), ("1,2,01", 0),
        ("GPU-aa", 1), ("GPU-b,GPU-aa", 2), ("GPU-a", 0), ("GPU-c,GPU-b", 0), ("GPU-b,0", 1), ("0,GPU-b", 1),
        ("GPU-b,GPU-b", 0), ("MIG-1", 1), ("MIG-1,MIG-2", 1),
    ],
)  # fmt: skip
def test_the_list_ends_before_the_first_entry_that_names_no_gpu(named: str | None, visible: int) -> None:
    assert count_visible(named, UUIDS) == visible


def test_a_name_that_cannot_be_checked_counts() -> None:
    assert count_visible("GPU-c", ["GPU-a", None]) == 1
    assert count_visible("GPU-c", []) == 0


@given(st.lists(WORDS, min_size=1, max_size=5))
def test_what_is_visible_is_a_part_of_what_is_named_and_of_what_is_there(words: list[str]) -> None:
    named = ",".join(words)
    taken = entries(named)
    assert len(taken) == len(set(taken)) <= len(words)
    assert 0 <= count_visible(named, UUIDS) <= min(len(taken), len(UUIDS))
    assert entries(",".join(taken)) == taken if taken else True
    assert count_visible(f"-1,{named}", UUIDS) == 0
    if "MIG" not in named:
        assert count_visible(f"{named},-1", UUIDS) == count_visible(named, UUIDS)


@pytest.fixture(scope="module")
def torch_cuda() -> Any:
    return pytest.importorskip("torch.cuda")


@pytest.mark.trial
@given(st.lists(st.sampled_from(["0", "1", "12", "-1", "+2", "", "x", "1x", "GPU-a", "GPU-b"]), min_size=1, max_size=4))
def test_torch_reads_it_likewise(torch_cuda: Any, words: list[str]) -> None:
    """An independent reader of the same variable."""
    named = ",".join(words)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CUDA_VISIBLE_DEVICES", named)
        assert list(entries(named)) == [str(word) for word in torch_cuda._parse_visible_devices()]
