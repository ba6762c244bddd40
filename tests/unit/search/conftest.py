"""Studies on a small space, with outcomes computed instead of measured."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.measure.outcome import TrialOutcome, TrialState
from autotune.measure.surroundings import Surroundings
from autotune.request import TuneRequest, load_request
from autotune.search.proposal import Proposal

HERE = Surroundings(
    "stack-a", {"torch": "2.13.0", "megatron_core": "0.16.1"}, {"deepep": "not installed", "hybridep": "no GPU"}
)


@pytest.fixture
def here() -> Surroundings:
    return HERE


@pytest.fixture
def request_for(tmp_path: Path) -> Callable[..., TuneRequest]:
    def make(**changes: object) -> TuneRequest:
        asked = load_request("tiny-moe", "local", home=tmp_path, study="study", trials=12)
        asked.folder.mkdir(parents=True, exist_ok=True)
        return replace(asked, **changes)  # type: ignore[arg-type]

    return make


@pytest.fixture
def complete() -> Callable[[Proposal], TrialOutcome]:
    """An outcome from a made-up cost model: larger micro-batches are faster and need more memory."""

    def make(proposal: Proposal) -> TrialOutcome:
        micro = proposal.settings["micro_batch_size"]
        assert isinstance(micro, int)
        return TrialOutcome(
            proposal.trial, TrialState.COMPLETE, proposal.settings,
            tokens_per_s_per_gpu=1000.0 * micro / proposal.settings["pipeline_parallel"],  # type: ignore[operator]
            peak_memory_bytes=100_000_000 * micro, step_time_s=1.0, steps_used=7,
        )  # fmt: skip

    return make
