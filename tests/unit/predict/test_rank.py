"""The ranking: exhaustive where it can be, bounded where not, and honest about both."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest

from autotune.predict.memory import predict_memory
from autotune.predict.rank import SEEN, Ranked, rank
from autotune.predict.relief import _RELIEF, longest_parts, relief
from autotune.predict.time import UNCERTAINTY, predict_time
from autotune.request import TuneRequest, load_request
from autotune.space.parameters import Parameter, Point, SearchSpace
from autotune_policies.settings import Settings

SMALL = (
    Parameter("dispatcher", ("alltoall", "hybridep")),
    Parameter("num_sms", (16, 32), {"dispatcher": ("hybridep",)}),
    Parameter("expert_parallel", (8, 16, 64)),
    Parameter("ep_overlap", (False, True)),
    Parameter("micro_batch_size", (1, 2)),
    Parameter("manual_gc_interval", (None, 10)),
)
BASELINE: Point = {
    "dispatcher": "alltoall", "expert_parallel": 64, "ep_overlap": False, "micro_batch_size": 1,
    "manual_gc_interval": None,
}  # fmt: skip


@pytest.fixture(scope="module")
def request_() -> TuneRequest:
    request = load_request("dsv3", "gb300", gpus=256)
    fixed = {**request.space.fixed, "pipeline_parallel": 4, "virtual_pipeline": 4, "permute_fusion": True}
    return replace(request, space=SearchSpace(SMALL, fixed, BASELINE))


def everything(_: Settings) -> bool:
    return True


def test_a_small_space_is_seen_whole_and_the_best_is_the_best(request_: TuneRequest) -> None:
    ranking = rank(request_, everything, top=100)
    times = [item.time.step_time_s for item in ranking.best]
    fastest = min(
        predict_time(request_.cluster, request_.shape, request_.contract, request_.settings(point), 256).step_time_s
        for point in request_.space.points()
        if _fits(request_, request_.settings(point))
    )
    assert ranking.exhaustive
    assert ranking.looked_at == ranking.legal == 3 * 3 * 2 * 2
    assert ranking.unseen == ("manual_gc_interval",)
    assert times == sorted(times)
    assert times[0] == fastest
    assert ranking.baseline is not None
    assert ranking.baseline.point == BASELINE


def _fits(request: TuneRequest, settings: Settings) -> bool:
    memory = predict_memory(request.shape, request.contract, settings, request.gang, request.cluster)
    assert request.cluster.gpu_memory_bytes is not None
    return memory.fits(request.cluster.gpu_memory_bytes)


def test_refused_configurations_are_not_ranked(request_: TuneRequest) -> None:
    ranking = rank(request_, lambda settings: settings["dispatcher"] == "alltoall")
    assert (ranking.looked_at, ranking.legal) == (36, 12)
    assert {item.point["dispatcher"] for item in ranking.best} == {"alltoall"}
    nothing = rank(request_, lambda _: False)
    assert (nothing.looked_at, nothing.legal, nothing.best, nothing.recommended) == (36, 0, (), None)


def test_a_memory_limit_leaves_out_what_is_above_it(request_: TuneRequest) -> None:
    free = rank(request_, everything, top=100)
    peaks = sorted(item.memory.peak_memory_bytes for item in free.best)
    limit = peaks[len(peaks) // 2]
    bound = rank(replace(request_, memory_limit_bytes=limit), everything, top=100)
    assert bound.not_fitting > free.not_fitting
    assert bound.best
    assert max(item.memory.peak_memory_bytes for item in bound.best) <= limit


def test_beyond_the_budget_the_search_is_bounded_and_says_so(request_: TuneRequest) -> None:
    ranking = rank(request_, everything, budget=20)
    assert not ranking.exhaustive
    assert ranking.looked_at == 20
    assert ranking.baseline is not None
    assert ranking.best[0].time.step_time_s <= ranking.baseline.time.step_time_s


def test_climbing_with_budget_left_finds_the_best_of_all(request_: TuneRequest) -> None:
    whole = rank(request_, everything)
    climbed = rank(request_, everything, budget=35)  # one less than there are
    assert not climbed.exhaustive
    assert climbed.best[0].time == whole.best[0].time


class _Recording(dict[str, Any]):
    """Settings that remember which of them were read."""

    def __init__(self, settings: Mapping[str, Any], read: set[str]) -> None:
        super().__init__(settings)
        self.read = read

    def __getitem__(self, name: str) -> Any:
        self.read.add(name)
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        self.read.add(name)
        return super().get(name, default)


def _points() -> Iterator[Point]:
    yield {}
    yield {"recompute_granularity": "full", "pipeline_parallel": 4, "virtual_pipeline": 4}
    yield {"recompute_granularity": "selective", "recompute_modules": ["moe_act"], "offload_modules": ["core_attn"]}
    yield {"dispatcher": "hybridep", "num_sms": 16, "expert_parallel": 64, "permute_fusion_into_hybridep": True}
    yield {"dispatcher": "ncclep", "num_sms": 16, "expert_parallel": 64, "rank_capacity_factor": 1.5}
    yield {"cuda_graph_impl": "transformer_engine", "cuda_graph_modules": ["attn"], "ep_overlap": True}


def test_the_predictors_look_at_no_setting_that_the_ranking_takes_as_unseen(request_: TuneRequest) -> None:
    read: set[str] = set()
    for point in _points():
        settings = _Recording(request_.settings(point), read)
        predict_time(request_.cluster, request_.shape, request_.contract, settings, 256)
        predict_memory(request_.shape, request_.contract, settings, request_.gang, request_.cluster)
    assert read <= SEEN
    assert {"dispatcher", "offload_modules", "cuda_allocator", "paged_stash"} <= read


@pytest.fixture(scope="module")
def first(request_: TuneRequest) -> Ranked:
    return rank(request_, everything).best[0]


def test_relief_is_known_for_every_part_and_names_what_is_not_done_yet(first: Ranked) -> None:
    assert set(_RELIEF) == set(UNCERTAINTY)
    longest = longest_parts(first.time)
    assert first.time.parts[longest[0]] == max(first.time.parts.values())
    assert any("ep_overlap" in advice for advice in relief("dispatch", {"ep_overlap": False}))
    assert not any("ep_overlap" in advice for advice in relief("dispatch", {"ep_overlap": True}))
