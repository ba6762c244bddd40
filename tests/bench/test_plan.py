"""How long a ranking of a large model's space takes."""

import time

import pytest

from autotune.constraint.check import is_legal
from autotune.constraint.rule import candidate
from autotune.predict.rank import rank
from autotune.request import load_request

pytestmark = pytest.mark.bench

MOST_S = 20.0


def test_plan_over_the_space_of_dsv3(capsys):
    request = load_request("dsv3", "gb300", gpus=256)
    start = time.process_time()
    ranking = rank(request, lambda settings: is_legal(candidate(request, settings, None)))
    seconds = time.process_time() - start
    with capsys.disabled():
        print(f"\n{ranking.looked_at} points, {ranking.legal} of them predicted, in {seconds:.1f} s of one core")
    assert len(ranking.best) == 10
    assert seconds <= MOST_S
