"""``autotune policy check``: is a policy still right?"""

import json
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from autotune.cli import options
from autotune.errors import InterruptionError, RequestError, RunError
from autotune.export.report import gpu_hours
from autotune.files import write_atomically
from autotune.measure.drift import CROSS_ALLOCATION_NOISE
from autotune.measure.outcome import TrialOutcome
from autotune.measure.recorded import Recorded, recorded_of, request_again
from autotune.measure.still_right import StillRight, judge_runs, judge_study, require_comparable
from autotune.request import TuneRequest, home_folder, load_request, stored_request
from autotune.search.warm import WarmStart, warm_start
from autotune.space.kinds import require_runnable
from autotune_policies.policy import load_policy
from autotune_trials.spec import TrialSpec

EXIT_STATUS = {"OK": 0, "GAIN": 0, "DRIFT": 1, "REGRESSION": 1}
"""For CI; 1 is also a run that failed, 2 a request that is wrong."""

_ORDER = ("policy", "runner_up", "runner_up", "policy")
"""So that a drift of the machine meets both alike."""


@click.command("check")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="FILE")
@click.option("--study", metavar="NAME", help="Judge by a stored study's trials; nothing is run.")
@click.option("--measure", is_flag=True, help="Run the policy's settings and its runner-up's again, in turns.")
@click.option("--cluster", metavar="NAME|FILE", help="With --measure: cluster. Default: the policy's.")
@click.option("--address", default="auto", show_default=True, metavar="auto|local|HOST:PORT", help="Which Ray cluster.")
@click.option(
    "--repeats", type=click.IntRange(1, 20), default=3, show_default=True, metavar="N",
    help="With --measure: rounds of policy, runner-up, runner-up, policy. Fewer lower the confidence.",
)  # fmt: skip
@click.option(
    "--tolerance", type=options.FiniteRange(0, 1), default=CROSS_ALLOCATION_NOISE, show_default=True, metavar="SHARE",
    help="Difference between two days or allocations that is no finding.",
)  # fmt: skip
@click.option("--retune", is_flag=True, help="After DRIFT or REGRESSION: search again, from the policy's settings.")
@click.option("--model", metavar="NAME|FILE", help="With --retune: model. Default: the policy's.")
@click.option("--trials", type=int, default=12, show_default=True, metavar="N", help="With --retune: trials at most.")
@options.home
@options.as_json
def command(
    file: Path, study: str | None, measure: bool, retune: bool, as_json: bool, home: Path | None, **asked: Any
) -> int:
    """Whether a policy is still right: OK, GAIN, DRIFT or REGRESSION.

    \b
    OK          no difference found, or none that matters (conclusive)  exit 0
    GAIN        faster than recorded beyond noise                       exit 0
    DRIFT       the runner-up is faster now                             exit 1
    REGRESSION  slower than recorded beyond noise                       exit 1
    (a run failed: exit 1; the request is wrong: exit 2; interrupted: exit 130)
    """  # noqa: D301 - click reads the backspace as "do not wrap"
    if measure == (study is not None):
        raise RequestError("say how to check: either --study NAME or --measure", hint="autotune policy check --help")
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return _check(file, study, retune, as_json, home, asked)
    except KeyboardInterrupt as error:
        raise InterruptionError("interrupted; nothing can be said yet", hint="the same command begins anew") from error
    finally:
        signal.signal(signal.SIGTERM, before)


def _check(file: Path, study: str | None, retune: bool, as_json: bool, home: Path | None, asked: dict[str, Any]) -> int:
    recorded = recorded_of(load_policy(file))
    search = _search_again(recorded, file, home, asked) if retune else None
    if study is not None:
        found, document = _by_study(recorded, study, home, asked["tolerance"])
    else:
        found, document = _by_measuring(recorded, home_folder(home) / "_checks", asked)
    document = {"policy": str(file), **document}
    if not as_json:
        _print(recorded, found)
    status = EXIT_STATUS[found.drift.verdict]
    if search is not None and status:
        document["retune"] = _retune(search, asked["address"])
        if not as_json:
            print(f"searched again: study {search.request.study}, policy {document['retune']['policy']}")
    if as_json:
        print(json.dumps(document))
    return status


def _by_study(recorded: Recorded, study: str, home: Path | None, tolerance: float) -> tuple[StillRight, dict[str, Any]]:
    from autotune.search.study import Study

    request = stored_request(study, home)
    opened = Study(request, create=False)
    if opened.surroundings is None:
        raise RequestError(f"study {study!r} has run nothing yet")
    found = judge_study(recorded, request, opened.surroundings, opened.outcomes(), tolerance=tolerance)
    return found, {"study": study, **_document(found)}


