"""``autotune status``."""

import json
from pathlib import Path

import click

from autotune.cli import options
from autotune.export.report import gpu_hours, summary
from autotune.export.result import best_of
from autotune.measure.outcome import TrialState
from autotune.monitor.progress import short
from autotune.request import stored_request
from autotune.search.study import Study


@click.command("status")
@click.argument("study")
@options.home
@options.as_json
def command(study: str, home: Path | None, as_json: bool) -> None:
    """How a study stands: trials by state, and the best so far. It may be running at the same time."""
    request = stored_request(study, home)
    opened = Study(request, create=False)
    outcomes, policy = opened.outcomes(), request.folder / "policy.yaml"
    best, winner = best_of(request, outcomes)
    document = summary(
        study=study, model=request.model, cluster=request.cluster.name,
        state="finished" if opened.launched() >= request.trials else "unfinished", outcomes=outcomes, front=best,
        winner=winner, policy=str(policy) if policy.exists() else None,
        gpu_hours=gpu_hours(outcomes), wall_s=0.0,
    )  # fmt: skip
    if as_json:
        print(json.dumps(document))
        return
    launched = f"{opened.launched()} of {request.trials} trials launched"
    states = ", ".join(f"{count} {state}" for state, count in document["counts"].items())
    print(f"{study}: {document['state']}, {launched}" + (f" ({states})" if states else ""))
    for outcome in outcomes:
        if outcome.state is TrialState.COMPLETE and outcome in best:
            print(
                f"  front: trial {outcome.trial:04d}  {outcome.tokens_per_s_per_gpu:.1f} tokens/s/GPU  "
                f"{(outcome.peak_memory_bytes or 0) / 2**20:.1f} MiB  {short(outcome.settings)}"
            )
    if document["policy"]:
        print(f"policy: {document['policy']}")
