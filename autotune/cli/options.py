"""Options that several commands share."""

import math
from pathlib import Path
from typing import Any

import click

from autotune.space.files import TRIAL_KINDS


class FiniteRange(click.FloatRange):
    """A number within bounds; click's own lets NaN through, which lies within none."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number; fails as click does for one that is infinite or no number."""
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number", param, ctx)
        return number


model = click.option(
    "--model", required=True, metavar="NAME|FILE", help="Model: a known name (autotune spaces list) or a file."
)
cluster = click.option("--cluster", required=True, metavar="NAME|FILE", help="Cluster: a known name or a file.")
trial = click.option(
    "--trial", type=click.Choice(TRIAL_KINDS), help="Kind of trial program. Default: the model file's."
)
home = click.option(
    "--home", type=click.Path(path_type=Path), metavar="DIR",
    help="Folder of studies. Default: $AUTOTUNE_HOME or ~/.autotune.",
)  # fmt: skip
as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON on stdout.")
