"""Ranks the legal configurations of a search space by predicted throughput.

A space of a large model holds more points than can be predicted. Settings that neither predictor looks at keep their
usual value; if what is left is still too much, all parallel layouts are tried first, and then the best of them are
changed one parameter at a time (those that trade memory for time also together), and then more of them, until the
budget is spent. The ranking says how much was seen.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from autotune.errors import RequestError
from autotune.predict.hardware import hardware_of
from autotune.predict.memory import MemoryEstimate, predict_memory
from autotune.predict.time import TimeEstimate, predict_time
from autotune.request import TuneRequest
from autotune.space.parameters import Parameter, Point, SearchSpace
from autotune_policies.settings import Settings, Value

SEEN = frozenset({
    "micro_batch_size", "tensor_parallel", "sequence_parallel", "pipeline_parallel", "virtual_pipeline",
    "pipeline_layout", "context_parallel", "expert_parallel", "expert_tensor_parallel", "dispatcher", "num_sms",
    "permute_fusion_into_hybridep", "rank_capacity_factor", "paged_stash", "permute_fusion", "shared_expert_overlap",
    "ep_overlap", "cuda_graph_impl", "cuda_graph_modules", "recompute_granularity", "recompute_method",
    "recompute_num_layers", "recompute_modules", "offload_modules", "distributed_optimizer", "overlap_grad_reduce",
    "overlap_param_gather", "cuda_allocator",
})  # fmt: skip
"""Settings that the predictors look at; the others change nothing that is predicted."""

LAYOUT = (
    "expert_parallel", "expert_tensor_parallel", "pipeline_parallel", "virtual_pipeline", "pipeline_layout",
    "tensor_parallel", "context_parallel", "micro_batch_size",
)  # fmt: skip
"""Parameters whose combinations are all tried before anything else is changed."""

MEMORY_TRADES = ("micro_batch_size", "recompute_granularity", "recompute_modules", "offload_modules")
"""Parameters that trade memory for time: changed together too, since one of them alone may not fit or not pay."""

BUDGET = 10_000
"""Points that are looked at, at most."""

BEAM = 4
"""Points that are changed further at first; half as many of those that do not fit, since a change may save them."""


@dataclass(frozen=True)
class Ranked:
    """One legal configuration with its predictions.

    Attributes:
        point: As a point of the space.
        settings: All canonical settings.
        time: Predicted step.
        memory: Predicted memory.
        fits: Whether the device, and the limit that was given, hold it.
    """

    point: Point
    settings: Settings
    time: TimeEstimate
    memory: MemoryEstimate
    fits: bool


@dataclass(frozen=True)
class Ranking:
    """What came out.

    Attributes:
        best: Those that fit, fastest first; of those whose predictions are equal the one nearest to the baseline.
        baseline: The study's first point, if it is legal.
        space_points: Points of the space at most, conditions not subtracted.
        distinct_points: The same without parameters that change no prediction.
        looked_at: Points whose legality was asked.
        legal: Of them, those that no rule refuses.
        not_fitting: Of the legal ones, those that do not fit into memory.
        exhaustive: Whether every distinct point was looked at.
        unseen: Parameters of the space that change no prediction.
    """

    best: tuple[Ranked, ...]
    baseline: Ranked | None
    space_points: int
    distinct_points: int
    looked_at: int
    legal: int
    not_fitting: int
    exhaustive: bool
    unseen: tuple[str, ...]


def rank(request: TuneRequest, is_legal: Callable[[Settings], bool], *, top: int = 10, budget: int = BUDGET) -> Ranking:
    """The fastest configurations of a request's space, as predicted.

    Args:
        request: Model, cluster, GPUs, contract, space and memory limit.
        is_legal: Whether no rule refuses all these settings.
        top: How many.
        budget: Points looked at, at most.

    Raises:
        RequestError: no time model for this cluster, or no legal configuration at all.
    """
    hardware_of(request.cluster)
    space = _without_unseen(request.space)
    search = _Search(request, is_legal, budget)
    exhaustive = space.size() <= budget
    if exhaustive:
        search.try_all(space.points())
    else:
        search.climb(space)
    found = list(search.found.values())
    if not any(found):
        raise RequestError(
            f"none of {len(found)} configurations of {request.model} on {request.gang.world_size} GPUs is legal",
            hint="autotune check names the rules that refuse one; another --gpus may help",
        )
    legal = [item for item in found if item is not None]
    fitting = sorted((item for item in legal if item.fits), key=lambda item: _order(item, space.baseline))
    return Ranking(
        best=tuple(itertools.islice(_distinct(fitting), top)),
        baseline=search.found.get(_key(space.baseline)),
        space_points=request.space.size(),
        distinct_points=space.size(),
        looked_at=len(found),
        legal=len(legal),
        not_fitting=len(legal) - len(fitting),
        exhaustive=exhaustive,
        unseen=tuple(item.name for item in request.space.parameters if item.name not in SEEN),
    )


class _Search:
    """Every point that was looked at, once, with what is predicted for it; null for those that are not legal."""

    def __init__(self, request: TuneRequest, is_legal: Callable[[Settings], bool], budget: int) -> None:
        self.found: dict[str, Ranked | None] = {}
        self._request = request
        self._is_legal = is_legal
        self._budget = budget

    def try_all(self, points: Iterable[Point]) -> None:
        """Predict these points, as far as the budget goes."""
        for point in points:
            if len(self.found) >= self._budget:
                return
            key = _key(point)
            if key not in self.found:
                self.found[key] = self._predict(point)

    def climb(self, space: SearchSpace) -> None:
        """All layouts, then the best points changed one parameter at a time: of ever more of them, to the budget."""
        self.try_all([space.baseline, *space.seeds])
        self.try_all(_variants(space.parameters, space.baseline, LAYOUT))
        expanded: set[str] = set()
        width = BEAM
        while len(self.found) < self._budget:
            fresh = [item for item in self._beam(width) if _key(item.point) not in expanded]
            if not fresh:
                if width > 2 * len(self.found):
                    return
                width *= 2
            for item in fresh:
                expanded.add(_key(item.point))
                for free in (*((parameter.name,) for parameter in space.parameters), MEMORY_TRADES):
                    self.try_all(_variants(space.parameters, item.point, free))

    def _beam(self, width: int) -> list[Ranked]:
        legal = sorted((item for item in self.found.values() if item), key=lambda item: item.time.step_time_s)
        fitting, others = _distinct(item for item in legal if item.fits), _distinct(i for i in legal if not i.fits)
        return [*itertools.islice(fitting, width), *itertools.islice(others, width // 2)]

    def _predict(self, point: Point) -> Ranked | None:
        request = self._request
        settings = request.settings(point)
        if not self._is_legal(settings):
            return None
        cluster, gang = request.cluster, request.gang
        time = predict_time(cluster, request.shape, request.contract, settings, gang.world_size)
        memory = predict_memory(request.shape, request.contract, settings, gang, cluster)
        fits = cluster.gpu_memory_bytes is None or memory.fits(cluster.gpu_memory_bytes)
        limit = request.memory_limit_bytes
        return Ranked(point, settings, time, memory, fits and (limit is None or memory.peak_memory_bytes <= limit))


def _without_unseen(space: SearchSpace) -> SearchSpace:
    """The space with one value left to each parameter that changes no prediction: the baseline's, else the first."""
    parameters = tuple(
        item if item.name in SEEN else Parameter(item.name, (_usual(space, item),), item.when)
        for item in space.parameters
    )
    nearest = [_nearest(parameters, seed) for seed in space.seeds]
    return SearchSpace(parameters, space.fixed, space.baseline, tuple(nearest))


