"""Recorded and invented series of step times."""

from pathlib import Path

import pytest

LONG_RUNS = {
    "DeepSeek-V3 proxy, H100": (
        "mixtral/deepseekv3_proxy_flex_tp1pp4emp16etp1cp1_release_sm/golden_values_dev_dgx_h100.json"
    ),
    "DeepSeek-V3 proxy, GB200": (
        "mixtral/deepseekv3_proxy_flex_tp2pp2emp16etp1cp1_gb_200_release_sm/golden_values_dev_dgx_gb200.json"
    ),
    "Mixtral 8x7B, H100": "mixtral/mixtral_8x7b_alltoall_tp2pp4ep4_release/golden_values_dev_dgx_h100.json",
}
"""Recorded cases by the names that docs/compare.md has for them."""

TRACES = Path(__file__).parents[2] / "data" / "step_time_traces.tsv"


@pytest.fixture(scope="session")
def traces() -> dict[str, list[float]]:
    """Seconds of every fifth iteration of real multi-node runs, by case."""
    lines = [line for line in TRACES.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    rows = [line.split("\t") for line in lines[1:]]
    return {case: [float(text) for text in times.split(",")] for case, _, times in rows}


@pytest.fixture(scope="session", params=LONG_RUNS)
def long_run(request: pytest.FixtureRequest, traces: dict[str, list[float]]) -> tuple[str, list[float]]:
    """Name and step times of each run of more than two windows; the other two have 30 and 40 recorded steps."""
    return request.param, traces[LONG_RUNS[request.param]]
