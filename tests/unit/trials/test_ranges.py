"""Ranges put on the methods of built objects."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from autotune_trials.native.ranges import moe_layers, put_on, wrap

METHODS = (
    "dispatch_preprocess", "token_dispatch", "dispatch_postprocess",
    "combine_preprocess", "token_combine", "combine_postprocess",
)  # fmt: skip


class Dispatcher:
    """Each method adds its own name to the list that it is given."""

    def __getattr__(self, name: str) -> Any:
        if name not in METHODS:
            raise AttributeError(name)
        return lambda value: [*value, name]


class Experts:
    """Calls ``forward`` by its name, as a torch module does."""

    def __call__(self, *arguments: Any) -> Any:
        return self.forward(*arguments)

    def forward(self, tokens: int, per_expert: int) -> int:
        return tokens + per_expert


def chunk(*modules: Any) -> Any:
    return SimpleNamespace(modules=lambda: iter(modules))


def test_every_method_runs_inside_the_range_of_its_part_and_returns_what_it_did() -> None:
    seen: list[str] = []

    @contextmanager
    def named_range(name: str) -> Iterator[None]:
        seen.append(name.removeprefix("autotune:"))
        yield
        seen.append("end")

    layer = SimpleNamespace(experts=Experts(), token_dispatcher=Dispatcher())
    optimizer = SimpleNamespace(step=lambda: "stepped")
    trainer = SimpleNamespace(timed_step=lambda batches, more=0: (batches, more))

    put_on([chunk(object(), layer)], optimizer, named_range)
    wrap(trainer, "timed_step", "step", named_range)
    value: list[str] = []
    for method in METHODS:
        value = getattr(layer.token_dispatcher, method)(value)

    assert value == list(METHODS)
    assert layer.experts(3, 4) == 7
    assert optimizer.step() == "stepped"
    assert trainer.timed_step([1], more=2) == ([1], 2)
    parts = ["permute", "dispatch", "permute", "permute", "combine", "permute", "experts", "optimizer", "step"]
    assert seen == [word for part in parts for word in (part, "end")]


def test_other_objects_of_the_class_keep_their_own_method() -> None:
    wrapped, other = Experts(), Experts()
    layer = SimpleNamespace(experts=wrapped, token_dispatcher=Dispatcher())
    optimizer = SimpleNamespace(step=len)

    @contextmanager
    def refused(name: str) -> Iterator[None]:
        raise AssertionError(name)
        yield

    put_on([chunk(layer)], optimizer, refused)

    assert other(1, 2) == 3


def test_modules_without_a_dispatcher_are_no_moe_layers() -> None:
    dense, moe = SimpleNamespace(), SimpleNamespace(token_dispatcher=Dispatcher())

    assert moe_layers([chunk(dense), chunk(moe, SimpleNamespace(token_dispatcher=None))]) == [moe]