def _usual(space: SearchSpace, parameter: Parameter) -> Value:
    return space.baseline.get(parameter.name, parameter.choices[0])


def _nearest(parameters: Sequence[Parameter], given: Mapping[str, Value]) -> Point:
    point: Point = {}
    for parameter in parameters:
        if parameter.active(point):
            value = given.get(parameter.name)
            point[parameter.name] = value if value in parameter.choices else parameter.choices[0]
    return point


def _variants(parameters: Sequence[Parameter], point: Point, free: Sequence[str]) -> Iterator[Point]:
    """The point with all values of the free parameters, and of those that come into being with them."""

    def expand(made: Point, index: int) -> Iterator[Point]:
        if index == len(parameters):
            yield made
            return
        parameter = parameters[index]
        if not parameter.active(made):
            yield from expand(made, index + 1)
            return
        name = parameter.name
        for value in (point[name],) if name in point and name not in free else parameter.choices:
            yield from expand({**made, name: value}, index + 1)

    return expand({}, 0)


def _distinct(found: Iterable[Ranked]) -> Iterator[Ranked]:
    """Without configurations whose predictions equal those of one before."""
    seen = set()
    for item in found:
        prediction = (f"{item.time.step_time_s:.9g}", item.memory.peak_memory_bytes)
        if prediction not in seen:
            seen.add(prediction)
            yield item


def _order(item: Ranked, baseline: Point) -> tuple[str, int, int, str]:
    changes = sum(baseline.get(name) != value for name, value in item.point.items())
    return f"{item.time.step_time_s:020.9f}", item.memory.peak_memory_bytes, changes, _key(item.point)


def _key(point: Point) -> str:
    return repr(point)
