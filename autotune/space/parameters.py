"""Parameters and the space they span."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from autotune_policies.settings import Settings, Value

Point = dict[str, Value]
"""One value for each parameter that is active; the keys of a conditional one are absent where it does not exist."""


@dataclass(frozen=True)
class Parameter:
    """Something that may vary.

    Attributes:
        name: A canonical setting.
        choices: Its legal values in this space, at least one.
        when: It exists only where each named parameter, defined further up, has one of these values.
    """

    name: str
    choices: tuple[Value, ...]
    when: Mapping[str, tuple[Value, ...]] = field(default_factory=dict)

    def active(self, point: Mapping[str, Value]) -> bool:
        """Whether it exists, given the parameters further up."""
        return all(name in point and point[name] in values for name, values in self.when.items())


@dataclass(frozen=True)
class LeftOut:
    """A choice of a model file that could never be legal in this study, and is not searched.

    Attributes:
        parameter: Its name.
        value: The choice.
        why: The reason, for people.
    """

    parameter: str
    value: Value
    why: str


@dataclass(frozen=True)
class SearchSpace:
    """What one study may try.

    Attributes:
        parameters: In definition order: a condition only looks up.
        fixed: Settings that do not vary.
        baseline: The point that is measured first and compared with: alltoall, known to be correct.
        seeds: Points tried next, before the sampler has a say: starting points, never conclusions.
        left_out: Choices of the model file that the contract excludes; for people, no part of the study's identity.
    """

    parameters: tuple[Parameter, ...]
    fixed: Settings
    baseline: Point
    seeds: tuple[Point, ...] = ()
    left_out: tuple[LeftOut, ...] = field(default=(), compare=False)

    def size(self) -> int:
        """Points at most, conditions not subtracted."""
        return math.prod(len(parameter.choices) for parameter in self.parameters)

    def points(self) -> Iterator[Point]:
        """Every point once, in definition order; conditions are respected, legality is not asked."""
        return self._expand({}, 0)

    def _expand(self, point: Point, index: int) -> Iterator[Point]:
        if index == len(self.parameters):
            yield dict(point)
            return
        parameter = self.parameters[index]
        if not parameter.active(point):
            yield from self._expand(point, index + 1)
            return
        for value in parameter.choices:
            yield from self._expand({**point, parameter.name: value}, index + 1)
