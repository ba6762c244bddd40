"""``autotune export``."""

from dataclasses import replace
from pathlib import Path

import click

from autotune.cli import options
from autotune.cli.output import writing
from autotune.errors import RequestError, RunError
from autotune.export.policy import write_policy
from autotune.export.result import choose_policy, write_record
from autotune.request import SELECTS, stored_request
from autotune.search.study import Study


@click.command("export")
@click.argument("study")
@click.option("-o", "--output", type=click.Path(path_type=Path), metavar="FILE", help="Policy file to write.")
@click.option(
    "--record", type=click.Path(file_okay=False, path_type=Path), metavar="DIR",
    help="Folder for the policy and the record behind it, as text for a review.",
)  # fmt: skip
@click.option("--select", type=click.Choice(SELECTS), help="Which member of the front. Default: the study's own.")
@options.home
def command(study: str, output: Path | None, record: Path | None, select: str | None, home: Path | None) -> None:
    """Write a policy of a study again: its fastest, its leanest, or its most balanced trial."""
    if output is None and record is None:
        raise RequestError("say where to: -o FILE, --record DIR or both", hint="autotune export --help")
    if output is not None and output.is_dir():
        raise RequestError(f"output {output} is a folder, expected a file", hint=f"-o {output / 'policy.yaml'}")
    request = stored_request(study, home)
    if select is not None:
        request = replace(request, select=select)  # type: ignore[arg-type]
    opened = Study(request, create=False)
    policy = choose_policy(request, opened.outcomes(), opened.surroundings)
    if policy is None:
        raise RunError(f"no trial of study {study!r} completed, so there is no policy", hint=f"autotune status {study}")
    if output is not None:
        with writing("output", output):
            write_policy(output, policy)
        print(output)
    if record is not None:
        assert opened.surroundings is not None  # else nothing had completed
        with writing("record", record):
            write_record(record, request, opened.outcomes(), opened.surroundings, policy)
        print(record)
