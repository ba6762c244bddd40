"""Comparing long runs takes time in proportion to their length, whatever they look like."""

import math
import random
import time
from collections.abc import Callable

import pytest

from autotune.measure.compare import compare_series
from autotune.measure.series import MOST_STEPS

pytestmark = pytest.mark.bench

MOST_SECONDS = 10.0
MOST_RATIO = 3.0
"""Of the time for twice as many steps; 2 and a little is in proportion, 4 would be quadratic."""

Steps = list[float]


def jumping(source: random.Random, count: int) -> Steps:
    level, times = 0.0, []
    for _ in range(count):
        if source.random() < 0.1:
            level = source.uniform(0.0, 1.0)
        times.append(math.exp(level + source.gauss(0.0, 0.0003)))
    return times


def wandering(source: random.Random, count: int) -> Steps:
    level, times = 0.0, []
    for _ in range(count):
        level = 0.995 * level + source.gauss(0.0, 0.001)
        times.append(math.exp(level))
    return times


KINDS: dict[str, Callable[[random.Random, int], Steps]] = {
    "scattered": lambda source, count: [math.exp(source.gauss(0.0, 0.01)) for _ in range(count)],
    "tailed": lambda source, count: [source.paretovariate(1.1) for _ in range(count)],
    "jumping": jumping,
    "wandering": wandering,
    "alternating": lambda _source, count: [1.0 + 0.1 * (place % 2) + 1e-4 * (place % 7) for place in range(count)],
    "sawtooth": lambda _source, count: [1.0 + place % 1000 / 1000 for place in range(count)],
    "getting faster": lambda source, count: [
        math.exp(3.0 - 5.0 * place / count) + source.gauss(0.0, 1e-4) for place in range(count)
    ],
    "equal": lambda _source, count: [1.0] * count,
}


@pytest.mark.parametrize("kind", KINDS)
def test_twice_as_many_steps_take_about_twice_as_long(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    def cost_s(count: int) -> float:
        a, b = (KINDS[kind](random.Random(seed), count) for seed in (1, 2))
        start_s = time.process_time()
        compare_series(a, b)
        return time.process_time() - start_s

    half_s, whole_s = cost_s(MOST_STEPS // 2), cost_s(MOST_STEPS)
    with capsys.disabled():
        print(f"\n{kind}: {MOST_STEPS // 2} steps {half_s:.2f} s, {MOST_STEPS} steps {whole_s:.2f} s")
    assert whole_s <= MOST_SECONDS
    assert whole_s <= MOST_RATIO * half_s
