"""The space of one study: a model file, a cluster file and the selection guide put together.

Vendor recipes and guide rows only ever become *seeds*: points to try first, never conclusions.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from autotune.cluster import Cluster
from autotune.space.files import ModelFile, parameters_of
from autotune.space.guide import Guide, suggestions
from autotune.space.parameters import LeftOut, Parameter, Point, SearchSpace
from autotune_policies.backends import BACKENDS
from autotune_policies.settings import Value
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
    parameters, gone = _under_contract(_with_cluster(parameters_of(file.parameters), cluster), contract)
    recipe = file.recipes.get(cluster.name)
    published = recipe.settings if recipe is not None else {}
    base = published or file.baseline
    baseline = nearest_point(parameters, {**base, **_PLAIN} if published else base)
    seeds: list[Point] = [nearest_point(parameters, seed) for seed in file.seeds if _without_gone(seed, gone)]
    if published:
        seeds.append(nearest_point(parameters, published))
    advice = suggestions(guide, file.name, cluster.name, contract.precision, baseline)
    seeds.extend(nearest_point(parameters, {**base, **one}) for one in advice)
    return SearchSpace(
        parameters=parameters,
        fixed=dict(file.fixed),
        baseline=baseline,
        seeds=tuple(_distinct(seeds, baseline)),
        left_out=gone,
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


def _under_contract(
    parameters: Sequence[Parameter], contract: Contract
) -> tuple[tuple[Parameter, ...], tuple[LeftOut, ...]]:
    """Without the choices that the contract excludes, and what they were.

    A parameter of which nothing is left, and what exists only beside a value that is gone, goes too; one whose every
    choice is excluded but which exists everywhere keeps them, so that a rule says what is wrong.
    """
    kept: list[Parameter] = []
    gone: list[LeftOut] = []
    left: dict[str, tuple[Value, ...]] = {}
    moe = any(parameter.name == "dispatcher" for parameter in parameters)
    for parameter in parameters:
        when = {name: tuple(v for v in values if v in left.get(name, ())) for name, values in parameter.when.items()}
        if not all(when.values()):
            continue  # what it depends on is gone, and named
        choices = []
        for value in parameter.choices:
            why = _excluded(parameter.name, value, contract, moe=moe)
            if why is None:
                choices.append(value)
            else:
                gone.append(LeftOut(parameter.name, value, why))
        if not choices:
            choices = [*parameter.choices]
            gone = [item for item in gone if item.parameter != parameter.name]
        if choices == [None]:
            continue  # nothing is left to choose
        left[parameter.name] = tuple(choices)
        kept.append(Parameter(parameter.name, tuple(choices), when))
    return tuple(kept), tuple(gone)


def _excluded(name: str, value: Value, contract: Contract, *, moe: bool) -> str | None:
    """Why no configuration under this contract can have this value; None = some can."""
    policy, batch = contract.routing.token_policy, contract.global_batch_size
    if name == "micro_batch_size" and isinstance(value, int) and batch % value:
        return f"it does not divide the batch of {batch}"
    if policy != "dropless":
        return None
    if name == "rank_capacity_factor" and value is not None:
        return "tokens beyond it would be dropped, and the contract is dropless"
    if name == "dispatcher" and BACKENDS[str(value)].limits.needs_rank_capacity:
        return "it works only with a rank capacity, and the contract is dropless"
    if name == "cuda_graph_impl" and value == "full_iteration" and moe:
        return "it needs experts of a fixed size, and the contract is dropless"
    return None


def _without_gone(point: Mapping[str, Any], gone: Sequence[LeftOut]) -> bool:
    return not any(item.parameter in point and point[item.parameter] == item.value for item in gone)


def _distinct(points: Iterable[Point], baseline: Point) -> Iterator[Point]:
    seen = [baseline]
    for point in points:
        if point not in seen:
            seen.append(point)
            yield point
