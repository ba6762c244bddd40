"""Options that several commands share."""

from pathlib import Path

import click

home = click.option(
    "--home", type=click.Path(path_type=Path), metavar="DIR",
    help="Folder of studies. Default: $AUTOTUNE_HOME or ~/.autotune.",
)  # fmt: skip
as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON on stdout.")
