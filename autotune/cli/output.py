"""How commands print the result of a study."""

import json
import shlex
import shutil
import sys

from autotune.export.result import Result
from autotune.monitor.table import render_result


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
                width=min(140, max(80, shutil.get_terminal_size((110, 0)).columns)),
                color=sys.stdout.isatty(),
            )
        )
    if result.policy is None:
        print(f"error: no trial of study {request.study!r} completed, so there is no policy", file=sys.stderr)
        print(f"hint: what each trial printed is in {request.folder / 'trials'}", file=sys.stderr)
        return 1
    if not as_json:
        policy = shlex.quote(str(result.policy))
        train = f"python -m autotune_trials.train --policy {policy}"
        print(f"policy: {result.policy}\ntrain with it: autotune policy exec {policy} -- {train}")
    return 0
