"""Looks for the fastest points of a space that is too large to be seen whole.

Order: the given starts, parallel layouts, random points; then random changes of the best point of each niche (kinds of
points that compete with each other: dispatcher, overlap, graphs), so that a good combination is found from wherever it
is close; last every change of one or two parameters of the best point, until none helps. Everything is drawn from one
fixed seed: the same space gives the same points.
"""

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Generic, Protocol, TypeVar

from autotune.space.parameters import Parameter, Point
from autotune_policies.settings import Value

LAYOUT = (
    "expert_parallel", "expert_tensor_parallel", "pipeline_parallel", "virtual_pipeline", "pipeline_layout",
    "tensor_parallel", "context_parallel", "micro_batch_size",
)  # fmt: skip
"""Parameters that say which rank holds what."""

MEMORY_TRADES = ("micro_batch_size", "recompute_granularity", "recompute_modules", "offload_modules")
"""Parameters that trade memory for time: one of them alone may not fit or not pay."""

EXCHANGE = (
    "dispatcher", "num_sms", "expert_parallel", "ep_overlap", "cuda_graph_impl", "cuda_graph_modules",
    "permute_fusion_into_hybridep", "shared_expert_overlap", "virtual_pipeline",
)  # fmt: skip
"""Parameters of the exchange of tokens: overlap needs a group, and pays with the right dispatcher and graphs."""

NICHE = ("dispatcher", "ep_overlap", "cuda_graph_impl")
"""Points that differ in one of these are not measured against each other while the search is still broad."""

LAYOUTS_SHARE, RANDOM_SHARE, BROAD_SHARE, POLISH_SHARE = 0.2, 0.05, 0.6, 0.9
"""Shares of the budget after which a phase ends at the latest; what is left goes to random changes again."""

REFUSED_PER_PREDICTED = 4
"""Refused points cost a tenth of a predicted one: so many of them, at most, per point of the budget."""

ELITE = 24
"""Best points that are changed further, beside the best one of each niche."""

FUTILE = 3_000
"""Draws in a row that were all known already, after which nothing new is expected."""


class Judged(Protocol):
    """What a predicted point must have."""

    @property
    def point(self) -> Point:
        """As a point of the space."""
        ...

    @property
    def score(self) -> float:
        """The lower the better; a point that does not fit is behind by as much as it lacks."""
        ...


T = TypeVar("T", bound=Judged)


