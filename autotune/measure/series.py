"""Step-time series from files: JSON lines with ``step`` and ``step_time_s``, such as a trial's ``steps.jsonl``."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

from autotune.errors import RequestError
from autotune.measure.steady import FEWEST_STEPS, SteadySteps

LONGEST_LINE_BYTES = 1 << 20
"""A line longer than this is no step record; reading stops there, whatever the size of the file."""

MOST_STEPS = 100_000
"""More steps are refused: comparing them would take minutes and say nothing that fewer do not."""

SHORTEST_STEP_S, LONGEST_STEP_S = 1e-9, 1e9
"""Nothing trains in less or in more; ratios of such times stay within the range of numbers."""

_LINE = '{"step": 1, "step_time_s": 0.5}'


@dataclass(frozen=True)
class StepSeries:
    """Step times of one run.

    Attributes:
        steps: Step numbers, ascending; gaps are legal.
        step_times_s: Their times in seconds, positive and finite.
    """

    steps: tuple[int, ...]
    step_times_s: tuple[float, ...]


def read_series(path: Path) -> StepSeries:
    """Read the step times of a run, one JSON object per line; other fields and blank lines are skipped over.

    Raises:
        RequestError: the file cannot be read; a line is no JSON object or too long; ``step`` is missing, no whole
            number or not above the one before; ``step_time_s`` is missing, or not from 1e-9 to 1e9; fewer than 4
            steps, or more than 100,000.
    """
    steps: list[int] = []
    times: list[float] = []
    try:
        with path.open("rb") as file:
            number = 0
            while line := file.readline(LONGEST_LINE_BYTES + 1):
                number += 1
                if not line.strip() and len(line) <= LONGEST_LINE_BYTES:
                    continue
                step, step_time_s = _record(line, f"{path}:{number}", steps[-1] if steps else None)
                steps.append(step)
                times.append(step_time_s)
                if len(steps) > MOST_STEPS:
                    raise RequestError(
                        f"{path}:{number}: more than {MOST_STEPS:,} steps", hint="keep a part, e.g. tail -n 10000"
                    )
    except OSError as error:
        raise RequestError(f"{path}: cannot be read: {error.strerror}") from error
    if len(steps) < FEWEST_STEPS:
        raise RequestError(
            f"{path}: {len(steps)} step{'s' * (len(steps) != 1)}, but at least {FEWEST_STEPS} are needed",
            hint="measure more steps; from 40 on, differences of a few percent show",
        )
    return StepSeries(tuple(steps), tuple(times))


def set_aside_in_words(steady: SteadySteps, steps: Sequence[int]) -> str:
    """Which steps do not count, and why: ``warm-up steps 1-3, pause step 17``; empty when all do.

    Args:
        steady: The choice.
        steps: The number of every step of the series.
    """
    return ", ".join(
        f"{part.reason.replace('_', '-')} {_ranges([steps[place] for place in part.places], part.places)}"
        for part in steady.set_aside
    )


def _ranges(steps: Sequence[int], places: Sequence[int], most: int = 6) -> str:
    """``steps 1-3 and 17``: neighbouring places as one range, the first few of many."""
    groups: list[tuple[int, int]] = []
    for index, step in enumerate(steps):
        if index and places[index] == places[index - 1] + 1:
            groups[-1] = (groups[-1][0], step)
        else:
            groups.append((step, step))
    shown = [str(first) if first == last else f"{first}-{last}" for first, last in groups]
    if len(shown) > most:
        shown[most:] = [f"{len(shown) - most} more"]
    listed = shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"
    return f"step{'s' * (len(steps) > 1)} {listed}"


def _record(line: bytes, place: str, last: int | None) -> tuple[int, float]:
    if len(line) > LONGEST_LINE_BYTES:
        raise RequestError(f"{place}: longer than {LONGEST_LINE_BYTES:,} bytes", hint=f"a line looks like {_LINE}")
    try:
        record: Any = json.loads(line.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise RequestError(f"{place}: not JSON", hint=f"a line looks like {_LINE}") from error
    if not isinstance(record, dict):
        raise RequestError(f"{place}: not a JSON object", hint=f"a line looks like {_LINE}")
    for name in ("step", "step_time_s"):
        if name not in record:
            raise RequestError(f"{place}: no {name}", hint=f"a line looks like {_LINE}")
    step, step_time_s = record["step"], record["step_time_s"]
    if not isinstance(step, int) or isinstance(step, bool):
        raise RequestError(f"{place}: step = {_shown(step)} must be a whole number")
    if last is not None and step <= last:
        raise RequestError(f"{place}: step = {_shown(step)} must be above the step before, {_shown(last)}")
    try:
        seconds = float(step_time_s) if isinstance(step_time_s, int | float) else float("nan")
    except OverflowError:
        seconds = float("inf")
    if isinstance(step_time_s, bool) or not (isfinite(seconds) and seconds > 0.0):
        raise RequestError(
            f"{place}: step_time_s = {_shown(step_time_s)} must be a positive and finite number of seconds"
        )
    if not SHORTEST_STEP_S <= seconds <= LONGEST_STEP_S:
        raise RequestError(
            f"{place}: step_time_s = {_shown(step_time_s)} must be from {SHORTEST_STEP_S:g} to {LONGEST_STEP_S:g} s"
        )
    return step, seconds


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:40]}..."
