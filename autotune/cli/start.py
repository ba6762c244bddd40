"""``autotune start``."""

import json
import sys
from dataclasses import asdict
from typing import Any

import click

from autotune.cli import options
from autotune.cli.output import print_result
from autotune.errors import RequestError
from autotune.request import SELECTS, TuneRequest, load_request
from autotune.search.proposal import require_legal_baseline
from autotune.search.warm import warm_start as warmed
from autotune.space.kinds import require_runnable


@click.command("start")
@options.model
@options.cluster
@options.trial
@click.option("--recipe", metavar="MODULE:FUNCTION", help="Recipe of a bridge trial. Default: the model file's.")
@click.option("--override", multiple=True, metavar="KEY=VALUE", help="Set on the recipe first; may be repeated.")
@click.option(
    "--command", metavar="WORDS",
    help="What a command trial runs, e.g. 'python pretrain_gpt.py --train-iters {steps} {arguments}'.",
)  # fmt: skip
@click.option("--gpus", type=int, metavar="N", help="GPUs per trial; on a CPU, ranks. Default: the model file's.")
@click.option("--trials", type=int, default=12, show_default=True, metavar="N", help="Launched trials at most.")
@click.option("--deadline", metavar="TIME", help="Launch nothing after so long, e.g. 45s, 90m, 2h.")
@click.option("--budget-gpu-hours", type=float, metavar="H", help="Launch nothing that would cost more in all.")
@click.option(
    "--pays-back-after", type=int, metavar="STEPS",
    help="Search on only while the expected gain pays for the next trial within so many steps of the training.",
)  # fmt: skip
@click.option(
    "--confirm", type=int, metavar="N",
    help="Runs of each finalist, in turns, before one is chosen; 0 = none. Default: the model file's.",
)  # fmt: skip
@click.option(
    "--profile/--no-profile", default=None,
    help="Run baseline and winner once more under a profiler, unscored. Default: where trials run on GPUs.",
)  # fmt: skip
@click.option(
    "--routing", metavar="SOURCE", help="Routing source: forced_balance or natural. Default: the model file's."
)
@click.option(
    "--memory-limit-gib", type=float, metavar="X", help="Peak memory per GPU above which a trial is infeasible."
)
@click.option(
    "--select", type=click.Choice(SELECTS), default="throughput", show_default=True,
    help="Which member of the Pareto front becomes the policy.",
)  # fmt: skip
@click.option("--study", metavar="NAME", help="Study name; the same name again resumes. Default: MODEL-CLUSTER.")
@options.home
@click.option("--storage", metavar="URL", help="Optuna storage. Default: sqlite in the study's folder.")
@click.option("--address", default="auto", show_default=True, metavar="auto|local|HOST:PORT", help="Which Ray cluster.")
@click.option(
    "--warm-start", metavar="POLICY|STUDY", help="Try a policy's settings first, or those of a study's policy."
)
@click.option(
    "--seed", type=click.IntRange(0, 2**32 - 1), default=0, show_default=True, metavar="INTEGER",
    help="Seed of the sampler.",
)  # fmt: skip
@click.option(
    "--probe-rules", type=float, default=0.0, show_default=True, metavar="SHARE",
    help="Share of the launches that may break rules which are only suspect.",
)  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Print the first trial and the shape of its gang; start nothing.")
@click.option("--json", "as_json", is_flag=True, help="Last line of stdout: the result as JSON.")
def command(address: str, dry_run: bool, as_json: bool, warm_start: str | None, **asked: Any) -> int:
    """Tune a model on a cluster: run trials, find the best settings, write a policy.

    The result is written to the study's folder as policy.yaml, with all measurements in measurements.parquet.
    """
    request = load_request(**asked)
    require_runnable(
        request.program, request.shape,
        recipe=request.recipe, command=request.command, device=request.gang.device,
    )  # fmt: skip
    require_legal_baseline(request)
    if asked["profile"] and request.program == "command":
        raise RequestError("--profile: a command trial cannot be profiled", hint="leave --profile out")
    if warm_start is not None:
        warm = warmed(request, warm_start)
        request = warm.request
        for line in warm.dropped:
            print(line, file=sys.stderr)
    if dry_run:
        print(json.dumps(_first_trial(request), indent=None if as_json else 1))
        return 0
    from autotune.monitor.progress import Progress
    from autotune.tune import tune

    with Progress(request.trials) as progress:
        result = tune(request, address=address, progress=progress)
    return print_result(result, as_json)


def _first_trial(request: TuneRequest) -> dict[str, Any]:
    """What the first launch would be: the baseline."""
    spec = request.spec(0, request.space.baseline)
    gang = {
        **asdict(spec.gang), "world_size": spec.gang.world_size, "accelerator": request.cluster.accelerator,
        "nvlink_domain_gpus": request.cluster.nvlink_domain_gpus,
    }  # fmt: skip
    return {"gang": gang, "first_trial": asdict(spec)}
