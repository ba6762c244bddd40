"""Recorded and invented series of step times."""

from pathlib import Path

import pytest

TRACES = Path(__file__).parents[2] / "data" / "step_time_traces.tsv"


@pytest.fixture(scope="session")
def traces() -> dict[str, list[float]]:
    """Seconds of every fifth iteration of real multi-node runs, by case."""
    lines = [line for line in TRACES.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    rows = [line.split("\t") for line in lines[1:]]
    return {case: [float(text) for text in times.split(",")] for case, _, times in rows}
