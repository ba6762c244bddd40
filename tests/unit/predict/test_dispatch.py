from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from statistics import mean, median
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.cluster import load_cluster
from autotune.predict.block_time import expert_layer_time
from autotune.predict.dispatch import dispatch_time, smallest_good_sms
from autotune.predict.dispatch_constants import OPERATIONS, Operation
from autotune.predict.dispatch_load import FP8_BYTES, DispatchLoad, expected_groups
from autotune.predict.hardware import Hardware, hardware_of
from autotune.predict.placement import place_dispatch
from autotune.predict.score import score_table
from autotune.predict.table import MeasurementTable, read_table
from autotune.predict.work import Work
from autotune_trials.spec import ModelShape

DATA = Path(__file__).parents[2] / "data"

H100 = hardware_of(load_cluster("h100"))


class Row(NamedTuple):
    cluster: str
    nodes: int
    load: DispatchLoad
    sms: Mapping[str, int | None]
    time_us: dict[str, float]


def _rows() -> Iterator[Row]:
    for row in read_table(DATA / "deepep_sm_sweep.tsv").rows:
        cluster, backend, load, sms = place_dispatch(row)
        assert backend == "deepep"
        times = {name: row.measured[f"{name}_time_s"] * 1e6 for name in OPERATIONS}
        yield Row(cluster.name, int(row.cells["node_num"]), load, sms, times)


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    return list(_rows())


@pytest.fixture(scope="module")
def hardware() -> dict[str, Hardware]:
    return {name: hardware_of(load_cluster(name)) for name in ("h100", "b200", "gb200", "gb300")}


@pytest.mark.parametrize(
    ("cluster", "nodes", "bar"),
    [("h100", 1, 0.10), ("h100", 2, 0.10), ("h100", 4, 0.10), ("b200", 1, 0.10), ("gb200", 1, 0.15)],
)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_measured_times_are_met(
    rows: list[Row], hardware: dict[str, Hardware], cluster: str, nodes: int, bar: float, operation: Operation
) -> None:
    errors = []
    for row in rows:
        if (row.cluster, row.nodes) != (cluster, nodes):
            continue
        estimate = dispatch_time(hardware[cluster], "deepep", row.load, row.sms[operation])
        predicted_us = getattr(estimate, f"{operation}_time_s") * 1e6
        errors.append(abs(predicted_us / row.time_us[operation] - 1))
    assert len(errors) >= 30
    assert mean(errors) <= bar


@pytest.mark.parametrize("operation", OPERATIONS)
def test_smallest_good_sm_budget_is_found_on_hopper(
    rows: list[Row], hardware: dict[str, Hardware], operation: Operation
) -> None:
    measured: dict[DispatchLoad, dict[int, float]] = defaultdict(dict)
    for row in rows:
        if row.cluster == "h100" and row.load.tokens >= 1024:
            measured[row.load][row.sms[operation] or 0] = row.time_us[operation]
    sweeps = {load: times for load, times in measured.items() if len(times) == 6}
    assert len(sweeps) >= 30
    hits = 0
    for load, times in sweeps.items():
        truth = min(sms for sms, time_us in times.items() if time_us <= 1.03 * min(times.values()))
        hits += abs(smallest_good_sms(hardware["h100"], load, operation) - truth) <= 4
    assert hits / len(sweeps) >= 0.9


FIGURES = read_table(DATA / "ep_bandwidth.tsv")


@pytest.mark.parametrize(
    ("backend", "cluster", "dtype", "rows", "bar"),
    [
        ("hybridep", "h100", "fp8 dispatch", 9, 0.10),
        ("hybridep", "h100", "bf16", 18, 0.08),
        ("hybridep", "b200", "", 3, 0.04),
        ("hybridep", "gb200", "fp8 dispatch", 10, 0.06),
        ("hybridep", "gb200", "bf16", 20, 0.06),
        ("deepep", "b200", "", 24, 0.05),
        ("deepep", "gb200", "", 27, 0.15),
    ],
)
def test_published_bandwidths_are_met(backend: str, cluster: str, dtype: str, rows: int, bar: float) -> None:
    chosen = [
        row
        for row in FIGURES.rows
        if (row.cells["backend"], row.cells["cluster"]) == (backend, cluster) and row.cells["dtype"].startswith(dtype)
    ]
    scored = score_table(MeasurementTable(tuple(chosen))).rows
    assert len(scored) == rows
    assert mean(abs(item.error) for item in scored) <= bar


