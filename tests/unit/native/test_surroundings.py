"""What is read back from the process itself, and that nothing is claimed which is not in force."""

import gc
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from autotune_policies.settings import resolve
from autotune_trials.native.surroundings import surroundings

ASKED = resolve({"layernorm_sm_margin": 16, "gpus_per_numa_node": 2})


@pytest.fixture(autouse=True)
def _collector() -> Iterator[None]:
    yield
    gc.enable()


def test_a_variable_that_is_not_there_is_not_claimed() -> None:
    assert surroundings(ASKED, {"LOCAL_RANK": "0"})["layernorm_sm_margin"] is None
    variables = {"NVTE_FWD_LAYERNORM_SM_MARGIN": "16", "NVTE_BWD_LAYERNORM_SM_MARGIN": "16", "LOCAL_RANK": "0"}
    assert surroundings(ASKED, variables)["layernorm_sm_margin"] == 16


def test_what_nobody_asked_for_stays_null() -> None:
    settings = surroundings(resolve({}), {"CUDA_DEVICE_MAX_CONNECTIONS": "1"})
    assert set(settings.values()) == {None}


def test_a_binding_is_claimed_only_where_the_process_is_kept_to_the_node(tmp_path: Path) -> None:
    mine = ",".join(map(str, sorted(os.sched_getaffinity(0))))
    for node, text in (("node0", mine), ("node1", "1000-1003,1005")):
        (tmp_path / node).mkdir()
        (tmp_path / node / "cpulist").write_text(text + "\n", encoding="ascii")

    def bound(local_rank: int) -> object:
        return surroundings(ASKED, {"LOCAL_RANK": str(local_rank)}, tmp_path)["gpus_per_numa_node"]

    assert bound(1) == 2
    assert bound(2) is None  # the second node's cores are others
    assert bound(4) is None  # there is no third node


def test_the_collector_is_by_hand_only_where_it_is_off() -> None:
    asked = resolve({"manual_gc_interval": 10})
    assert surroundings(asked, {})["manual_gc_interval"] is None
    gc.disable()
    assert surroundings(asked, {})["manual_gc_interval"] == 10
