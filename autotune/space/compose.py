"""The space of one study: a model file, a cluster file and the selection guide put together.

Vendor recipes and guide rows only ever become *seeds*: points to try first, never conclusions.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from autotune.cluster import Cluster
from autotune.space.files import ModelFile, complete_point, parameters_of
from autotune.space.guide import Guide, suggestions
from autotune.space.parameters import Parameter, Point, SearchSpace
from autotune_trials.spec import Contract

_PLAIN: Mapping[str, object] = {
    "dispatcher": "alltoall", "cuda_graph_impl": "none", "ep_overlap": False, "micro_batch_size": 1,
}  # fmt: skip
"""What makes a point the one that is known to be correct, and leaves memory: a baseline that fails ends the run."""


def compose(file: ModelFile, cluster: Cluster, contract: Contract, guide: Guide) -> SearchSpace:
    """What may vary when this model is tuned on this cluster, and where the search starts.

    The baseline has the parallel layout of the cluster's recipe, if there is one, with alltoall, one sequence at a
    time, without graphs and without overlap. Seeds, in this order: the file's own, the recipe, and the guide's
    suggestions on the recipe's layout.
    """
    parameters = _under_contract(_with_cluster(parameters_of(file.parameters), cluster), contract)
    recipe = file.recipes.get(cluster.name)
    published = recipe.settings if recipe is not None else {}
    base = published or file.baseline
    baseline = nearest_point(parameters, {**base, **_PLAIN} if published else base)
    seeds: list[Point] = [complete_point(parameters, seed) for seed in file.seeds]
    if published:
        seeds.append(nearest_point(parameters, published))
    advice = suggestions(guide, file.name, cluster.name, contract.precision, baseline)
    seeds.extend(nearest_point(parameters, {**base, **one}) for one in advice)
    return SearchSpace(
        parameters=parameters,
        fixed=dict(file.fixed),
        baseline=baseline,
        seeds=tuple(_distinct(seeds, baseline)),
    )


def nearest_point(parameters: Sequence[Parameter], given: Mapping[str, Any]) -> Point:
    """A point of the space with the given values where they exist there, and first choices elsewhere."""
    point: Point = {}
    for parameter in parameters:
        if parameter.active(point):
            value = given.get(parameter.name, parameter.choices[0])
            point[parameter.name] = value if value in parameter.choices else parameter.choices[0]
    return point


def _with_cluster(parameters: Sequence[Parameter], cluster: Cluster) -> list[Parameter]:
    names = {parameter.name for parameter in parameters}
    further = [Parameter(name, tuple(choices)) for name, choices in cluster.parameters.items() if name not in names]
    return [*parameters, *further]


def _under_contract(parameters: Sequence[Parameter], contract: Contract) -> tuple[Parameter, ...]:
    """Without what the contract excludes: dropless experts have no capacity, and no fixed size to be captured with."""
    if contract.routing.token_policy != "dropless":
        return tuple(parameters)
    kept: list[Parameter] = []
    gone: set[str] = {"rank_capacity_factor"}
    moe = any(parameter.name == "dispatcher" for parameter in parameters)
    for parameter in parameters:
        if parameter.name in gone or gone & set(parameter.when):
            gone.add(parameter.name)
        elif parameter.name == "cuda_graph_impl" and moe:
            kept.append(Parameter(parameter.name, _without(parameter.choices, "full_iteration"), parameter.when))
        else:
            kept.append(parameter)
    return tuple(kept)


def _without(choices: Sequence[Any], excluded: object) -> tuple[Any, ...]:
    return tuple(choice for choice in choices if choice != excluded) or tuple(choices)


def _distinct(points: Iterable[Point], baseline: Point) -> Iterator[Point]:
    seen = [baseline]
    for point in points:
        if point not in seen:
            seen.append(point)
            yield point
