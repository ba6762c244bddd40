"""``autotune list``."""

import json
from pathlib import Path

import click

from autotune.cli import options
from autotune.request import home_folder, studies


@click.command("list")
@options.home
@options.as_json
def command(home: Path | None, as_json: bool) -> None:
    """The studies in the folder of studies, and whether each has a policy."""
    folder = home_folder(home)
    found = [{"study": name, "policy": _policy(folder / name)} for name in studies(folder)]
    if as_json:
        print(json.dumps(found))
        return
    for row in found:
        print(f"{row['study']}  {row['policy'] or 'no policy yet'}")


def _policy(folder: Path) -> str | None:
    path = folder / "policy.yaml"
    return str(path) if path.exists() else None
