"""Which of two candidates of one study is faster, or that the prediction cannot tell."""

import math
from dataclasses import dataclass
from typing import Literal

from autotune.predict.time import UNCERTAINTY, TimeEstimate

Verdict = Literal["a_faster", "b_faster", "unsure"]

SURE = 0.5
"""A difference counts from half its own standard error on: right about 7 times in 10 at the edge, more beyond."""

TIE = 0.015
"""Differences below this share of a step are never decided; noise of repeated runs reaches 1 % (Qwen3.5-35B, H100)."""


@dataclass(frozen=True)
class Comparison:
    """Two predictions side by side.

    Attributes:
        verdict: Who is faster.
        ratio: Predicted time of A over B.
        difference_s: Predicted time of A minus B.
        error_s: Standard error of the difference: only what differs between the two counts.
        because: Parts of the step from the one that decides most to the least, with A minus B in seconds.
    """

    verdict: Verdict
    ratio: float
    difference_s: float
    error_s: float
    because: tuple[tuple[str, float], ...]


def compare_times(first: TimeEstimate, second: TimeEstimate) -> Comparison:
    """Compares two candidates on the same stack: the stack's efficiency is common to both and cancels."""
    names = {*first.parts, *second.parts}
    changes = {name: first.parts.get(name, 0.0) - second.parts.get(name, 0.0) for name in names}
    difference = first.step_time_s - second.step_time_s
    errors = {name: change * UNCERTAINTY[name] for name, change in changes.items()}
    if first.dispatcher != second.dispatcher:
        # Two libraries: what is wrong about one of them says nothing about the other, and nothing cancels.
        errors["dispatch"] = math.hypot(first.dispatch_error_s, second.dispatch_error_s)
    error = math.hypot(*errors.values())
    smaller = min(first.step_time_s, second.step_time_s)
    if abs(difference) < max(TIE * smaller, SURE * error):
        verdict: Verdict = "unsure"
    else:
        verdict = "a_faster" if difference < 0 else "b_faster"
    because = tuple(sorted(changes.items(), key=lambda item: -abs(item[1])))
    return Comparison(verdict, first.step_time_s / second.step_time_s, difference, error, because)
