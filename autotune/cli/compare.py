"""``autotune compare``."""

import json
from pathlib import Path
from statistics import median
from typing import Any

import click

from autotune.cli import options
from autotune.errors import RequestError
from autotune.measure.compare import Comparison, compare_series
from autotune.measure.series import StepSeries, read_series, set_aside_in_words
from autotune.measure.steady import SteadySteps

MOST_TIE_PERCENT = 50.0


@click.command("compare")
@click.argument("a", type=click.Path(path_type=Path), metavar="A.jsonl")
@click.argument("b", type=click.Path(path_type=Path), metavar="B.jsonl")
@click.option(
    "--tie-within", "tie_percent", type=float, default=1.0, show_default=True, metavar="PERCENT",
    help="A smaller difference is a tie, however sure it is.",
)  # fmt: skip
@options.as_json
def command(a: Path, b: Path, tie_percent: float, as_json: bool) -> int:
    """Which of two runs has the faster steps, or that they do not say: JSON lines with step and step_time_s.

    Warm-up, pauses and disturbed stretches are set aside and counted. The exit status is 0 whatever the verdict. Two
    runs on different nodes differ by up to 4 % with the same settings: --tie-within 4 is fair to those.
    """
    if not 0.0 <= tie_percent <= MOST_TIE_PERCENT:
        raise RequestError(f"--tie-within {tie_percent:g} must be from 0 to {MOST_TIE_PERCENT:g} percent")
    series = read_series(a), read_series(b)
    found = compare_series(series[0].step_times_s, series[1].step_times_s, tie_within=tie_percent / 100.0)
    if as_json:
        print(json.dumps(_document(found)))
    else:
        print(_sentence(found, tie_percent))
        for name, path, one, steady in zip("AB", (a, b), series, (found.a, found.b), strict=True):
            print(f"{name}: {_used(one, steady)}   {path}")
    return 0


def _document(found: Comparison) -> dict[str, Any]:
    return {
        "verdict": found.verdict,
        "ratio": found.ratio,
        "ci95": list(found.ci95),
        "steps_used": list(found.steps_used),
        "contaminated": list(found.contaminated),
        "reason": found.reason,
        "unsteady": [found.a.unsteady, found.b.unsteady],
        "set_aside": [{part.reason: len(part.places) for part in steady.set_aside} for steady in (found.a, found.b)],
    }


def _sentence(found: Comparison, tie_percent: float) -> str:
    low, high = found.ci95
    interval = f"time of A / time of B = {found.ratio:.4f}, 95 % interval {low:.4f} to {high:.4f}"
    if found.verdict == "a_faster":
        return f"A is faster: its steps take {1.0 - found.ratio:.1%} less time ({interval})"
    if found.verdict == "b_faster":
        return f"B is faster: its steps take {1.0 - 1.0 / found.ratio:.1%} less time ({interval})"
    if found.reason:
        return f"tie: {found.reason} ({interval})"
    if not low <= 1.0 <= high:
        return f"tie: the difference is below {tie_percent:g} % ({interval})"
    margin = 1.0 - tie_percent / 100.0
    if low < margin or high > 1.0 / margin:
        return f"tie: these steps do not tell A and B apart, more might ({interval})"
    return f"tie: A and B take the same time within {tie_percent:g} % ({interval})"


def _used(series: StepSeries, steady: SteadySteps) -> str:
    text = (
        f"median {median(steady.step_times_s):.6g} s of {len(steady.places)} steps; "
        f"{len(series.steps) - len(steady.places)} set aside"
    )
    said = set_aside_in_words(steady, series.steps)
    return f"{text}: {said}" if said else text