def test_an_fp8_token_costs_hybridep_almost_as_much_sm_time_as_a_bf16_one(hardware: dict[str, Hardware]) -> None:
    for name, ranks, domains in (("gb200", 32, 1), ("h100", 32, 4)):
        wide = DispatchLoad(4096, 7168, 8, 256, ranks, domains)
        narrow = DispatchLoad(4096, 7168, 8, 256, ranks, domains, FP8_BYTES)
        few, many = (
            [dispatch_time(hardware[name], "hybridep", load, sms).dispatch_time_s for load in (narrow, wide)]
            for sms in (2, 32)
        )
        assert few[0] / few[1] > 0.55  # bytes alone: 0.52
        assert few[0] / few[1] > many[0] / many[1]


@pytest.mark.parametrize(
    ("cluster", "load", "sms", "said"),
    [
        ("gb200", (4096, 32, 1), 100, "num_sms=100 is outside the measured 16 to 32"),
        ("gb200", (4096, 64, 1), 16, "at most 36 ranks in a domain, not 64"),
        ("h100", (4096, 128, 16), 16, "at most 8 nodes, not 16"),
        ("b200", (4096, 16, 2), 16, "over several NVLink domains was measured on H100 only"),
        ("gb200", (4096, 32, 1), 16, None),
        ("h100", (4096, 32, 4), 8, None),
    ],
)
def test_hybridep_says_where_it_leaves_its_figures(
    hardware: dict[str, Hardware], cluster: str, load: tuple[int, int, int], sms: int, said: str | None
) -> None:
    estimate = dispatch_time(hardware[cluster], "hybridep", _load(*load), sms)
    assert bool(estimate.notes) == (said is not None)
    assert said is None or any(said in note for note in estimate.notes)
    assert estimate.relative_error == (0.10 if said is None else 0.20)


# The shape of the "deepseek" layer in Megatron-LM's MoE-layer benchmark.
DEEPSEEK_PROXY = ModelShape(
    "deepseek", 1, 7168, 8, 1024, 2048, num_experts=32, router_topk=8, moe_ffn_hidden_size=2048,
    shared_expert_size=2048, router_num_groups=8, router_group_topk=4,
)  # fmt: skip


def test_ratios_of_dispatchers_in_an_expert_layer(
    table: Callable[[str], list[dict[str, str]]], hardware: dict[str, Hardware]
) -> None:
    measured: dict[str, list[float]] = defaultdict(list)
    for row in table("moe_layer_dispatcher_h100.tsv"):
        if row["precision"] == "bf16":
            measured[row["dispatcher"]].append(float(row["fwd_bwd_ms"]))

    def predicted_s(dispatcher: str, num_sms: int | None) -> float:
        work = Work(4096, 4096, expert_parallel=8, dispatcher=dispatcher, num_sms=num_sms, permute_fusion=True)
        return expert_layer_time(hardware["h100"], DEEPSEEK_PROXY, work)

    deepep_s = predicted_s("deepep", 20)
    for name, dispatcher, num_sms in (("a2a", "alltoall", None), ("hybridep", "hybridep", 16)):
        truth = median(measured[name]) / median(measured["deepep"])
        assert predicted_s(dispatcher, num_sms) / deepep_s == pytest.approx(truth, rel=0.07)


@pytest.mark.parametrize(
    ("experts", "groups", "expected"),
    [(256, 2, 1.993), (256, 4, 3.614), (256, 8, 5.295), (256, 16, 6.523), (256, 32, 7.267), (128, 64, 7.78)],
)
def test_expected_groups_of_top_8(experts: int, groups: int, expected: float) -> None:
    assert expected_groups(experts, 8, groups) == pytest.approx(expected, abs=5e-3)


