"""Shapes, rows and settings that the prediction tests share."""

import csv
import functools
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from autotune.errors import AutotuneError
from autotune.predict import table as tables
from autotune.predict.placement import Placed, place
from autotune_trials.spec import ModelShape, model_from

ROOT = Path(__file__).parents[3]


def read_table(name: str) -> list[dict[str, str]]:
    """Rows of a table in tests/data."""
    with (ROOT / "tests" / "data" / name).open() as lines:
        return list(csv.DictReader((line for line in lines if not line.startswith("#")), delimiter="\t"))


@pytest.fixture(scope="session")
def table() -> Callable[[str], list[dict[str, str]]]:
    return read_table


@pytest.fixture(scope="session")
def shape() -> Callable[[str], ModelShape]:
    """A shipped model's shape by name."""

    @functools.cache
    def load(name: str) -> ModelShape:
        document = yaml.safe_load((ROOT / "search_spaces" / "models" / f"{name}.yaml").read_text())
        return model_from({"name": name, **document["shape"]})

    return load


@functools.cache
def _placed(name: str) -> tuple[tuple[tables.TableRow, Placed], ...]:
    table = tables.read_table(ROOT / "tests" / "data" / name)
    found = []
    for row in table.rows:
        try:
            found.append((row, place(row, table)))
        except AutotuneError:  # the tables of the scores say which rows have no place, and why
            continue
    return tuple(found)


@pytest.fixture(scope="session")
def placed() -> Callable[[str], tuple[tuple[tables.TableRow, Placed], ...]]:
    """Rows of a table in tests/data as ``autotune predict --table`` places them; there is no other placing of rows."""
    return _placed