def _by_measuring(recorded: Recorded, home: Path, asked: dict[str, Any]) -> tuple[StillRight, dict[str, Any]]:
    request = request_again(recorded, cluster=asked["cluster"], home=home)
    require_runnable(
        request.program, request.shape,
        recipe=request.recipe, command=request.command, device=request.gang.device,
    )  # fmt: skip
    from autotune.monitor.progress import Progress
    from autotune.scheduling.environment import prepare

    prepare()
    from autotune.scheduling.remeasure import measure_in_turns

    specs = dict(_runs(recorded, request, asked["repeats"]))

    ended: list[TrialOutcome] = []  # with those that were lost or disturbed and run again
    with Progress(len(specs)) as progress:

        def on_end(outcome: TrialOutcome) -> None:
            ended.append(outcome)
            progress.ended(outcome)

        surroundings, outcomes = measure_in_turns(
            request,
            [spec for spec, _ in specs.values()],
            address=asked["address"],
            on_ready=lambda found: require_comparable(recorded, found),
            on_end=on_end,
        )
    by_name: dict[str, list[TrialOutcome]] = {"policy": [], "runner_up": []}
    for outcome in outcomes:
        by_name[specs[outcome.trial][1]].append(outcome)
    found = judge_runs(recorded, surroundings, by_name["policy"], by_name["runner_up"], tolerance=asked["tolerance"])
    runs = [
        {
            "run": specs[outcome.trial][1], "trial": outcome.trial, "state": outcome.state.value,
            "step_time_s": outcome.step_time_s, "peak_memory_bytes": outcome.peak_memory_bytes,
        }
        for outcome in outcomes
    ]  # fmt: skip
    document = {
        **_document(found), "runs": runs, "gpu_hours": gpu_hours(ended), "fingerprint": surroundings.fingerprint,
        "folder": str(request.folder),
    }  # fmt: skip
    write_atomically(request.folder / "check.json", json.dumps(document, indent=1).encode())
    return found, document


def _runs(recorded: Recorded, request: TuneRequest, repeats: int) -> Iterator[tuple[int, tuple[TrialSpec, str]]]:
    """Every run by its number: what to run, and whose settings these are."""
    names = [name for name in _ORDER * repeats if name == "policy" or recorded.runner_up is not None]
    for trial, name in enumerate(names):
        if name == "policy":
            yield trial, (replace(request.spec(trial, recorded.spec.settings), env=recorded.spec.env), name)
        else:
            assert recorded.runner_up is not None
            yield trial, (request.spec(trial, recorded.runner_up), name)


def _search_again(recorded: Recorded, file: Path, home: Path | None, asked: dict[str, Any]) -> WarmStart:
    """The warm search, as a request: what is wrong with it shows before anything is measured."""
    request = load_request(
        asked["model"] or recorded.spec.model.name,
        asked["cluster"] or recorded.cluster,
        gpus=recorded.spec.gang.world_size,
        trials=asked["trials"],
        study=f"{recorded.spec.study}-retune",
        home=home,
        routing=recorded.spec.contract.routing.source,
    )
    return warm_start(request, str(file.absolute()))


def _retune(search: WarmStart, address: str) -> dict[str, Any]:
    from autotune.monitor.progress import Progress
    from autotune.tune import tune

    request = search.request
    with Progress(request.trials) as progress:
        for line in search.dropped:
            progress.say(line)
        result = tune(request, address=address, progress=progress)
    if result.policy is None:
        raise RunError(f"no trial of study {request.study!r} completed, so there is no new policy")
    return result.summary


def _document(found: StillRight) -> dict[str, Any]:
    plain = found.to_dict()
    drift = plain.pop("drift")
    return {**drift, "reasons": list(drift["reasons"]), **plain}


def _print(recorded: Recorded, found: StillRight) -> None:
    drift = found.drift
    print(f"{drift.verdict}  ({f'confidence {drift.confidence:.1%}' if drift.conclusive else 'not conclusive'})")
    if not drift.conclusive:
        room = f"; a slow-down up to {drift.not_ruled_out:.3g} times cannot be excluded" if drift.not_ruled_out else ""
        print(f"no difference found{room}")
    print(f"step time {found.step_time_s:.4g} s; recorded {recorded.step_time.median_s:.4g} s")
    for line in (*found.drift.reasons, *found.notes):
        print(line)
