"""``autotune policy check``: the request, the document, the exit status; nothing is launched here."""

import json
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from autotune.cli.main import main
from autotune.export.policy import write_policy
from autotune.export.result import choose_policy
from autotune.files import write_atomically
from autotune.measure.outcome import TrialOutcome, TrialState
from autotune.measure.surroundings import Surroundings
from autotune.predict.table import read_table
from autotune.request import TuneRequest, load_request, stored_request
from autotune.search.study import Study
from autotune_policies.__main__ import main as policy_main
from autotune_policies.policy import load_policy
from autotune_trials.spec import TrialSpec

POLICY = Path(__file__).parents[2] / "golden" / "export" / "policy.yaml"
HERE = Surroundings("stack-a", {"torch": "2.13.0", "megatron_core": "0.16.1"}, {"deepep": "no", "hybridep": "no"})

Check = Callable[..., tuple[int, str, str]]


@pytest.fixture
def check(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Check:
    monkeypatch.setenv("AUTOTUNE_HOME", str(tmp_path / "home"))

    def run(*arguments: object) -> tuple[int, str, str]:
        status = main(["policy", "check", *map(str, arguments)])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run


def outcome_of(spec: TrialSpec, step_time_s: float) -> TrialOutcome:
    steps = [step_time_s * (1 + (index % 3 - 1) / 1000) for index in range(7)]
    return TrialOutcome(
        spec.trial, TrialState.COMPLETE, spec.settings, step_time_s=step_time_s, peak_memory_bytes=1_000_000,
        tokens_per_s_per_gpu=1 / step_time_s, step_times_s=[9.0] * 3 + steps, steps_used=7, losses=[1.0], loss=1.0,
        resolved={"settings": dict(spec.settings)}, gpu_s=36.0,
    )  # fmt: skip


@pytest.fixture
def study(tmp_path: Path) -> tuple[Study, TuneRequest, Path]:
    """A study of three trials, the first of which is the fastest, and its policy."""
    request = load_request("tiny-moe", "local", home=tmp_path / "home", study="s")
    write_atomically(request.folder / "request.yaml", request.to_yaml().encode())
    opened = Study(request)
    opened.enter(HERE)
    for step_time_s in (1.0, 1.5, 2.0):
        tell(opened, request, step_time_s)
    policy = choose_policy(request, opened.outcomes(), HERE)
    assert policy is not None
    write_policy(tmp_path / "p.yaml", policy)
    return opened, request, tmp_path / "p.yaml"


def tell(study: Study, request: TuneRequest, step_time_s: float) -> None:
    proposal = study.next()
    assert proposal is not None
    study.tell(outcome_of(request.spec(proposal.trial, proposal.point), step_time_s))


@pytest.mark.parametrize(
    ("arguments", "error", "hint"),
    [
        ((POLICY,), "say how to check: either --study NAME or --measure", "autotune policy check --help"),
        ((POLICY, "--study", "s", "--measure"), "either --study NAME or --measure", "autotune policy check --help"),
        (("no.yaml", "--measure"), "'no.yaml' does not exist", "autotune policy check --help"),
        ((POLICY, "--measur"), "no such option '--measur'", "autotune policy check --help"),
        ((POLICY, "--measure", "--repeats", "0"), "0 is not in the range 1<=x<=20", "autotune policy check --help"),
        ((POLICY, "--measure", "--cluster", "gb30"), "gb30", "did you mean gb300"),
        ((POLICY, "--study", "nothing"), "no study 'nothing'", "there are none yet"),
    ],
)
def test_a_wrong_request_is_one_line_and_a_hint(
    check: Check, arguments: Sequence[object], error: str, hint: str
) -> None:
    status, out, talk = check(*arguments)
    assert (status, out) == (2, "")
    first, second = talk.splitlines()
    assert first.startswith("error: ")
    assert error in first
    assert second.startswith("hint: ")
    assert hint in second


def test_what_is_no_policy_is_said_with_its_line(check: Check, tmp_path: Path) -> None:
    path = tmp_path / "broken.yaml"
    path.write_text("schema: autotune.policy/v0\n")
    status, out, talk = check(path, "--measure")
    assert (status, out) == (2, "")
    assert talk.startswith(f"error: {path}:1: schema is")


def test_by_study(check: Check, study: tuple[Study, TuneRequest, Path]) -> None:
    opened, request, policy = study
    status, out, talk = check(policy, "--study", "s", "--json")
    assert (status, talk, out.count("\n")) == (0, "", 1)
    document = json.loads(out)
    assert (document["verdict"], document["study"], document["new_epoch"]) == ("OK", "s", False)
    assert document["confidence"] >= 0.95
    assert document["runner_up"]["value"] == pytest.approx(1 / 1.5, rel=0.01)

    tell(opened, request, 0.5)
    status, out, _ = check(policy, "--study", "s")
    assert status == 1
    assert out.startswith("DRIFT  (confidence 95.0%)\nstep time 1 s; recorded 1 s\n")


def lost(outcome: TrialOutcome) -> TrialOutcome:
    return replace(outcome, state=TrialState.LOST, step_time_s=None)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """A machine whose step times are given: ``policy`` and ``runner_up`` in seconds."""
    settings = {"policy": 0.3, "runner_up": 0.4, "fingerprint": load_policy(POLICY).evidence["fingerprint"]}
    record: dict[str, Any] = {**settings, "specs": [], "lost": 0}
    before = signal.getsignal(signal.SIGTERM)

    def measure_in_turns(
        request: TuneRequest, specs: Sequence[TrialSpec], *, address: str, on_ready: Any, on_end: Any
    ) -> tuple[Surroundings, list[TrialOutcome]]:
        found = Surroundings(record["fingerprint"], load_policy(POLICY).evidence["stack"], {})
        on_ready(found)
        record["specs"], record["address"] = list(specs), address
        ours = load_policy(POLICY).settings
        outcomes = [outcome_of(one, record["policy" if one.settings == ours else "runner_up"]) for one in specs]
        for outcome in outcomes:
            for attempt in (*[lost(outcome)] * record["lost"], outcome):
                on_end(attempt)
        return found, outcomes

    module = SimpleNamespace(measure_in_turns=measure_in_turns)
    monkeypatch.setitem(sys.modules, "autotune.scheduling.remeasure", module)  # type: ignore[arg-type]
    yield record
    signal.signal(signal.SIGTERM, before)


def test_runs_that_were_lost_cost_too(check: Check, machine: dict[str, Any]) -> None:
    machine["lost"] = 1
    status, out, _ = check(POLICY, "--measure", "--repeats", "2", "--json", "--address", "local")
    assert status == 0
    assert json.loads(out)["gpu_hours"] == pytest.approx(2 * 0.08)


def test_by_measuring(check: Check, machine: dict[str, Any]) -> None:
    status, out, talk = check(POLICY, "--measure", "--repeats", "2", "--json", "--address", "local")
    assert (status, out.count("\n")) == (0, 1)
    document = json.loads(out)
    assert document["verdict"] == "OK"
    assert [run["run"] for run in document["runs"]] == ["policy", "runner_up", "runner_up", "policy"] * 2
    assert json.loads((Path(document["folder"]) / "check.json").read_text())["verdict"] == "OK"
    assert document["gpu_hours"] == pytest.approx(0.08)
    assert talk.count("COMPLETE") == 8

    policy = load_policy(POLICY)
    first, second = machine["specs"][:2]
    assert (first.settings, first.env) == (policy.settings, policy.env)
    assert second.settings == policy.alternatives[0]["settings"]
    assert {(spec.contract, spec.gang, spec.model) for spec in machine["specs"]} == {
        (first.contract, first.gang, first.model)
    }
    assert machine["address"] == "local"


@pytest.mark.parametrize(
    ("policy_s", "runner_up_s", "verdict", "status"),
    [(0.3, 0.4, "OK", 0), (0.2, 0.4, "GAIN", 0), (0.3, 0.2, "DRIFT", 1), (0.6, 0.7, "REGRESSION", 1)],
)
def test_the_exit_status(
    check: Check, machine: dict[str, Any], policy_s: float, runner_up_s: float, verdict: str, status: int
) -> None:
    machine.update(policy=policy_s, runner_up=runner_up_s)
    found, out, _ = check(POLICY, "--measure")
    assert found == status
    assert out.startswith(f"{verdict}  (confidence ")


def test_an_interruption_is_one_line(check: Check, machine: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(sys.modules["autotune.scheduling.remeasure"], "measure_in_turns", interrupted)
    status, out, talk = check(POLICY, "--measure")
    assert (status, out) == (130, ""), "1 would be the answer DRIFT"
    assert talk == "error: interrupted; nothing can be said yet\nhint: the same command begins anew\n"


def test_a_termination_is_told_as_an_interruption(
    check: Check, machine: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def terminated(*_: Any, **__: Any) -> None:
        signal.raise_signal(signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(sys.modules["autotune.scheduling.remeasure"], "measure_in_turns", terminated)
    status, out, talk = check(POLICY, "--measure")
    assert (status, out, talk.splitlines()[0]) == (130, "", "error: interrupted; nothing can be said yet")
    assert signal.getsignal(signal.SIGTERM) == before


@pytest.mark.parametrize("number", ["nan", "inf", "-1"])
def test_a_tolerance_is_a_share(check: Check, number: str) -> None:
    status, out, talk = check(POLICY, "--measure", f"--tolerance={number}")
    assert (status, out) == (2, "")
    assert talk.startswith("error: ")
    assert number in talk.splitlines()[0]


def test_runs_that_scatter_are_no_confidence(
    check: Check, machine: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    even = sys.modules["autotune.scheduling.remeasure"].measure_in_turns

    def scattered(request: TuneRequest, specs: Sequence[TrialSpec], **rest: Any) -> Any:
        found, _ = even(request, specs, **rest)
        return found, [outcome_of(one, 0.3 if one.trial % 4 < 2 else 0.6) for one in specs]

    monkeypatch.setattr(sys.modules["autotune.scheduling.remeasure"], "measure_in_turns", scattered)
    status, out, _ = check(POLICY, "--measure", "--json")
    document = json.loads(out)
    assert (status, document["verdict"], document["conclusive"], document["confidence"]) == (0, "OK", False, 0.0)
    assert document["not_ruled_out"] > 1.9

    status, out, _ = check(POLICY, "--measure")
    first, second, *_ = out.splitlines()
    assert (status, first) == (0, "OK  (not conclusive)")
    assert second.startswith("no difference found; a slow-down up to ")


def test_another_stack(check: Check, machine: dict[str, Any], tmp_path: Path) -> None:
    machine.update(fingerprint="other", policy=0.9, runner_up=1.0)
    status, out, _ = check(POLICY, "--measure", "--json")
    document = json.loads(out)
    assert (status, document["verdict"], document["new_epoch"], document["recorded"]) == (0, "OK", True, None)

    alone = tmp_path / "alone.yaml"
    policy = load_policy(POLICY)
    write_policy(alone, policy._replace(alternatives=[], fallback=None))
    machine["specs"] = []
    status, out, talk = check(alone, "--measure")
    assert (status, out, machine["specs"]) == (2, "", [])
    assert "without a runner-up" in talk


@pytest.fixture
def tuned(monkeypatch: pytest.MonkeyPatch) -> list[TuneRequest]:
    """Searches that were started instead of run."""
    started: list[TuneRequest] = []

    def tune(request: TuneRequest, *, address: str, progress: Any) -> Any:
        started.append(request)
        return SimpleNamespace(policy=Path("new.yaml"), summary={"study": request.study, "policy": "new.yaml"})

    monkeypatch.setattr("autotune.tune.tune", tune)
    return started


def test_retune_searches_from_the_policy_only_where_it_is_needed(
    check: Check, machine: dict[str, Any], tuned: list[TuneRequest]
) -> None:
    status, out, _ = check(POLICY, "--measure", "--retune", "--json")
    assert (status, tuned, "retune" in json.loads(out)) == (0, [], False)

    machine.update(policy=0.9)
    status, out, _ = check(POLICY, "--measure", "--retune", "--trials", "7", "--json")
    document = json.loads(out)
    assert (status, document["verdict"]) == (1, "DRIFT")
    assert document["retune"] == {"study": "tiny-moe-local-retune", "policy": "new.yaml"}
    [request] = tuned
    assert (request.trials, request.gang.world_size) == (7, 4)
    assert request.settings(request.space.seeds[0]) == load_policy(POLICY).settings


def test_a_retune_that_cannot_be_is_said_before_anything_runs(check: Check, machine: dict[str, Any]) -> None:
    status, out, talk = check(POLICY, "--measure", "--retune", "--model", "qwen3-30b", "--cluster", "h100")
    assert (status, out, machine["specs"]) == (2, "", [])
    assert talk.startswith("error: ")


def test_help_is_the_head_sides(check: Check, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = check("--help")
    assert status == 0
    assert out.startswith("Usage: autotune policy check [OPTIONS] FILE")
    assert main(["policy", "--help"]) == 0
    assert "still right" in capsys.readouterr().out


def test_the_policy_package_alone_says_where_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert policy_main(["check", "p.yaml", "--measure"], prog="python -m autotune_policies") == 2
    assert capsys.readouterr().err == (
        "error: check runs trials, which this command cannot\nhint: autotune policy check p.yaml --measure\n"
    )


def test_the_base_install_names_the_missing_extra(check: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "click", None)
    status, out, talk = check(POLICY, "--measure")
    assert (status, out) == (2, "")
    assert talk == "error: click is not installed\nhint: pip install 'moe-autotune[service]'\n"


def test_the_warm_start_of_a_study(capsys: pytest.CaptureFixture[str], study: tuple[Study, TuneRequest, Path]) -> None:
    _, request, policy = study
    home = str(request.home)
    words = ["start", "--model", "tiny-moe", "--cluster", "local", "--home", home, "--dry-run"]
    assert main([*words, "--study", "t", "--warm-start", str(policy)]) == 0
    assert main([*words, "--study", "t", "--warm-start", "nothing"]) == 2
    assert "neither a file nor a study" in capsys.readouterr().err
    assert main([*words, "--study", "s", "--warm-start", str(policy)]) == 2
    assert stored_request("s", request.home).space.seeds == request.space.seeds


def test_the_record_of_a_policy(
    capsys: pytest.CaptureFixture[str], study: tuple[Study, TuneRequest, Path], tmp_path: Path
) -> None:
    opened, request, _ = study
    folder = tmp_path / "record"
    assert main(["export", "s", "--home", str(request.home), "--record", str(folder)]) == 0
    assert capsys.readouterr().out == f"{folder}\n"
    assert sorted(path.name for path in folder.iterdir()) == ["measurements.tsv", "policy.yaml", "request.yaml"]
    rows = read_table(folder / "measurements.tsv").rows
    outcomes = opened.outcomes()
    assert [row.cells["state"] for row in rows] == [outcome.state.value for outcome in outcomes]
    assert [row.measured.get("step_time_s") for row in rows] == [outcome.step_time_s for outcome in outcomes]
    described = yaml.safe_load((folder / "request.yaml").read_text(encoding="utf-8"))
    assert described["contract"]["seq_length"] == request.contract.seq_length
    assert "asked" not in described, "what was typed may name folders of one machine"
    assert load_policy(folder / "policy.yaml").settings == outcomes[0].settings

    assert main(["export", "s", "--home", str(request.home)]) == 2
    assert "say where to" in capsys.readouterr().err