@pytest.mark.parametrize(("experts", "topk", "groups"), [(10, 2, 4), (8, 9, 2), (8, 0, 2), (8, 2, 0)])
def test_impossible_groups_are_refused(experts: int, topk: int, groups: int) -> None:
    with pytest.raises(ValueError, match=r"must be between|cannot be split"):
        expected_groups(experts, topk, groups)


@given(st.integers(0, 6), st.integers(0, 3), st.integers(1, 8))
def test_a_token_visits_no_more_groups_than_there_are_nor_experts(log_groups: int, log_more: int, topk: int) -> None:
    groups = 2**log_groups
    experts = groups * 2**log_more
    topk = min(topk, experts)
    visited = expected_groups(experts, topk, groups)
    assert 1 - 1e-9 <= visited <= min(groups, topk) + 1e-9


def _load(tokens: int, expert_parallel: int = 8, num_domains: int = 1) -> DispatchLoad:
    return DispatchLoad(tokens, 7168, 8, 256, expert_parallel, num_domains)


@given(
    st.sampled_from(["alltoall", "allgather", "deepep", "hybridep", "ncclep"]),
    st.sampled_from([(8, 1), (32, 4)]),
    st.integers(1, 30_000),
    st.integers(2, 12),
)
def test_more_tokens_take_longer_and_time_is_positive(
    backend: str, group: tuple[int, int], tokens: int, half_sms: int
) -> None:
    few = dispatch_time(H100, backend, _load(tokens, *group), 2 * half_sms)
    many = dispatch_time(H100, backend, _load(2 * tokens, *group), 2 * half_sms)
    assert 0 < few.dispatch_time_s < many.dispatch_time_s
    assert 0 < few.combine_time_s < many.combine_time_s


def test_deduplication_spares_the_nic(hardware: dict[str, Hardware]) -> None:
    load = _load(4096, 16, 2)
    deduplicated = dispatch_time(hardware["h100"], "deepep", load, 24)
    plain = dispatch_time(hardware["h100"], "alltoall", load, None)
    assert plain.scale_out_bytes / deduplicated.scale_out_bytes == pytest.approx(8 / 1.993, rel=1e-2)


def test_group_limited_routing_visits_fewer_nodes() -> None:
    free = DispatchLoad(4096, 7168, 8, 256, 64, 8)
    limited = DispatchLoad(4096, 7168, 8, 256, 64, 8, router_groups=8, router_group_topk=4)
    assert free.visited(8) == pytest.approx(5.295, abs=5e-3)
    assert limited.visited(8) <= 4


def test_one_rank_moves_nothing(hardware: dict[str, Hardware]) -> None:
    estimate = dispatch_time(hardware["h100"], "alltoall", _load(4096, 1), None)
    assert (estimate.dispatch_time_s, estimate.combine_time_s) == (0.0, 0.0)


def test_leaving_the_measured_range_is_said(hardware: dict[str, Hardware]) -> None:
    inside = dispatch_time(hardware["h100"], "deepep", _load(4096), 20)
    beyond = dispatch_time(hardware["h100"], "deepep", _load(4096), 64)
    assert inside.notes == ()
    assert "num_sms=64 is outside the measured 4 to 24" in beyond.notes
    assert beyond.relative_error > inside.relative_error


def test_a_nic_behind_a_host_thread_slows_token_messages_only(hardware: dict[str, Hardware]) -> None:
    direct = load_cluster("h100")
    proxied = hardware_of(direct.model_copy(update={"nic_proxied": True}))
    load = DispatchLoad(2048, 2048, 8, 128, 32, 4)
    assert (
        dispatch_time(proxied, "deepep", load, 20).dispatch_time_s
        > dispatch_time(hardware["h100"], "deepep", load, 20).dispatch_time_s
    )
    assert (
        dispatch_time(proxied, "alltoall", load, None).dispatch_time_s
        == dispatch_time(hardware["h100"], "alltoall", load, None).dispatch_time_s
    )


def test_unknown_backend_is_refused(hardware: dict[str, Hardware]) -> None:
    with pytest.raises(ValueError, match="no dispatcher 'carrier_pigeon'"):
        dispatch_time(hardware["h100"], "carrier_pigeon", _load(1), None)