class Explorer(Generic[T]):
    """Every point that was looked at, once.

    Attributes:
        found: By the point's text, what was predicted; None where a rule refuses it.
    """

    def __init__(self, parameters: Sequence[Parameter], judge: Callable[[Point], T | None], budget: int) -> None:
        """Args: the space's parameters; what predicts a point, null = refused; predictions at most."""
        self.found: dict[str, T | None] = {}
        self._parameters = parameters
        self._judge = judge
        self._budget = budget
        self._predicted = 0
        self._random = random.Random(0)  # noqa: S311 - reproducible, not secret
        self._best: dict[tuple[Value | str, ...], T] = {}
        self._elite: list[T] = []

    def look(self, points: Iterable[Point], until: float = 1.0) -> None:
        """Predict these points, until this share of the budget is spent."""
        for point in points:
            if self._spent(until):
                return
            key = repr(point)
            if key in self.found:
                continue
            judged = self.found[key] = self._judge(point)
            if judged is not None:
                self._predicted += 1
                self._remember(judged)

    def explore(self, starts: Sequence[Point]) -> None:
        """Spend the budget, as the module says; the first start is the baseline."""
        self.look(starts)
        self.look(self._layouts(starts[0]), LAYOUTS_SHARE)
        self.look(self._draws(LAYOUTS_SHARE + RANDOM_SHARE), LAYOUTS_SHARE + RANDOM_SHARE)
        for niche in sorted(self._best.values(), key=lambda item: item.score)[:4]:
            self.look(self._singles(niche.point), BROAD_SHARE)
        self.look(self._changes(BROAD_SHARE, broad=True), BROAD_SHARE)
        self._polish()
        self.look(self._changes(1.0, broad=False))

    def _spent(self, share: float) -> bool:
        refused = len(self.found) - self._predicted
        return self._predicted >= share * self._budget or refused >= share * self._budget * REFUSED_PER_PREDICTED

    def _remember(self, judged: T) -> None:
        niche = tuple(str(judged.point.get(name)) for name in NICHE)
        known = self._best.get(niche)
        if known is None or judged.score < known.score:
            self._best[niche] = judged
        if len(self._elite) < ELITE or judged.score < self._elite[-1].score:
            self._elite = sorted([*self._elite, judged], key=lambda item: item.score)[:ELITE]

    def _layouts(self, baseline: Point) -> Iterator[Point]:
        """All layouts of the baseline in a random order; a random part of them where there are very many."""
        every: list[Point] = []
        for point in variants(self._parameters, baseline, LAYOUT):
            every.append(point)
            if len(every) > self._budget * REFUSED_PER_PREDICTED:
                while True:
                    yield self._completed(self._drawn(LAYOUT, baseline))
        self._random.shuffle(every)
        yield from every

    def _draws(self, until: float) -> Iterator[Point]:
        names = [parameter.name for parameter in self._parameters]
        yield from self._fresh(lambda: self._completed(self._drawn(names, {})), until)

    def _changes(self, until: float, *, broad: bool) -> Iterator[Point]:
        """Random changes of good points: of every niche's best in turn, or of the best ones of all."""
        turn = 0

        def one() -> Point:
            nonlocal turn
            turn += 1
            niches = sorted(self._best.values(), key=lambda item: item.score)
            if broad and turn % 2:
                kept = niches[: max(4, int(len(niches) * (1 - self._predicted / (until * self._budget))))]
                origin = kept[turn // 2 % len(kept)]
            else:
                origin = self._elite[int(len(self._elite) * self._random.random() ** 2)]
            return self._completed(self._changed(origin.point))

        if self._elite:
            yield from self._fresh(one, until)

    def _fresh(self, draw: Callable[[], Point], until: float) -> Iterator[Point]:
        futile = 0
        while futile < FUTILE and not self._spent(until):
            point = draw()
            futile = futile + 1 if repr(point) in self.found else 0
            yield point

    def _changed(self, point: Point) -> Point:
        """One to four parameters drawn again, or a group of parameters that belong together."""
        if self._random.random() < 0.25:
            return self._drawn(self._random.choice((LAYOUT, MEMORY_TRADES, EXCHANGE)), point)
        names = [parameter.name for parameter in self._parameters if len(parameter.choices) > 1]
        return self._drawn(self._random.sample(names, min(len(names), self._random.choice((1, 1, 2, 2, 3, 4)))), point)

    def _drawn(self, names: Iterable[str], point: Mapping[str, Value]) -> Point:
        chosen = set(names)
        drawn = {item.name: self._random.choice(item.choices) for item in self._parameters if item.name in chosen}
        return {**point, **drawn}

    def _completed(self, given: Mapping[str, Value]) -> Point:
        """A point of the space: without what does not exist there, and with what does, drawn."""
        point: Point = {}
        for item in self._parameters:
            if item.active(point):
                point[item.name] = given[item.name] if item.name in given else self._random.choice(item.choices)
        return point

    def _singles(self, point: Point) -> Iterator[Point]:
        for parameter in self._parameters:
            yield from variants(self._parameters, point, (parameter.name,))

    def _polish(self) -> None:
        """Changes of one parameter of the best point, then of two, from each better one again until none is."""
        if not self._elite:
            return
        best = None
        while best is not self._elite[0] and not self._spent(POLISH_SHARE):
            best = self._elite[0]
            self.look(self._singles(best.point), POLISH_SHARE)
            if self._elite[0] is best:
                self.look(self._pairs(best), POLISH_SHARE)

    def _pairs(self, best: T) -> Iterator[Point]:
        names = [parameter.name for parameter in self._parameters if len(parameter.choices) > 1]
        pairs = [(one, other) for index, one in enumerate(names) for other in names[index + 1 :]]
        self._random.shuffle(pairs)
        for pair in pairs:
            if self._elite[0] is not best:
                return
            yield from variants(self._parameters, best.point, pair)


def variants(parameters: Sequence[Parameter], point: Point, free: Sequence[str]) -> Iterator[Point]:
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
