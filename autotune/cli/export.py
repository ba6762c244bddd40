"""``autotune export``."""

from dataclasses import replace
from pathlib import Path

import click

from autotune.cli import options
from autotune.errors import RequestError, RunError
from autotune.export.policy import write_policy
from autotune.export.result import choose_policy
from autotune.request import SELECTS, stored_request
from autotune.search.study import Study


@click.command("export")
@click.argument("study")
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), required=True, metavar="FILE", help="Policy file to write."
)
@click.option("--select", type=click.Choice(SELECTS), help="Which member of the front. Default: the study's own.")
@options.home
def command(study: str, output: Path, select: str | None, home: Path | None) -> None:
    """Write a policy of a study again: its fastest, its leanest, or its most balanced trial."""
    if output.is_dir():
        raise RequestError(f"output {output} is a folder, expected a file", hint=f"-o {output / 'policy.yaml'}")
    request = stored_request(study, home)
    if select is not None:
        request = replace(request, select=select)  # type: ignore[arg-type]
    opened = Study(request, create=False)
    policy = choose_policy(request, opened.outcomes(), opened.surroundings)
    if policy is None:
        raise RunError(f"no trial of study {study!r} completed, so there is no policy", hint=f"autotune status {study}")
    try:
        write_policy(output, policy)
    except OSError as error:
        raise RequestError(
            f"output {output} cannot be written: {error.strerror}", hint="name a file in a folder that you may write to"
        ) from error
    print(output)
