"""``autotune check``."""

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Any

import click

from autotune.cli import options
from autotune.constraint.check import check, warnings
from autotune.constraint.rule import Violation, candidate
from autotune.errors import RequestError
from autotune.predict.memory import predict_memory
from autotune.predict.time import predict_time
from autotune.request import TuneRequest, load_request
from autotune_policies.documents import read_document
from autotune_policies.errors import PolicyError
from autotune_policies.settings import SETTINGS, Settings, closest


@click.command("check")
@click.option(
    "--model", required=True, metavar="NAME|FILE", help="Model: a known name (autotune spaces list) or a file."
)
@click.option("--cluster", required=True, metavar="NAME|FILE", help="Cluster: a known name or a file.")
@click.option("--gpus", type=int, metavar="N", help="GPUs; on a CPU, ranks. Default: the model file's.")
@click.option(
    "--set", "assignments", multiple=True, metavar="KEY=VALUE",
    help="A setting, its value written as in YAML ([a, b] is a list); others are as in the model file's baseline.",
)  # fmt: skip
@click.option(
    "--stack", "versions", multiple=True, metavar="NAME=VERSION",
    help="A version, e.g. megatron_core=0.19.2; with any of these, what is not named is not installed. "
    "Default: not known, and rules that ask for a version hold back.",
)  # fmt: skip
@options.as_json
def command(
    model: str, cluster: str, gpus: int | None, assignments: Sequence[str], versions: Sequence[str], as_json: bool
) -> int:
    """Whether settings are legal for a model on a cluster, whether they fit into memory, and why not.

    The exit status is 0 when they are legal, 1 when a rule refuses them, 2 when the request itself is wrong.
    """
    request = load_request(model, cluster, gpus=gpus)
    settings = _settings(request, dict(_assignment(text) for text in assignments))
    judged = candidate(request, settings, dict(_version(text) for text in versions) or None)
    broken, doubts = check(judged), warnings(judged)
    document: dict[str, Any] = {
        "legal": not broken,
        "violations": [asdict(violation) for violation in broken],
        "warnings": [asdict(doubt) for doubt in doubts],
        **_predictions(request, settings),
    }
    if as_json:
        print(json.dumps(document))
    else:
        _print(document, broken, doubts)
    return 1 if broken else 0


def _settings(request: TuneRequest, given: Settings) -> Settings:
    """The baseline with the given settings put in; conditional parameters come and go with their conditions."""
    point = {**request.space.baseline, **given}
    for parameter in request.space.parameters:
        if parameter.name in given:
            continue
        if not parameter.active(point):
            point.pop(parameter.name, None)
        else:
            point.setdefault(parameter.name, parameter.choices[0])
    return request.settings(point)


def _assignment(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals:
        raise RequestError(f"--set {text!r} has no value", hint="write --set key=value")
    if name not in SETTINGS:
        raise RequestError(f"unknown setting {name!r}", hint=closest(name, SETTINGS))
    try:
        return name, read_document(value, f"--set {name}").value
    except PolicyError as error:
        raise RequestError(f"--set {name}={value}: not a YAML value", hint="quote what YAML reads otherwise") from error


def _version(text: str) -> tuple[str, str]:
    name, equals, version = text.partition("=")
    if not equals or not version:
        raise RequestError(f"--stack {text!r} has no version", hint="write --stack megatron_core=0.19.2")
    return name.replace("-", "_"), version


def _predictions(request: TuneRequest, settings: Settings) -> dict[str, Any]:
    """Predicted numbers; null where the models do not reach: a CPU, an unknown GPU, sizes that do not divide."""
    predicted: dict[str, Any] = {"peak_memory_bytes": None, "fits": None, "step_time_s": None}
    cluster, shape, contract = request.cluster, request.shape, request.contract
    if cluster.device != "cuda":
        return predicted
    with suppress(ValueError):
        memory = predict_memory(shape, contract, settings, request.gang, cluster)
        predicted["peak_memory_bytes"] = memory.peak_memory_bytes
        if cluster.gpu_memory_bytes is not None:
            predicted["fits"] = memory.fits(cluster.gpu_memory_bytes)
    with suppress(RequestError):
        time = predict_time(cluster, shape, contract, settings, request.gang.world_size)
        predicted["step_time_s"] = time.step_time_s
    return predicted


def _print(document: dict[str, Any], broken: Sequence[Violation], doubts: Sequence[Violation]) -> None:
    print("legal" if document["legal"] else f"not legal: {len(broken)} rule{'s' * (len(broken) > 1)} broken")
    for violation in broken:
        print(f"  {violation.rule}{' (suspect)' * (violation.certainty == 'suspect')}: {violation.message}")
    for doubt in doubts:
        print(f"  warning {doubt.rule}: {doubt.message}")
    peak, step = document["peak_memory_bytes"], document["step_time_s"]
    if peak is not None:
        fits = {True: ", fits", False: ", does not fit", None: ""}[document["fits"]]
        print(f"predicted peak memory: {peak / 2**30:.1f} GiB per GPU{fits}")
    if step is not None:
        print(f"predicted step time: {step:.3f} s")
