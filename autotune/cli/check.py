"""``autotune check``."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from autotune.cli import options, prediction
from autotune.cli.assignments import assigned, read_settings, versions
from autotune.cli.tables import settings_text, terminal_width, wrapped
from autotune.constraint.check import check, warnings
from autotune.constraint.rule import Violation, candidate
from autotune.request import TuneRequest, load_request
from autotune.space.guide import load_guide, usual_sms
from autotune_policies.settings import FLEX_DISPATCHERS, Settings

_ASSUMED_SMS = 16
"""SMs of a dispatcher about which neither the guide nor the space says anything."""


@click.command("check")
@options.model
@options.cluster
@click.option("--gpus", type=int, metavar="N", help="GPUs; on a CPU, ranks. Default: the model file's.")
@options.trial
@click.option(
    "--set", "assignments", multiple=True, metavar="KEY=VALUE",
    help="A setting, its value as in YAML or as plan prints it (a,b is a list, none is nothing). Others are as in the "
    "baseline; what exists only beside a setting that was given takes its library's usual start (num_sms: DeepEP 20, "
    "HybridEP 16), else its first choice in the space.",
)  # fmt: skip
@click.option(
    "--settings", "file", type=click.Path(path_type=Path), metavar="FILE",
    help="Settings from a JSON or YAML file, e.g. an entry's settings of plan --json; --set comes on top.",
)  # fmt: skip
@click.option(
    "--stack", "stack", multiple=True, metavar="NAME=VERSION",
    help="A version, e.g. megatron_core=0.19.2; with any of these, what is not named is not installed. "
    "Default: not known, and rules that ask for a version hold back.",
)  # fmt: skip
@options.as_json
def command(
    model: str,
    cluster: str,
    gpus: int | None,
    trial: str | None,
    assignments: Sequence[str],
    file: Path | None,
    stack: Sequence[str],
    as_json: bool,
) -> int:
    """Whether settings are legal for a model on a cluster, whether they fit into memory, and why not.

    Predicts time and memory by part, whether or not they are legal, and says which settings it judged. The exit status
    is 0 when they are legal, 1 when a rule refuses them, 2 when the request itself is wrong.
    """
    request = load_request(model, cluster, gpus=gpus, trial=trial)
    given = {**(read_settings(file) if file else {}), **assigned(assignments)}
    settings = complete_settings(request, given)
    judged = candidate(request, settings, versions(stack) or None)
    broken, doubts, found = check(judged), warnings(judged), prediction.predict(request, settings)
    baseline = request.settings(request.space.baseline)
    changed = {name: value for name, value in settings.items() if baseline[name] != value}
    if as_json:
        document: dict[str, Any] = {
            "legal": not broken,
            "violations": [asdict(violation) for violation in broken],
            "warnings": [asdict(doubt) for doubt in doubts],
            **prediction.document(found),
            "other_than_baseline": changed,
        }
        print(json.dumps(document))
    else:
        lines = [*_verdict(broken, doubts), f"judged, other than the baseline: {settings_text(changed) or 'nothing'}"]
        if found.time is not None or found.memory is not None:
            lines.append("predicted, not measured:")
        print("\n".join(wrapped([*lines, *prediction.lines(found)], terminal_width())))
    return 1 if broken else 0


def complete_settings(request: TuneRequest, given: Settings) -> Settings:
    """The baseline with the given settings put in; conditional parameters come and go with their conditions."""
    point = {**request.space.baseline, **given}
    dispatcher = str(point.get("dispatcher", request.space.fixed.get("dispatcher", "alltoall")))
    for parameter in request.space.parameters:
        if parameter.name in given:
            continue
        if not parameter.active(point):
            point.pop(parameter.name, None)
        elif parameter.name == "num_sms" and "num_sms" not in point:
            point["num_sms"] = usual_sms(load_guide(), dispatcher) or parameter.choices[0]
        else:
            point.setdefault(parameter.name, parameter.choices[0])
    if dispatcher in FLEX_DISPATCHERS and not {"num_sms"} & (point.keys() | request.space.fixed.keys()):
        # A dispatcher that is not searched here is judged with SMs all the same, by the rules that exclude it.
        point["num_sms"] = usual_sms(load_guide(), dispatcher) or _ASSUMED_SMS
    return request.settings(point)


def _verdict(broken: Sequence[Violation], doubts: Sequence[Violation]) -> list[str]:
    return [
        f"not legal: {len(broken)} rule{'s' * (len(broken) > 1)} broken" if broken else "legal",
        *(f"  {found.rule}{' (suspect)' * (found.certainty == 'suspect')}: {found.message}" for found in broken),
        *(f"  warning {doubt.rule}: {doubt.message}" for doubt in doubts),
    ]
