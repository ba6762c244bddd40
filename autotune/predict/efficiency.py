"""What measurements say about a stack: one factor per (cluster, precision, stack) between prediction and reality."""

import math
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Observation:
    """One measured step and its prediction with efficiency 1.

    Attributes:
        cluster: Cluster name.
        precision: The contract's.
        stack: Fingerprint or release.
        measured_s: Step time.
        predicted_s: Step time predicted without a factor.
    """

    cluster: str
    precision: str
    stack: str
    measured_s: float
    predicted_s: float

    def __post_init__(self) -> None:
        if not (self.measured_s > 0 and self.predicted_s > 0):
            raise ValueError(f"step times must be positive, but got {self.measured_s} and {self.predicted_s}")


def learn_efficiency(observations: Iterable[Observation], cluster: str, precision: str, stack: str) -> float | None:
    """Predicted over measured speed of one stack, to be given to ``predict_time``; null when nothing is known of it.

    Geometric mean of the stack's own rows, drawn with the weight of one row towards what the same cluster and
    precision show under other stacks, and that towards the cluster: few rows do not swing it, many rows own it.
    """
    rows = [(item, math.log(item.predicted_s / item.measured_s)) for item in observations if item.cluster == cluster]
    estimate: float | None = None
    for level in (
        [ratio for _, ratio in rows],
        [ratio for item, ratio in rows if item.precision == precision],
        [ratio for item, ratio in rows if item.precision == precision and item.stack == stack],
    ):
        if level and estimate is None:
            estimate = sum(level) / len(level)
        elif level:
            assert estimate is not None
            estimate = (sum(level) + estimate) / (len(level) + 1)
    return None if estimate is None else math.exp(estimate)
