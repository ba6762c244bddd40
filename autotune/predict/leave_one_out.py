"""The efficiency that all rows but one show, for every row of a table in one pass."""

import math
from collections import defaultdict
from collections.abc import Iterable

from autotune.predict.efficiency import PRIOR_ROWS, Observation

Facts = tuple[str, ...]


class LeaveOneOut:
    """Sums by cluster, precision and stack, from which one row can be taken out: n rows cost n steps, not n squared."""

    def __init__(self, observations: Iterable[Observation]) -> None:
        """Args: all rows of one kind."""
        self._sums: dict[Facts, list[float]] = defaultdict(lambda: [0.0, 0.0])
        for item in observations:
            for facts in _levels(item.cluster, item.precision, item.stack):
                self._sums[facts][0] += 1
                self._sums[facts][1] += _log(item)

    def without(self, one: Observation) -> float | None:
        """What :func:`autotune.predict.efficiency.learn_efficiency` says of a row's stack without that row."""
        return self._learn(one.cluster, one.precision, one.stack, one)

    def of(self, cluster: str, precision: str, stack: str) -> float | None:
        """The same of a stack with all rows."""
        return self._learn(cluster, precision, stack, None)

    def _learn(self, cluster: str, precision: str, stack: str, without: Observation | None) -> float | None:
        estimate = 0.0
        for depth, (facts, prior) in enumerate(zip(_levels(cluster, precision, stack), PRIOR_ROWS, strict=True)):
            count, total = self._sums.get(facts, (0.0, 0.0))
            if without is not None:
                count, total = count - 1, total - _log(without)
            if count == 0:
                if depth == 0:
                    return None
                total = 0.0  # and not what rounding left of it
            estimate = (total + prior * estimate) / (count + prior)
        return math.exp(estimate)


def _levels(cluster: str, precision: str, stack: str) -> tuple[Facts, Facts, Facts]:
    return (cluster,), (cluster, precision), (cluster, precision, stack)


def _log(item: Observation) -> float:
    return math.log(item.predicted_s / item.measured_s)
