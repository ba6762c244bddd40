"""A whole run on this machine: Ray, gangs of real Megatron-Core training, Optuna, a policy, training with it."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from autotune.export.measurements import read_measurements
from autotune_policies import load_policy

from .conftest import Command

pytestmark = [pytest.mark.service, pytest.mark.trial]

Outcomes = Callable[[Path], dict[int, dict[str, Any]]]
Finished = tuple["subprocess.CompletedProcess[str]", dict[str, Any]]


@pytest.fixture(scope="module")
def finished(command: Command) -> Finished:
    run = command.run("start", "--model", "tiny-moe", "--cluster", "local", "--trials", "5", "--json")
    assert run.returncode == 0, run.stderr
    return run, json.loads(run.stdout)


def test_stdout_is_one_json_line_and_stderr_says_what_happens(finished: Finished) -> None:
    run, summary = finished

    assert run.stdout.count("\n") == 1
    assert summary["state"] == "finished"
    assert "ray dashboard: http://127.0.0.1:" in run.stderr
    assert "preflight: deepep is unavailable: ModuleNotFoundError" in run.stderr
    assert "Traceback" not in run.stderr


def test_backends_that_cannot_be_imported_get_one_trial_each_and_no_launch(
    command: Command, finished: Finished, outcomes: Outcomes
) -> None:
    counts = finished[1]["counts"]
    launched = outcomes(command.home / "tiny-moe-local")

    assert counts["UNAVAILABLE"] == 2
    assert len(launched) == 5
    assert sum(count for state, count in counts.items() if state not in ("UNAVAILABLE", "REFUSED")) == 5
    assert all(outcome["settings"]["dispatcher"] in ("alltoall", "allgather") for outcome in launched.values())


def test_no_configuration_ran_twice(command: Command, finished: Finished, outcomes: Outcomes) -> None:
    launched = outcomes(command.home / "tiny-moe-local").values()

    assert len({json.dumps(outcome["settings"], sort_keys=True) for outcome in launched}) == len(launched)


def test_what_was_asked_is_what_was_built(command: Command, finished: Finished, outcomes: Outcomes) -> None:
    complete = [o for o in outcomes(command.home / "tiny-moe-local").values() if o["state"] == "COMPLETE"]

    assert len(complete) >= 2
    for outcome in complete:
        built = outcome["resolved"]["settings"]
        assert built["dispatcher"] == outcome["settings"]["dispatcher"]
        assert {name: outcome["settings"][name] for name in built} == built


def test_alltoall_and_allgather_train_to_the_same_loss(
    command: Command, finished: Finished, outcomes: Outcomes
) -> None:
    launched = outcomes(command.home / "tiny-moe-local")
    first, second = launched[0], launched[1]

    assert (first["settings"]["dispatcher"], second["settings"]["dispatcher"]) == ("alltoall", "allgather")
    assert first["losses"] == pytest.approx(second["losses"], abs=1e-4)


def test_the_finalists_were_run_again_in_turns(command: Command, finished: Finished) -> None:
    run, summary = finished
    found = summary["confirmation"]
    first, second = [entry["trial"] for entry in found["finalists"]]
    policy = load_policy(Path(summary["policy"]))
    again = [int(line.split()[1]) for line in run.stderr.splitlines() if line.startswith("again ")]

    assert again[:4] == [first, second, second, first]
    assert len(again) == len(list((command.home / "tiny-moe-local").glob("confirm/*/*/*/outcome.json")))
    assert found["complete"]
    assert summary["best"]["trial"] in found["tie_set"]
    assert policy.evidence["step_time_s"]["repeats"] == found["repeats"] >= 2
    assert policy.evidence["step_time_s"]["median"] == summary["best"]["step_time_s"]


def test_the_policy_and_the_table_say_what_was_measured(command: Command, finished: Finished) -> None:
    summary = finished[1]
    folder = command.home / "tiny-moe-local"

    policy = load_policy(Path(summary["policy"]))
    rows = read_measurements(folder / "measurements.parquet")

    assert policy.evidence["kind"] == "measured"
    assert policy.settings == summary["best"]["settings"]
    assert sum(row["state"] == "COMPLETE" for row in rows) == summary["counts"]["COMPLETE"]
    assert len(rows) == sum(summary["counts"].values())


def test_a_finished_study_prints_its_result_again_without_running(command: Command, finished: Finished) -> None:
    again = command.run("start", "--model", "tiny-moe", "--cluster", "local", "--trials", "5", "--json")

    assert again.returncode == 0, again.stderr
    summary, first = json.loads(again.stdout), finished[1]
    assert summary["best"] == first["best"]
    assert summary["counts"] == first["counts"]
    assert "dashboard" not in again.stderr


def test_the_table_is_for_people(command: Command, finished: Finished) -> None:
    shown = command.run("start", "--model", "tiny-moe", "--cluster", "local", "--trials", "5")

    assert "Pareto front" in shown.stdout
    assert "deepep: ModuleNotFoundError: No module named 'deep_ep'" in shown.stdout
    assert "autotune policy exec" in shown.stdout


def test_another_contract_under_the_same_name_is_refused(command: Command, finished: Finished) -> None:
    run = command.run(
        "start", "--model", "tiny-moe", "--cluster", "local", "--trials", "5", "--routing", "forced_balance"
    )

    assert run.returncode == 2
    assert "holds contract.routing.source='natural', but this request has 'forced_balance'" in run.stderr
    assert "Traceback" not in run.stderr


def test_the_policy_trains_with_exactly_its_settings(command: Command, finished: Finished) -> None:
    policy = finished[1]["policy"]

    run = command.run(
        "policy",
        "exec",
        policy,
        "--",
        sys.executable,
        "-m",
        "autotune_trials.train",
        "--policy",
        policy,
        "--steps",
        "3",
    )

    assert run.returncode == 0, run.stderr
    report = json.loads(run.stdout.strip().splitlines()[-1])
    assert report["steps"] == 3
    settings = load_policy(Path(policy)).settings
    assert report["settings"]
    assert {name: settings[name] for name in report["settings"]} == report["settings"]


def test_status_and_export_read_the_study(command: Command, finished: Finished, tmp_path: Path) -> None:
    status = command.run("status", "tiny-moe-local", "--json")
    export = command.run("export", "tiny-moe-local", "--select", "memory", "-o", str(tmp_path / "lean.yaml"))

    assert json.loads(status.stdout)["counts"] == finished[1]["counts"]
    assert export.returncode == 0, export.stderr
    leanest = min(entry["peak_memory_bytes"] for entry in finished[1]["pareto"])
    assert load_policy(tmp_path / "lean.yaml").evidence["peak_memory_bytes"] == leanest


def test_nothing_is_left_running(command: Command, finished: Finished) -> None:
    assert command.wait_until_gone(15) == []
