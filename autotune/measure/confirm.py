"""Finalists measured again: in which order, and which of them are as fast as the fastest."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp, fsum, log, sqrt
from statistics import fmean, median
from typing import NamedTuple

from autotune.measure.compare import TIE_WITHIN
from autotune.measure.dependence import effective_steps, robust_sigma, student_quantile
from autotune.measure.drift import CROSS_ALLOCATION_NOISE
from autotune.measure.steady import steady_steps

SAME_NODES_SIGMA = 0.003
"""Standard deviation between runs of one configuration on the same nodes that is expected at least, as a share.

Repeats on one allocation have differed by 0.07 to 0.39 % (Megatron-Bridge, PR #5098 and a GLM-5.2 proxy's card)."""

_ROUNDS_TO_COMPARE = 3
"""Rounds from which on it is told apart what a round did to all; of two, too little would be left to know scatter."""

UNREPEATED_SIGMA, _UNREPEATED_DEGREES = 0.01, 4.0
"""The same where nothing was repeated that would show it, and the degrees of freedom that such an assumption is worth.

Three times the usual: so a single run of each of two finalists tells 4 % apart, the most that published runs of one
configuration have differed by."""

_MEANS_SIGMAS = 2.0
"""Standard deviations from which on means object; a pause in one run of one finalist moves them by one."""

_BY_CHANCE = 0.04
"""Sets of equal finalists of which one may be told from another; medians of runs are not quite normal, so less than 5 %
is aimed at."""


@dataclass(frozen=True)
class Objection:
    """Why a finalist is not beaten by another one, though the medians of its runs are slower beyond chance.

    Attributes:
        faster: The one that the medians call faster; ``A`` in the reason.
        slower: The other one; ``B`` in the reason.
        reason: How the means of the runs say the opposite.
    """

    faster: str
    slower: str
    reason: str


@dataclass(frozen=True)
class TieSet:
    """What repeated runs say about the finalists.

    Attributes:
        members: Finalists that may be the fastest, fastest first by their medians; a single one is the winner.
        chosen: The member that needs the least memory, of those whose mean step is not longer than the lowest one by
            over 4 % and beyond chance; of equals the one with the lower mean. Memory that is not known counts as most.
        ratio: Each finalist's time over that of the first member.
        ci95: Interval of that ratio; all of them hold together at 95 % or more.
        between_runs: Standard deviation between runs of one finalist that the intervals rest on, as a share.
        degrees: Degrees of freedom with which it is known.
        mean_step_time_s: Geometric mean over a finalist's runs of their mean step after warm-up, pauses included:
            what training would take. In seconds, or the unit of the steps.
        objections: Why members are no losers though their medians are slower beyond chance.
    """

    members: tuple[str, ...]
    chosen: str
    ratio: Mapping[str, float]
    ci95: Mapping[str, tuple[float, float]]
    between_runs: float
    degrees: float
    mean_step_time_s: Mapping[str, float]
    objections: tuple[Objection, ...] = ()


def confirmation_schedule(candidates: Sequence[str], repeats: int) -> list[str]:
    """The order in which finalists are measured again: A B C, C B A, A B C, ...

    Each round has every finalist once, and every second round is reversed, so that a machine that slowly gets faster or
    slower favours nobody.

    Raises:
        ValueError: a finalist named twice, or fewer than one repeat.
    """
    if len(set(candidates)) < len(candidates):
        raise ValueError(f"candidates {list(candidates)!r} must differ")
    if repeats < 1:
        raise ValueError(f"repeats={repeats} must be at least 1")
    return [name for turn in range(repeats) for name in (candidates if turn % 2 == 0 else reversed(candidates))]


def tie_set(
    runs: Mapping[str, Sequence[Sequence[float]]],
    peak_memory_bytes: Mapping[str, int | None],
    *,
    tie_within: float = TIE_WITHIN,
    between_runs: float = SAME_NODES_SIGMA,
) -> TieSet:
    """The winner of repeated runs, or the set of those that cannot be told from it, and which of them to take.

    Runs, not steps, are what is repeated: a finalist's level is the mean of its runs' log medians, and its uncertainty
    is the scatter between runs, pooled over the finalists and never less than the expected one. What happens within a
    run is not asked again: it is in that scatter, unless it is the same in every run, as the steps of a router that
    learns are, and then it is no uncertainty. Only where nothing was repeated do the steps bound it. Runs of one round
    are measured close to each other in time; when every finalist has one in each of at least 3 rounds, what a round did
    to all of them is taken out first. What is expected never narrows an interval: some machines scatter ten times as
    much, and a handful of runs would not show it. The intervals allow for as many comparisons as there are pairs of
    finalists (Bonferroni).

    A finalist is out when another one beats it: by the interval, by more than the margin, and without an objection.
    The means of the runs object where they say the opposite beyond the margin and their own scatter. So a median that
    is blind to what a third of the steps do, or to a pause every tenth step, beats nobody.

    Args:
        runs: Per finalist the step times of each of its runs in seconds, in the order of the rounds.
        peak_memory_bytes: Per finalist; None where it is not known.
        tie_within: A finalist this close to another one is not beaten by it however sure the difference is.
        between_runs: Standard deviation between runs to expect at least; 0.02 when each run has nodes of its own.

    Raises:
        ValueError: no finalist, one without a run, a run of fewer than 4 steps, or a step time that is not positive
            and finite.
    """
    if not runs or not all(runs.values()):
        raise ValueError(f"every finalist needs a run, but got { ({name: len(of) for name, of in runs.items()})!r}")
    summaries = {name: [_summary(steps) for steps in of] for name, of in runs.items()}
    within = median(run.variance for of in summaries.values() for run in of)
    medians = _levels({name: [run.log_median for run in of] for name, of in summaries.items()}, between_runs**2, within)
    means = _levels({name: [run.log_mean for run in of] for name, of in summaries.items()}, between_runs**2, within)
    order = sorted(runs, key=lambda name: (medians.level[name], name))
    pairs = max(1, len(order) * (len(order) - 1) // 2)
    quantile = student_quantile(1.0 - _BY_CHANCE / 2.0 / pairs, medians.degrees)

    members: list[str] = []
    objections: list[Objection] = []
    for place, name in enumerate(order):
        objected: list[Objection] = []
        for faster in order[:place]:
            apart, deviation = medians.apart(name, faster)
            if apart > quantile * deviation and exp(-apart) < 1.0 - tie_within:
                reason = _by_means(*means.apart(faster, name))
                if not reason:
                    break
                objected.append(Objection(faster, name, reason))
        else:
            members.append(name)
            objections += objected

    mean = {name: exp(level) for name, level in means.level.items()}
    lowest = min(members, key=mean.__getitem__)
    near = [name for name in members if not _beyond(*means.apart(name, lowest), CROSS_ALLOCATION_NOISE)]
    fastest = order[0]
    behind = {name: medians.apart(name, fastest) for name in order[1:]}
    return TieSet(
        members=tuple(members),
        chosen=min(near, key=lambda name: (_lean(peak_memory_bytes.get(name)), mean[name], near.index(name))),
        ratio={fastest: 1.0, **{name: exp(apart) for name, (apart, _) in behind.items()}},
        ci95={fastest: (1.0, 1.0), **{name: _interval(*of, quantile) for name, of in behind.items()}},
        between_runs=sqrt(medians.variance),
        degrees=medians.degrees,
        mean_step_time_s=mean,
        objections=tuple(objections),
    )


class _Run(NamedTuple):
    """One run: logarithm of its median steady step, the variance that the steps leave it, logarithm of its mean."""

    log_median: float
    variance: float
    log_mean: float


@dataclass(frozen=True)
class _Levels:
    """Finalists by one number per run: logarithmic levels, variance between runs, and its degrees of freedom."""

    level: Mapping[str, float]
    runs: Mapping[str, int]
    variance: float
    degrees: float

    def apart(self, one: str, other: str) -> tuple[float, float]:
        """Log ratio of the first to the second, and its standard deviation."""
        deviation = sqrt(self.variance * (1.0 / self.runs[one] + 1.0 / self.runs[other]))
        return self.level[one] - self.level[other], deviation


def _levels(values: Mapping[str, Sequence[float]], expected: float, within: float) -> _Levels:
    """The levels of finalists from a logarithm per run.

    Args:
        values: Per finalist, in the order of the rounds.
        expected: Variance between runs to expect at least.
        within: Variance that the steps leave a run; it counts where there are no repeats.
    """
    scatter, degrees = _between(values)
    if not degrees:
        expected, degrees = max(expected, UNREPEATED_SIGMA**2, within), _UNREPEATED_DEGREES
    level = {name: fmean(of) for name, of in values.items()}
    return _Levels(level, {name: len(of) for name, of in values.items()}, max(scatter, expected), degrees)


def _summary(step_times_s: Sequence[float]) -> _Run:
    steady = steady_steps(step_times_s)
    values = [log(value) for value in steady.step_times_s]
    warm_up = sum(len(part.places) for part in steady.set_aside if part.reason == "warm_up")
    return _Run(
        log_median=median(values),
        variance=1.57 * robust_sigma(values) ** 2 / effective_steps(values),
        log_mean=log(fmean(step_times_s[warm_up:])),
    )


def _interval(apart: float, deviation: float, quantile: float) -> tuple[float, float]:
    return exp(apart - quantile * deviation), exp(apart + quantile * deviation)


def _beyond(apart: float, deviation: float, margin: float) -> bool:
    """Whether a mean is longer than another by more than the margin and than chance: a pause in one run is chance."""
    return apart > max(log(1.0 + margin), _MEANS_SIGMAS * deviation)


def _by_means(apart: float, deviation: float) -> str:
    """How the means of the runs of A and B say the opposite of their medians, in words; empty where they do not."""
    if not _beyond(apart, deviation, TIE_WITHIN):
        return ""
    return f"by the medians of the runs A is faster, by their means B is, where A takes {exp(apart) - 1.0:.1%} longer"


def _lean(peak_bytes: int | None) -> tuple[bool, int]:
    return peak_bytes is None, peak_bytes or 0


def _between(medians: Mapping[str, Sequence[float]]) -> tuple[float, float]:
    """Variance between runs of one finalist, pooled, and its degrees of freedom; (0.0, 0.0) without repeats."""
    rows = [list(values) for values in medians.values()]
    repeats = {len(values) for values in rows}
    in_rounds = len(repeats) == 1 and len(rows) > 1 and max(repeats) >= _ROUNDS_TO_COMPARE
    if in_rounds:
        rounds = [fmean(column) for column in zip(*rows, strict=True)]
        rows = [[value - of for value, of in zip(row, rounds, strict=True)] for row in rows]
    degrees = sum(len(row) - 1 for row in rows) - (max(repeats) - 1 if in_rounds else 0)
    if degrees <= 0:
        return 0.0, 0.0
    squares = fsum((value - fmean(row)) ** 2 for row in rows for value in row)
    return squares / degrees, float(degrees)
