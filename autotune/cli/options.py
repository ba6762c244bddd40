"""Options that several commands share."""

from pathlib import Path

import click

from autotune.space.files import TRIAL_KINDS

trial = click.option(
    "--trial", type=click.Choice(TRIAL_KINDS), help="Kind of trial program. Default: the model file's."
)
home = click.option(
    "--home", type=click.Path(path_type=Path), metavar="DIR",
    help="Folder of studies. Default: $AUTOTUNE_HOME or ~/.autotune.",
)  # fmt: skip
as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON on stdout.")
