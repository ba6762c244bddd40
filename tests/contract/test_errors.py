"""The trees of errors in the docstrings are the classes."""

import importlib
import inspect
import re

import pytest

from autotune.errors import AutotuneError


def tree_in(docstring):
    """Class name -> (name of the class above it, text) of a drawn tree; the root has None above it."""
    above, parents = {}, {}
    for line in docstring.splitlines():
        found = re.match(r"^([ |`-]{4,})([A-Z]\w+)\s{2,}(\S.*)$", line)
        if found:
            depth = len(found.group(1))
            above[depth] = found.group(2)
            higher = max((other for other in above if other < depth), default=None)
            parents[found.group(2)] = (None if higher is None else above[higher], found.group(3))
            above = {other: name for other, name in above.items() if other <= depth}
    return parents


@pytest.mark.parametrize("name", ["autotune.errors", "autotune_policies.errors"])
def test_the_drawn_tree_is_the_real_one(name):
    module = importlib.import_module(name)
    classes = [item for _, item in inspect.getmembers(module, inspect.isclass) if item.__module__ == name]
    names = {item.__name__ for item in classes}
    real = {item.__name__: base if (base := item.__base__.__name__) in names else None for item in classes}
    assert {child: parent for child, (parent, _) in tree_in(module.__doc__).items()} == real
    assert list(real.values()).count(None) == 1


def test_the_drawn_exit_statuses_are_the_real_ones():
    module = importlib.import_module("autotune.errors")
    drawn = {name: re.search(r"exit status (\d+)", text) for name, (_, text) in tree_in(module.__doc__).items()}
    told = {name: int(found.group(1)) for name, found in drawn.items() if found}
    assert len(told) >= 4
    assert {name: getattr(module, name).exit_status for name in told} == told


def test_every_error_carries_one_line_and_a_hint():
    error = AutotuneError("trials must be at least 1, but got 0", hint="--trials 12")
    assert str(error) == error.message == "trials must be at least 1, but got 0"
    assert error.hint == "--trials 12"


def test_the_reader_of_trees_sees_depth():
    drawn = "    Top      a\n    |-- Left     b\n    |   `-- Under    c\n    `-- Right    d\n"
    assert {name: parent for name, (parent, _) in tree_in(drawn).items()} == {
        "Top": None, "Left": "Top", "Under": "Left", "Right": "Top"
    }  # fmt: skip
