"""The exploration: what it may spend, that it repeats itself, and that it finds what takes several changes at once."""

from dataclasses import dataclass

from autotune.predict.explore import REFUSED_PER_PREDICTED, Explorer
from autotune.space.parameters import Parameter, Point

MANY = tuple(range(1, 9))
PARAMETERS = (
    Parameter("dispatcher", ("alltoall", "hybridep")),
    Parameter("num_sms", MANY, {"dispatcher": ("hybridep",)}),
    Parameter("expert_parallel", MANY),
    Parameter("ep_overlap", (False, True)),
    Parameter("cuda_graph_impl", ("none", "transformer_engine")),
    Parameter("micro_batch_size", MANY),
    Parameter("tensor_parallel", MANY),
    Parameter("context_parallel", MANY),
)
START: Point = {
    "dispatcher": "alltoall", "expert_parallel": 1, "ep_overlap": False, "cuda_graph_impl": "none",
    "micro_batch_size": 1, "tensor_parallel": 1, "context_parallel": 1,
}  # fmt: skip


@dataclass(frozen=True)
class Predicted:
    point: Point
    score: float


def number(point: Point, name: str) -> int:
    value = point.get(name, 1)
    assert isinstance(value, int)
    return value


def judge(point: Point) -> Predicted | None:
    """Overlap needs a group and pays with the other dispatcher only; each of them alone costs."""
    expert, tensor = number(point, "expert_parallel"), number(point, "tensor_parallel")
    if point["ep_overlap"] and expert == 1:
        return None
    together = point["dispatcher"] == "hybridep" and point["ep_overlap"] and expert == 8
    changed = [point["dispatcher"] == "hybridep", bool(point["ep_overlap"]), expert > 1]
    score = 10.0 if together else 20.0 + sum(changed) + 0.1 * tensor
    return Predicted(point, score + abs(number(point, "num_sms") - 5) + abs(number(point, "micro_batch_size") - 3))


def test_what_only_pays_together_is_found() -> None:
    explorer = Explorer(PARAMETERS, judge, 2_000)
    explorer.explore([START])
    best = min((item for item in explorer.found.values() if item), key=lambda item: item.score)
    assert best.score == 10.0
    assert (best.point["num_sms"], best.point["micro_batch_size"]) == (5, 3)


def test_the_same_space_gives_the_same_points() -> None:
    first, second = (Explorer(PARAMETERS, judge, 500) for _ in range(2))
    first.explore([START])
    second.explore([START])
    assert list(first.found) == list(second.found)


def test_refused_points_do_not_eat_the_budget_and_end_somewhere() -> None:
    explorer = Explorer(PARAMETERS, lambda point: judge(point) if number(point, "context_parallel") == 1 else None, 300)
    explorer.explore([START])
    predicted = sum(item is not None for item in explorer.found.values())
    assert predicted == 300
    nothing: Explorer[Predicted] = Explorer(PARAMETERS, lambda _: None, 300)
    nothing.explore([START])
    assert len(nothing.found) <= 300 * REFUSED_PER_PREDICTED


def test_a_budget_beyond_the_space_ends_when_all_is_known() -> None:
    small = PARAMETERS[3:5]
    explorer = Explorer(small, lambda point: Predicted(point, 1.0), 1_000)
    explorer.explore([{"ep_overlap": False, "cuda_graph_impl": "none"}])
    assert len(explorer.found) == 4


def test_layouts_beyond_counting_are_drawn() -> None:
    wide = (*PARAMETERS[:5], Parameter("micro_batch_size", tuple(range(1, 3000))), *PARAMETERS[6:])
    explorer = Explorer(wide, judge, 400)
    explorer.explore([START])
    assert sum(item is not None for item in explorer.found.values()) == 400
