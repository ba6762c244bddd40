"""Is a policy still right? The verdict from step times measured now, and nothing else.

Runs are what is independent: steps of one run share its nodes and its minute. So with repeated runs one number per
run counts, its median step time, and intervals are order statistics of those; they need no assumption on how times are
distributed. What no repetition on one day can show, the difference between days and allocations, is added as noise.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb, exp, log
from statistics import median
from typing import Literal

from autotune.measure.compare import compare_series
from autotune.measure.objective import median_interval
from autotune.measure.steady import FEWEST_STEPS

Verdict = Literal["OK", "GAIN", "DRIFT", "REGRESSION"]

SAME_ALLOCATION_NOISE = 0.001
"""Runs on the same nodes, one after another, differ by about so much (published comparison of dispatchers on GB200)."""

CROSS_ALLOCATION_NOISE = 0.04
"""Runs on other nodes or another day differ by about so much (same source)."""

_CONFIDENCE = 0.95


@dataclass(frozen=True)
class Timing:
    """A median step time with an interval.

    Attributes:
        median_s: Median step time.
        low_s: Lower end of the interval.
        high_s: Upper end.
        coverage: Probability that such an interval holds the median; 0 where nobody knows.
    """

    median_s: float
    low_s: float
    high_s: float
    coverage: float = 0.0


@dataclass(frozen=True)
class Ratio:
    """One step time over another.

    Attributes:
        value: Below 1 = the first is faster.
        low: Lower end of its interval.
        high: Upper end.
        coverage: Probability that such an interval holds the ratio.
        noise: What the interval does not hold, as a share: smaller differences are no finding.
    """

    value: float
    low: float
    high: float
    coverage: float
    noise: float

    def rules_out(self, slowdown: float) -> bool:
        """Whether even the worst case of the interval is a smaller slow-down than this; never without coverage."""
        return self.coverage > 0 and self.high <= 1 + slowdown

    @property
    def slower(self) -> bool:
        """Whether the first is slower beyond interval and noise."""
        return self.low > 1 + self.noise

    @property
    def faster(self) -> bool:
        """Whether the first is faster beyond interval and noise."""
        return self.high < 1 / (1 + self.noise)


@dataclass(frozen=True)
class Drift:
    """What became of a policy.

    Attributes:
        verdict: ``OK``; ``GAIN`` (faster than recorded); ``DRIFT`` (the runner-up is better now); ``REGRESSION``
            (slower than recorded).
        confidence: The smallest coverage among the intervals behind the verdict; 0 where it is not conclusive.
        reasons: Why, one sentence each.
        conclusive: Whether the verdict is a finding. An ``OK`` whose intervals leave room for a slow-down beyond the
            tolerance only says that no difference was found.
        not_ruled_out: Largest slow-down that the intervals behind an ``OK`` leave room for, as a ratio; None for the
            other verdicts.
    """

    verdict: Verdict
    confidence: float
    reasons: tuple[str, ...]
    conclusive: bool = True
    not_ruled_out: float | None = None


def timing_of_runs(run_medians_s: Sequence[float]) -> Timing:
    """The median over runs, between the narrowest pair of them that reaches 95 %, else between the extremes.

    Args:
        run_medians_s: Median step time of each run, at least one, in seconds.
    """
    ordered = sorted(run_medians_s)
    count = len(ordered)
    cut = 0
    while cut + 1 < (count + 1) // 2 and _sign_coverage(count, cut + 1) >= _CONFIDENCE:
        cut += 1
    return Timing(median(ordered), ordered[cut], ordered[count - 1 - cut], _sign_coverage(count, cut))


def timing_of_steps(steps_s: Sequence[float]) -> Timing:
    """The median of one run's steps with its distribution-free interval; their range where they are too few for one.

    Args:
        steps_s: Step times in seconds, at least one.
    """
    interval = median_interval(steps_s, _CONFIDENCE)
    if interval is None:
        return Timing(median(steps_s), min(steps_s), max(steps_s))
    return Timing(median(steps_s), interval.low_s, interval.high_s, interval.coverage)


def ratio_of_pairs(pairs_s: Sequence[tuple[float, float]], noise: float = SAME_ALLOCATION_NOISE) -> Ratio:
    """How two configurations compare whose runs took turns: from pairs of neighbours, which met the same machine.

    The value is the median of the geometric means of all pairs of ratios (Hodges and Lehmann), the interval inverts the
    signed-rank test, which is exact for few pairs: 6 of them reach 97 %, 4 reach 87 %. Where 95 % cannot be reached, it
    is the whole range with the coverage that this has.

    Args:
        pairs_s: Median step times of two runs that followed each other, in seconds, above 0; at least one pair.
        noise: What the interval does not hold, as a share.
    """
    logs = [log(first / second) for first, second in pairs_s]
    means = sorted((one + other) / 2 for index, one in enumerate(logs) for other in logs[index:])
    counts = _signed_rank_counts(len(logs))
    total = 2 ** len(logs)
    cut, missed = 0, 2 * counts[0]
    while 2 * (cut + 1) < len(means) and total - missed - 2 * counts[cut + 1] >= _CONFIDENCE * total:
        cut += 1
        missed += 2 * counts[cut]
    coverage = max(0.0, 1 - missed / total)
    return Ratio(exp(median(means)), exp(means[cut]), exp(means[len(means) - 1 - cut]), coverage, noise)


def ratio_of_timings(first: Timing, second: Timing, noise: float = CROSS_ALLOCATION_NOISE) -> Ratio:
    """How two timings that did not take turns compare: from the best case of one against the worst of the other."""
    return Ratio(
        first.median_s / second.median_s,
        first.low_s / second.high_s,
        first.high_s / second.low_s,
        min(first.coverage, second.coverage) if second.coverage else first.coverage,
        noise,
    )


def ratio_of_series(
    first_s: Sequence[float], second_s: Sequence[float], noise: float = CROSS_ALLOCATION_NOISE
) -> Ratio:
    """How one run each compare, from their steps; that runs differ is what the noise has to stand for.

    Args:
        first_s: Step times in seconds, in the order of the run, at least one.
        second_s: The same of the other.
        noise: What the interval does not hold, as a share.
    """
    if min(len(first_s), len(second_s)) < FEWEST_STEPS:
        return ratio_of_timings(timing_of_steps(first_s), timing_of_steps(second_s), noise)
    compared = compare_series(first_s, second_s)
    return Ratio(compared.ratio, *compared.ci95, coverage=_CONFIDENCE, noise=noise)


def spread(run_medians_s: Sequence[float]) -> float:
    """How far, as a share, one run lies from the median of all: what a record of a single run may be off by."""
    middle = median(run_medians_s)
    return max(max(run_medians_s) / middle, middle / min(run_medians_s)) - 1


def judge_drift(
    recorded: Ratio | None,
    runner_up: Ratio | None,
    *,
    was_slower: bool = False,
    tolerance: float = CROSS_ALLOCATION_NOISE,
) -> Drift:
    """The verdict.

    An overtaken policy is DRIFT whatever its own speed, since a search would find something better; then its own
    speed decides.

    Args:
        recorded: The policy now over its recorded step time; None = not comparable (another stack).
        runner_up: The policy over its runner-up, both now; None = there is none.
        was_slower: The runner-up was recorded as the faster one (a policy may be chosen for its memory), so that it
            has not overtaken anything.
        tolerance: Slow-down that does not matter, as a share: an ``OK`` is conclusive that rules out more than that.

    Raises:
        ValueError: there is nothing to compare with.
    """
    if recorded is None and runner_up is None:
        raise ValueError("a verdict needs a recorded step time or a runner-up")
    reasons: list[str] = []
    overtaken = runner_up is not None and runner_up.slower and not was_slower
    if runner_up is not None:
        reasons.append(f"step time over the runner-up's: {_said(runner_up)}")
    if recorded is not None:
        reasons.append(f"step time over the recorded one: {_said(recorded)}")
    verdict: Verdict = "OK"
    if overtaken:
        verdict = "DRIFT"
    elif recorded is not None and recorded.slower:
        verdict = "REGRESSION"
    elif recorded is not None and recorded.faster:
        verdict = "GAIN"
    if verdict != "OK":
        behind = runner_up if verdict == "DRIFT" else recorded
        assert behind is not None, "such a verdict comes from its ratio"
        return Drift(verdict, behind.coverage, tuple(reasons))
    # A runner-up that always was the faster one cannot overtake, so nothing has to be ruled out there.
    against = [ratio for ratio in (recorded, None if was_slower else runner_up) if ratio is not None]
    conclusive = bool(against) and all(ratio.rules_out(tolerance) for ratio in against)
    known = [ratio for ratio in (recorded, runner_up) if ratio is not None]
    confidence = min(ratio.coverage for ratio in known) if conclusive else 0.0
    worst = max((ratio.high for ratio in against), default=None)
    return Drift(verdict, confidence, tuple(reasons), conclusive, worst)


def _said(ratio: Ratio) -> str:
    coverage = f"with {ratio.coverage:.1%} coverage" if ratio.coverage else "from too few runs for a coverage"
    interval = f"{ratio.low:.3f} to {ratio.high:.3f} {coverage}"
    return f"{ratio.value:.3f} ({interval}; a finding is all of it more than {ratio.noise:.1%} from 1)"


def _sign_coverage(count: int, cut: int) -> float:
    """Probability that the median lies between the (cut+1)-th fastest and the (cut+1)-th slowest of ``count``."""
    missed: int = sum(comb(count, index) for index in range(cut + 1))
    return 1.0 - float(2 * missed) / float(2**count)


def _signed_rank_counts(pairs: int) -> list[int]:
    """How many of the patterns of signs give each sum of the ranks that are positive, for sums from 0."""
    counts = [1]
    for rank in range(1, pairs + 1):
        without, with_it = [*counts, *[0] * rank], [*[0] * rank, *counts]
        counts = [one + other for one, other in zip(without, with_it, strict=True)]
    return counts
