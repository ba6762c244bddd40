"""Ranks the legal configurations of a search space by predicted throughput.

A space of a large model holds more points than can be predicted. Settings that neither predictor looks at keep their
usual value; if what is left is still too much, :mod:`autotune.predict.explore` looks for the fastest ones until the
budget is spent. The ranking says how much was seen.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from autotune.predict.explore import Explorer
from autotune.predict.fit import Fit, fit_of
from autotune.predict.hardware import hardware_of
from autotune.predict.memory import MemoryEstimate, predict_memory
from autotune.predict.numerics import program_numerics
from autotune.predict.time import TimeEstimate, predict_time
from autotune.request import TuneRequest
from autotune.space.parameters import Parameter, Point, SearchSpace
from autotune_policies.settings import Settings, Value

SEEN = frozenset({
    "micro_batch_size", "tensor_parallel", "sequence_parallel", "pipeline_parallel", "virtual_pipeline",
    "pipeline_layout", "context_parallel", "expert_parallel", "expert_tensor_parallel", "dispatcher", "num_sms",
    "permute_fusion_into_hybridep", "rank_capacity_factor", "paged_stash", "permute_fusion", "shared_expert_overlap",
    "op_fuser", "ep_overlap", "cuda_graph_impl", "cuda_graph_modules", "recompute_granularity", "recompute_method",
    "recompute_num_layers", "recompute_modules", "offload_modules", "distributed_optimizer", "overlap_grad_reduce",
    "overlap_param_gather", "cuda_allocator",
})  # fmt: skip
"""Settings that the predictors look at; the others change nothing that is predicted."""

BUDGET = 10_000
"""Points that are predicted, at most."""

LACKING = 3.0
"""How much slower a point counts per share of memory that it lacks, while the search decides what to change next."""


@dataclass(frozen=True)
class Ranked:
    """One legal configuration with its predictions.

    Attributes:
        point: As a point of the space.
        settings: All canonical settings.
        time: Predicted step.
        memory: Predicted memory.
        fit: Whether the device, and the limit that was given, hold it; None where neither is known.
        score: Seconds, longer where memory is lacking: what the search goes by.
    """

    point: Point
    settings: Settings
    time: TimeEstimate
    memory: MemoryEstimate
    fit: Fit | None
    score: float

    @property
    def fits(self) -> bool:
        """Whether it is expected to fit, surely or not."""
        return self.fit != "does not fit"


@dataclass(frozen=True)
class Ranking:
    """What came out.

    Attributes:
        best: Those that are expected to fit, fastest first, the fastest that surely fits among them; of those whose
            predictions are equal the one nearest to the baseline.
        recommended: The fastest that surely fits, else the fastest; None when nothing is expected to fit.
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
    recommended: Ranked | None
    baseline: Ranked | None
    space_points: int
    distinct_points: int
    looked_at: int
    legal: int
    not_fitting: int
    exhaustive: bool
    unseen: tuple[str, ...]

    def leading(self, top: int) -> "Ranking":
        """The same with so many of the best; the recommended one takes the last place if it comes later."""
        best = list(self.best[:top])
        if self.recommended is not None and self.recommended not in best:
            best[-1] = self.recommended
        return replace(self, best=tuple(best))


def rank(request: TuneRequest, is_legal: Callable[[Settings], bool], *, top: int = 10, budget: int = BUDGET) -> Ranking:
    """The fastest configurations of a request's space, as predicted.

    Args:
        request: Model, cluster, GPUs, contract, space and memory limit.
        is_legal: Whether no rule refuses all these settings.
        top: How many.
        budget: Points predicted, at most.

    Raises:
        RequestError: no time model for this cluster.
    """
    hardware_of(request.cluster)
    space = _without_unseen(request.space)
    explorer = Explorer(space.parameters, lambda point: _predicted(request, is_legal, point), budget)
    exhaustive = space.size() <= budget
    if exhaustive:
        explorer.look(space.points())
    else:
        explorer.explore([space.baseline, *space.seeds])
    legal = [item for item in explorer.found.values() if item is not None]
    fitting = sorted((item for item in legal if item.fits), key=lambda item: _order(item, space.baseline))
    return Ranking(
        best=tuple(_distinct(fitting)),
        recommended=next((item for item in fitting if item.fit != "may not fit"), next(iter(fitting), None)),
        baseline=explorer.found.get(repr(space.baseline)),
        space_points=request.space.size(),
        distinct_points=space.size(),
        looked_at=len(explorer.found),
        legal=len(legal),
        not_fitting=len(legal) - len(fitting),
        exhaustive=exhaustive,
        unseen=tuple(item.name for item in request.space.parameters if item.name not in SEEN),
    ).leading(top)


def _predicted(request: TuneRequest, is_legal: Callable[[Settings], bool], point: Point) -> Ranked | None:
    """What is predicted for a point; None where a rule refuses it."""
    settings = request.settings(point)
    if not is_legal(settings):
        return None
    cluster, gang, limit = request.cluster, request.gang, request.memory_limit_bytes
    numerics = program_numerics(request.program, request.shape.name)
    time = predict_time(cluster, request.shape, request.contract, settings, gang.world_size, numerics=numerics)
    memory = predict_memory(request.shape, request.contract, settings, gang, cluster, numerics)
    lacking = max(
        0.0,
        memory.device_memory_bytes / (cluster.gpu_memory_bytes or float("inf")) - 1,
        memory.peak_memory_bytes / (limit or float("inf")) - 1,
    )
    score = time.step_time_s * (1 + LACKING * lacking) * (1.01 if lacking else 1.0)
    return Ranked(point, settings, time, memory, fit_of(memory, cluster.gpu_memory_bytes, limit), score)


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
    return f"{item.time.step_time_s:020.9f}", item.memory.peak_memory_bytes, changes, repr(item.point)
