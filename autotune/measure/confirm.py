"""Finalists measured again: in which order, and which of them are as fast as the fastest."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp, fsum, log
from statistics import median

from autotune.measure.compare import TIE_WITHIN
from autotune.measure.dependence import effective_steps, robust_sigma, student_quantile
from autotune.measure.steady import steady_steps

SAME_NODES_SIGMA = 0.003
"""Standard deviation between runs of one configuration on the same nodes, before any was repeated, as a share.

Repeats on one allocation have differed by 0.07 to 0.39 % (Megatron-Bridge, PR #5098 and a GLM-5.2 proxy's card)."""

PRIOR_DEGREES = 4.0
"""Degrees of freedom that ``SAME_NODES_SIGMA`` is worth beside what the repeats themselves show."""

PRIOR_REFUTED = 4.0
"""Repeats whose variance is this many times the expected one speak alone."""


@dataclass(frozen=True)
class TieSet:
    """What repeated runs say about the finalists.

    Attributes:
        members: Finalists that may be the fastest, fastest first; a single one is the winner.
        chosen: The member that needs the least memory; the faster of equals. Not known counts as most.
        ratio: Each finalist's time over the fastest one's.
        ci95: Interval of that ratio; all of them hold together at 95 %.
        between_runs: Standard deviation between runs of one finalist that the intervals rest on, as a share.
    """

    members: tuple[str, ...]
    chosen: str
    ratio: Mapping[str, float]
    ci95: Mapping[str, tuple[float, float]]
    between_runs: float


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
    """The winner of repeated runs, or the set of those that cannot be told from it, and the leanest of them.

    Runs, not steps, are what is repeated: a finalist's level is the mean of its runs' log medians, and its uncertainty
    is the scatter between runs, never less than the steps within a run allow. Runs of one round are measured close to
    each other in time; when every finalist has one per round, what a round did to all of them is taken out first. The
    scatter is pooled over the finalists and with ``between_runs``, which counts for ``PRIOR_DEGREES`` repeats
    (moderated variance: Smyth 2004, Statistical Applications in Genetics and Molecular Biology 3(1)), unless they
    refute it. The intervals allow for as many comparisons as there are other finalists (Bonferroni).

    Args:
        runs: Per finalist the step times of each of its runs in seconds, in the order of the rounds.
        peak_memory_bytes: Per finalist; None where it is not known.
        tie_within: A finalist this close to the fastest belongs to the set however sure the difference is.
        between_runs: Expected standard deviation between runs; 0.02 when each run has nodes of its own.

    Raises:
        ValueError: no finalist, one without a run, a run of fewer than 4 steps, or a step time that is not positive
            and finite.
    """
    if not runs or not all(runs.values()):
        raise ValueError(f"every finalist needs a run, but got { ({name: len(of) for name, of in runs.items()})!r}")
    medians: dict[str, list[float]] = {}
    within: list[float] = []
    for name, of in runs.items():
        summaries = [_log_median(steps) for steps in of]
        medians[name] = [level for level, _ in summaries]
        within += [variance for _, variance in summaries]
    scatter, degrees = _between(medians)
    prior = between_runs**2 + median(within)
    worth = PRIOR_DEGREES if scatter <= PRIOR_REFUTED * prior else 0.0
    variance = max((worth * prior + degrees * scatter) / (worth + degrees), median(within))

    level = {name: fsum(values) / len(values) for name, values in medians.items()}
    order = sorted(level, key=lambda name: (level[name], name))
    fastest = order[0]
    quantile = student_quantile(1.0 - 0.025 / max(1, len(order) - 1), worth + degrees)
    ratio, ci95, members = {fastest: 1.0}, {fastest: (1.0, 1.0)}, [fastest]
    for name in order[1:]:
        apart = level[name] - level[fastest]
        half = quantile * (variance * (1.0 / len(medians[name]) + 1.0 / len(medians[fastest]))) ** 0.5
        ratio[name], ci95[name] = exp(apart), (exp(apart - half), exp(apart + half))
        if apart <= half or exp(-apart) >= 1.0 - tie_within:
            members.append(name)
    return TieSet(
        members=tuple(members),
        chosen=min(members, key=lambda name: _lean(peak_memory_bytes.get(name), members.index(name))),
        ratio=ratio,
        ci95=ci95,
        between_runs=variance**0.5,
    )


def _lean(peak_bytes: int | None, rank: int) -> tuple[bool, int, int]:
    return peak_bytes is None, peak_bytes or 0, rank


def _log_median(step_times_s: Sequence[float]) -> tuple[float, float]:
    """Logarithm of the median steady step, and the variance that the steps themselves leave it."""
    values = [log(value) for value in steady_steps(step_times_s).step_times_s]
    return median(values), 1.57 * robust_sigma(values) ** 2 / effective_steps(values)


def _between(medians: Mapping[str, Sequence[float]]) -> tuple[float, float]:
    """Variance between runs of one finalist, pooled, and its degrees of freedom; (0.0, 0.0) without repeats."""
    rows = [list(values) for values in medians.values()]
    repeats = {len(values) for values in rows}
    balanced = len(repeats) == 1 and len(rows) > 1 and max(repeats) > 1
    if balanced:
        rounds = [fsum(column) / len(rows) for column in zip(*rows, strict=True)]
        rows = [[value - of for value, of in zip(row, rounds, strict=True)] for row in rows]
    degrees = sum(len(row) - 1 for row in rows) - (max(repeats) - 1 if balanced else 0)
    if degrees <= 0:
        return 0.0, 0.0
    squares = fsum((value - fsum(row) / len(row)) ** 2 for row in rows for value in row)
    return squares / degrees, float(degrees)
