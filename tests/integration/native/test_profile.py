"""One profiled run of real Megatron-Core on CPUs."""

import gzip
import json
from pathlib import Path

import pytest

from autotune_trials.spec import spec_from

from .conftest import CONTRACT, MODEL

pytest.importorskip("pydantic")  # the head side runs the gang

from autotune.measure.run import GangRun
from autotune.scheduling.gang import run_gang
from autotune.scheduling.local_gang import LocalGang

PROFILED_STEPS = 2


@pytest.fixture(scope="module")
def profiled(tmp_path_factory: pytest.TempPathFactory) -> GangRun:
    spec = spec_from(
        {
            "study": "test", "trial": 0, "model": MODEL, "settings": {"expert_parallel": 2},
            "contract": CONTRACT | {"steps": 4}, "profile_steps": PROFILED_STEPS, "deadline_s": 240.0,
            "gang": {"num_nodes": 1, "ranks_per_node": 2, "device": "cpu"},
        }
    )  # fmt: skip
    gang = LocalGang(tmp_path_factory.mktemp("gang"))
    try:
        return run_gang(gang, spec)
    finally:
        gang.close()


def test_every_part_of_a_step_is_seen_and_they_make_up_the_step(profiled: GangRun) -> None:
    assert profiled.ending == "finished", (profiled.message, [rank.log_tail[-2000:] for rank in profiled.ranks])
    found = dict(profiled.profile or {})
    parts = {
        name: found[name]
        for name in (
            "exposed_dispatch_s", "exposed_combine_s", "permute_s", "experts_s", "optimizer_s", "other_s", "host_s",
        )
    }  # fmt: skip
    mean_step_s = sum(record.step_time_s for record in profiled.steps[-PROFILED_STEPS:]) / PROFILED_STEPS

    assert all(seconds > 0.0 for seconds in parts.values()), parts
    assert found["step_time_s"] == pytest.approx(mean_step_s, rel=0.05)
    assert sum(parts.values()) == pytest.approx(found["step_time_s"], rel=1e-6)
    assert (found["rank"], found["steps"]) == (0, PROFILED_STEPS)


def test_the_backward_pass_is_in_the_parts_too(profiled: GangRun) -> None:
    """Half of the exchanges are in the backward pass, where no range can be put on."""
    found = dict(profiled.profile or {})
    with gzip.open(Path(found["trace"]), "rt", encoding="utf-8") as file:
        events = json.load(file)["traceEvents"]
    forward_us = {
        part: sum(event["dur"] for event in events if event["name"] == f"autotune:{part}" and event.get("ph") == "X")
        for part in ("dispatch", "combine", "experts")
    }

    for part, own_us in forward_us.items():
        assert found[f"{part}_s"] * PROFILED_STEPS > own_us * 1.05e-6, part


def test_all_steps_are_reported_as_ever(profiled: GangRun) -> None:
    assert [record.step for record in profiled.steps] == [1, 2, 3, 4]
