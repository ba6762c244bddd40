"""Reading records back: sound ones return as they were, damaged ones count as none."""

import json
from pathlib import Path
from typing import Any

import pytest

from autotune.measure.outcome import TrialOutcome, TrialState
from autotune.measure.outcome_file import read_outcome

SOUND = TrialOutcome(
    trial=3, state=TrialState.COMPLETE, settings={"dispatcher": "alltoall"}, step_time_s=0.2, tokens_per_s_per_gpu=5.0,
    peak_memory_bytes=1 << 20, step_times_s=[0.9, 0.2, 0.7, 0.2], steps_used=2, gpu_s=4.0, set_aside={"pause": [2]},
)  # fmt: skip


def test_a_sound_record_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "outcome.json"
    path.write_text(json.dumps(SOUND.to_dict()), encoding="utf-8")
    assert read_outcome(path) == SOUND
    assert read_outcome(tmp_path / "none.json") is None


@pytest.mark.parametrize(
    "damage",
    [
        {"gpu_s": None}, {"gpu_s": "4"}, {"gpu_s": float("nan")}, {"gpu_s": -1.0}, {"wall_s": True},
        {"step_times_s": []}, {"step_times_s": None}, {"step_times_s": ["a"] * 4}, {"step_times_s": [float("nan")] * 4},
        {"step_times_s": [0.9, 0.0, 0.7, 0.2]}, {"steps_used": 0}, {"steps_used": "2"}, {"steps_used": 9},
        {"peak_memory_bytes": "much"}, {"set_aside": None}, {"set_aside": {"pause": 2}}, {"state": "GOOD"},
        {"settings": []}, {"step_time_s": None}, {"surplus": 1},
    ],
    ids=str,
)  # fmt: skip
def test_a_damaged_record_counts_as_none(damage: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "outcome.json"
    path.write_text(json.dumps({**SOUND.to_dict(), **damage}), encoding="utf-8")
    assert read_outcome(path) is None


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "1", '"a"', "\x00"])
def test_what_is_no_record_counts_as_none(text: str, tmp_path: Path) -> None:
    path = tmp_path / "outcome.json"
    path.write_text(text, encoding="utf-8")
    assert read_outcome(path) is None
