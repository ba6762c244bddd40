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
        model: Architecture, where it is known.
    """

    cluster: str
    precision: str
    stack: str
    measured_s: float
    predicted_s: float
    model: str = ""

    def __post_init__(self) -> None:
        if not (self.measured_s > 0 and self.predicted_s > 0):
            raise ValueError(f"step times must be positive, but got {self.measured_s} and {self.predicted_s}")


PRIOR_ROWS = (3, 2, 2)
"""How many rows the wider view counts for: 1 beside a cluster's rows, the cluster's beside those of its precision, and
these beside the stack's own. Of eleven such triples the one that did best on Megatron-Bridge's summaries with a whole
model left out, without losing more than 0.2 points with single rows left out."""

SEEN_ERROR, UNSEEN_ERROR = 0.03, 0.13
"""Relative standard error of a learned efficiency: for a model that was measured on the stack, and for another one.

Single models lie 0.1 to 0.2 away from what the others of a stack show (Megatron-Bridge's summaries).
"""


def learn_efficiency(observations: Iterable[Observation], cluster: str, precision: str, stack: str) -> float | None:
    """Predicted over measured speed of one stack, to be given to ``predict_time``; null when nothing is known of it.

    Geometric mean of the stack's own rows, drawn towards what the same cluster and precision show under other stacks,
    that towards the cluster, and that towards 1: few rows do not swing it, many rows own it.
    """
    rows = [(item, math.log(item.predicted_s / item.measured_s)) for item in observations if item.cluster == cluster]
    if not rows:
        return None
    estimate = 0.0
    levels = (
        [ratio for _, ratio in rows],
        [ratio for item, ratio in rows if item.precision == precision],
        [ratio for item, ratio in rows if item.precision == precision and item.stack == stack],
    )
    for level, prior in zip(levels, PRIOR_ROWS, strict=True):
        estimate = (sum(level) + prior * estimate) / (len(level) + prior)
    return math.exp(estimate)


def efficiency_error(
    observations: Iterable[Observation], cluster: str, precision: str, stack: str, model: str
) -> float:
    """Relative standard error of what :func:`learn_efficiency` says about one model."""
    facts = (cluster, precision, stack, model)
    seen = any((item.cluster, item.precision, item.stack, item.model) == facts for item in observations)
    return SEEN_ERROR if seen else UNSEEN_ERROR
