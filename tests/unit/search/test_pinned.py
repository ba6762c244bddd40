"""Settings that the nodes leave no choice about reach every trial, the baseline included."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from autotune.export.result import conclude
from autotune.measure.outcome import TrialOutcome
from autotune.measure.surroundings import Surroundings
from autotune.request import TuneRequest, load_request
from autotune.search.proposal import Proposal
from autotune.search.study import Study

STACK = {"torch": "2.13", "megatron_core": "0.19.2", "transformer_engine": "2.14"}
PINNED = Surroundings("pinned", STACK, {"permute_fusion": "no Triton"}, {"permute_fusion": False})


def test_a_pinned_setting_wins_over_points_and_the_baseline(tmp_path: Path) -> None:
    asked = load_request("dsv3", "gb300", home=tmp_path)
    assert asked.settings(asked.space.baseline)["permute_fusion"] is True
    here = replace(asked, pinned=PINNED.pinned)
    for point in (here.space.baseline, *here.space.seeds, {**here.space.baseline, "permute_fusion": True}):
        assert here.settings(point)["permute_fusion"] is False
        assert here.spec(0, point).settings["permute_fusion"] is False
    assert here.identity() == asked.identity()


def test_a_study_under_a_pin_launches_nothing_else_and_keeps_its_baseline(
    request_for: Callable[..., TuneRequest], complete: Callable[[Proposal], TrialOutcome]
) -> None:
    asked = request_for()
    pinned = Surroundings("pinned", {"torch": "2.13", "megatron_core": "0.16.1"}, {}, {"micro_batch_size": 1})
    study = Study(asked)
    study.enter(pinned)
    seen = []
    while len(seen) < 4 and (proposal := study.next()) is not None:
        seen.append(proposal.settings["micro_batch_size"])
        study.tell(replace(complete(proposal), step_times_s=[1.0] * 7))
    assert seen
    assert set(seen) == {1}
    result = conclude(asked, study.outcomes(), study.surroundings, wall_s=1.0)
    assert result.baseline is not None
    assert result.baseline.settings["micro_batch_size"] == 1
    again = Study(asked)
    assert again.surroundings == pinned
