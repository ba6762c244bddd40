"""How commands print the result of a study."""

import json
import shlex
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from autotune.errors import RequestError
from autotune.export.confirmed import sentences
from autotune.export.result import Result
from autotune.measure.matched import fastest_pairs
from autotune.measure.outcome import TrialState
from autotune.monitor.table import render_result


@contextmanager
def writing(what: str, path: Path) -> Iterator[None]:
    """A file that the user named and the machine refuses is the user's to change.

    Raises:
        RequestError: instead of the OSError; names the file.
    """
    try:
        yield
    except OSError as error:
        raise RequestError(
            f"{what} {path} cannot be written: {error.strerror}", hint="name a file in a folder that you may write to"
        ) from error


def print_result(result: Result, as_json: bool) -> int:
    """Print a result on stdout, as a table or as JSON; the exit status says whether there is a policy."""
    request = result.request
    if as_json:
        print(json.dumps(result.summary))
    else:
        print(
            render_result(
                study=request.study,
                cluster=request.cluster.name,
                contract=request.contract,
                gang=request.gang,
                outcomes=result.outcomes,
                front=result.front,
                winner=result.winner,
                baseline=result.baseline,
                findings=_findings(result),
                repeats=result.confirmation.repeats if result.confirmation else 0,
                width=min(140, max(80, shutil.get_terminal_size((110, 0)).columns)),
                color=sys.stdout.isatty(),
            )
        )
    if result.policy is None:
        print(f"error: {_why_no_policy(result)}", file=sys.stderr)
        print(f"hint: what each trial printed is in {request.folder / 'trials'}", file=sys.stderr)
        return 1
    if not as_json:
        policy = shlex.quote(str(result.policy))
        train = f"python -m autotune_trials.train --policy {policy}"
        print(f"policy: {result.policy}\ntrain with it: autotune policy exec {policy} -- {train}")
    return 0


def _findings(result: Result) -> list[str]:
    confirmed = sentences(result.confirmation) if result.confirmation else []
    return [*confirmed, *(pair.sentence() for pair in fastest_pairs(result.outcomes))]


def _why_no_policy(result: Result) -> str:
    request = result.request
    complete = sum(outcome.state is TrialState.COMPLETE for outcome in result.outcomes)
    if complete and request.memory_limit_bytes is not None:
        limit_gib = request.memory_limit_bytes / 2**30
        return f"none of the {complete} completed trials of study {request.study!r} needs at most {limit_gib:.4g} GiB"
    return f"no trial of study {request.study!r} completed, so there is no policy"
