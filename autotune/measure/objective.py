"""From step records to the two numbers that a study ranks: throughput up, peak memory down.

The step time is always the median of the steady steps: of those after the contract's warm-up, the ones that are no
further warm-up, no pause and not disturbed. A mean is never the step time: one disturbed step would move it, and step
times are skewed to the slow side.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import comb
from statistics import median

from autotune.measure.run import RankExit
from autotune.measure.steady import FEWEST_STEPS, SteadySteps, steady_steps
from autotune_trials.events import StepRecord
from autotune_trials.spec import Contract

MIN_MEASURED_STEPS = 2
"""Fewer steps after warm-up are no measurement; peak memory also needs two, to hold the optimizer state."""


@dataclass(frozen=True)
class MedianInterval:
    """How well some steps pin down the median step time.

    Attributes:
        low_s: Lower end, itself one of the measured step times.
        high_s: Upper end, likewise.
        coverage: Probability that such an interval holds the median, if the steps were independent.
    """

    low_s: float
    high_s: float
    coverage: float


def measured_steps(steps: Iterable[StepRecord], contract: Contract) -> tuple[StepRecord, ...]:
    """The steps after warm-up; steps count from 1, so step ``warmup_steps + 1`` is the first of them."""
    return tuple(record for record in steps if record.step > contract.warmup_steps)


def counted_steps(measured: Sequence[StepRecord]) -> SteadySteps:
    """Which of the steps after warm-up a trial's step time is the median of; all, where they are too few to tell.

    Every number of a trial and every comparison rests on this choice. A command's log may have lines that tell the mean
    of several steps; then a line is what counts or does not.
    """
    times = [record.step_time_s for record in measured]
    if len(times) < FEWEST_STEPS:
        return SteadySteps(tuple(times), tuple(range(len(times))), ())
    return steady_steps(times)


def median_step_time_s(steps: Sequence[StepRecord]) -> float:
    """Median step time in seconds.

    Raises:
        ValueError: no steps.
    """
    if not steps:
        raise ValueError("the median step time needs at least one step, but got none")
    return float(median(record.step_time_s for record in steps))


def median_interval(step_times_s: Sequence[float], confidence: float = 0.95) -> MedianInterval | None:
    """Narrowest symmetric pair of order statistics that holds the median with at least this confidence.

    Needs no assumption on the distribution: of ``n`` independent steps, the k-th fastest and the k-th slowest
    enclose the median unless fewer than k fall on one side, which is a fair coin's binomial probability.

    Returns:
        The interval in seconds, or None when even the fastest and the slowest step do not reach the
        confidence (fewer than 6 steps at 95 %).
    """
    ordered = sorted(step_times_s)
    count = len(ordered)
    best: MedianInterval | None = None
    missed = 0.0
    for k in range(1, count // 2 + 1):
        missed += comb(count, k - 1) / 2**count
        coverage = 1.0 - 2.0 * missed
        if coverage < confidence:
            break
        best = MedianInterval(ordered[k - 1], ordered[count - k], coverage)
    return best


def tokens_per_s_per_gpu(tokens: int, step_time_s: float, world_size: int) -> float:
    """Tokens of the global batch per second and rank; on a CPU a rank counts as a GPU.

    Raises:
        ValueError: a step time that is not positive, or no rank.
    """
    if not step_time_s > 0 or world_size < 1:
        raise ValueError(f"step_time_s={step_time_s!r} must be > 0 and world_size={world_size} at least 1")
    return tokens / step_time_s / world_size


def peak_memory_bytes(ranks: Iterable[RankExit], *, representatives: bool = False) -> int | None:
    """Largest peak memory of all ranks in bytes; None when one is unknown, as it might be the largest.

    Args:
        ranks: All ranks of the gang.
        representatives: Whether some ranks speak for the others, as in a command's log, where the first rank of each
            data-parallel group tells its memory; then one known peak is enough.
    """
    peaks = [rank.peak_memory_bytes for rank in ranks]
    known = [peak for peak in peaks if peak is not None]
    return max(known) if known and (representatives or len(known) == len(peaks)) else None
