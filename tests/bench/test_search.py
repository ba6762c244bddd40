"""What proposing a trial costs as the study grows, relative to its first proposals."""

import time

import pytest

from autotune.measure.outcome import TrialOutcome, TrialState
from autotune.measure.surroundings import Surroundings
from autotune.request import load_request
from autotune.search.study import Study

pytestmark = [pytest.mark.bench, pytest.mark.service]

BLOCK = 50
BLOCKS = 8


def test_proposing_as_the_study_grows(tmp_path, capsys):
    request = load_request("dsv3", "gb300", home=tmp_path, trials=BLOCK * BLOCKS)
    request.folder.mkdir()
    study = Study(request)
    study.enter(Surroundings("bench", {"torch": "2.13", "megatron_core": "0.19.2", "transformer_engine": "2.14"}, {}))
    blocks_s = []
    for _ in range(BLOCKS):
        began_s = time.perf_counter()
        for _ in range(BLOCK):
            proposal = study.next()
            assert proposal is not None
            study.tell(
                TrialOutcome(
                    proposal.trial,
                    TrialState.COMPLETE,
                    proposal.settings,
                    tokens_per_s_per_gpu=1000.0 + proposal.trial % 97,
                    peak_memory_bytes=10**9 * (1 + proposal.trial % 7),
                )
            )
        blocks_s.append(time.perf_counter() - began_s)
    with capsys.disabled():
        print(f"\n{'trials':>7} {'ms a trial':>11} {'ratio':>6}")
        for index, block_s in enumerate(blocks_s):
            print(f"{(index + 1) * BLOCK:7} {1000 * block_s / BLOCK:11.1f} {block_s / blocks_s[0]:6.2f}")
    assert len(study.outcomes()) >= BLOCK * BLOCKS
