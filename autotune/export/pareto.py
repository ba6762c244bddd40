"""The Pareto front of a study, throughput up and peak memory down, and the choice of one trial from it."""

from collections.abc import Iterable, Sequence
from math import hypot, log
from typing import Literal, get_args

from autotune.errors import RequestError, RunError
from autotune.measure.outcome import TrialOutcome, TrialState
from autotune_policies.settings import closest

Select = Literal["throughput", "memory", "balanced"]


def front(outcomes: Iterable[TrialOutcome]) -> tuple[TrialOutcome, ...]:
    """The COMPLETE trials that no other one dominates, fastest first.

    A trial dominates another when it is at least as fast and at least as lean, and better in one of the two.
    Trials with equal numbers do not dominate each other: all are kept, in order of trial number. The result
    depends on the set of outcomes only, not on their order.
    """
    front: list[TrialOutcome] = []
    for outcome in sorted(filter(_ranked, outcomes), key=_fastest_first):
        if not front or _memory(outcome) < _memory(front[-1]) or _numbers(outcome) == _numbers(front[-1]):
            front.append(outcome)
    return tuple(front)


def winner(front: Sequence[TrialOutcome], select: str = "throughput") -> TrialOutcome:
    """One trial of the front.

    ``throughput`` takes the fastest, ``memory`` the leanest. ``balanced`` takes the one closest to the ideal
    point (the best throughput and the least memory of the front, rarely reached by one trial): both numbers
    go through the logarithm, so that ratios count, and are divided by the front's own range, so that neither
    unit weighs more; the distance is Euclidean. Where two are equally good, the faster one wins, then the
    earlier trial; hence on a front of two trials ``balanced`` is the faster.

    Raises:
        RequestError: an unknown selection.
        RunError: an empty front: no trial completed, so there is nothing to choose from.
    """
    if select not in get_args(Select):
        raise RequestError(f"select={select!r} is unknown", hint=closest(select, get_args(Select)))
    if not front:
        raise RunError("no trial completed, so there is no winner", hint="see why each trial ended")
    if select == "throughput":
        return min(front, key=_fastest_first)
    if select == "memory":
        return min(front, key=lambda outcome: (_memory(outcome), *_fastest_first(outcome)))
    speeds = [log(_throughput(outcome)) for outcome in front]
    memories = [_log_memory(outcome) for outcome in front]

    def distance(outcome: TrialOutcome) -> float:
        slower = _share(max(speeds) - log(_throughput(outcome)), max(speeds) - min(speeds))
        larger = _share(_log_memory(outcome) - min(memories), max(memories) - min(memories))
        return hypot(slower, larger)

    return min(front, key=lambda outcome: (distance(outcome), *_fastest_first(outcome)))


def _ranked(outcome: TrialOutcome) -> bool:
    return (
        outcome.state is TrialState.COMPLETE
        and outcome.tokens_per_s_per_gpu is not None
        and outcome.peak_memory_bytes is not None
    )


def _throughput(outcome: TrialOutcome) -> float:
    assert outcome.tokens_per_s_per_gpu is not None
    return outcome.tokens_per_s_per_gpu


def _memory(outcome: TrialOutcome) -> int:
    assert outcome.peak_memory_bytes is not None
    return outcome.peak_memory_bytes


def _log_memory(outcome: TrialOutcome) -> float:
    return log(_memory(outcome))


def _numbers(outcome: TrialOutcome) -> tuple[float, int]:
    return _throughput(outcome), _memory(outcome)


def _fastest_first(outcome: TrialOutcome) -> tuple[float, int, int]:
    return -_throughput(outcome), _memory(outcome), outcome.trial


def _share(part: float, whole: float) -> float:
    return part / whole if whole > 0 else 0.0
