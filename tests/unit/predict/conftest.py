"""Shapes, rows and settings that the prediction tests share."""

import csv
import functools
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

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
