"""``autotune check``: legal or not and why, what is predicted, and requests that are wrong."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from autotune.cli.main import main
from autotune_policies.settings import SETTINGS

GB300 = ("check", "--model", "dsv3", "--cluster", "gb300", "--gpus", "256")


def check(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    status = main([*GB300, "--json", *arguments])
    return status, json.loads(capsys.readouterr().out)


def test_the_baseline_is_legal_and_predicted(capsys: pytest.CaptureFixture[str]) -> None:
    status, document = check(capsys)

    assert status == 0
    assert document["legal"] is True
    assert document["violations"] == []
    assert 50e9 < document["peak_memory_bytes"] < 288e9
    assert document["fits"] is True
    assert document["step_time_s"] > 1


def test_what_is_not_legal_says_why_with_the_legal_values(capsys: pytest.CaptureFixture[str]) -> None:
    status, document = check(capsys, "--set", "expert_parallel=48")

    assert status == 1
    assert document["legal"] is False
    violation = next(found for found in document["violations"] if found["rule"] == "MC009")
    assert violation["amount"] > 0
    assert "48 does not divide num_experts = 256 (closest that do: 16, 32, 64)" in violation["message"]
    assert document["step_time_s"] is None  # sizes that do not divide have no time


def test_a_suspect_rule_is_marked(capsys: pytest.CaptureFixture[str]) -> None:
    status = main([*GB300, "--set", "dispatcher=deepep", "--set", "num_sms=20"])
    printed = capsys.readouterr().out

    assert status == 1
    assert printed.startswith("not legal: 1 rule broken\n  AT020 (suspect): dispatcher=deepep between nodes")


def test_lists_and_null_are_written_as_in_yaml(capsys: pytest.CaptureFixture[str]) -> None:
    modules = ("--set", "recompute_granularity=selective", "--set", "recompute_modules=[moe_act, mla_up_proj]")
    legal, _ = check(capsys, *modules)
    illegal, document = check(capsys, *modules, "--set", "cuda_graph_impl=none", "--set", "cuda_graph_modules=[attn]")
    null, _ = check(capsys, "--set", "recompute_granularity=null")

    assert (legal, illegal, null) == (0, 1, 0)
    assert [violation["rule"] for violation in document["violations"]] == ["MC128"]


def test_the_prediction_comes_by_part_with_its_error_and_what_was_judged(capsys: pytest.CaptureFixture[str]) -> None:
    _, document = check(capsys, "--set", "dispatcher=hybridep")

    assert sum(document["time_parts_s"].values()) == pytest.approx(document["step_time_s"])
    assert sum(document["memory_parts_bytes"].values()) == pytest.approx(document["peak_memory_bytes"], abs=1)
    assert document["bound"] in ("memory", "communication", "compute", "host")
    assert document["relief"]
    assert 0 < document["mfu"] < 1
    assert document["step_time_interval_s"][0] < document["step_time_s"] < document["step_time_interval_s"][1]
    assert document["fit"] == "fits"
    assert document["missing"] == []
    assert document["settings"]["num_sms"] == 16
    assert document["other_than_baseline"] == {"dispatcher": "hybridep", "num_sms": 16}

    main([*GB300, "--set", "dispatcher=hybridep"])
    printed = capsys.readouterr().out
    assert printed.startswith("legal\njudged, other than the baseline: dispatcher=hybridep num_sms=16\npredicted")
    for text in (
        "step time ",
        "MFU ",
        "grouped_gemm",
        "peak memory ",
        ": fits",
        "optimizer",
        "bound: ",
        "most uncertain",
    ):
        assert text in printed


@pytest.mark.parametrize(("dispatcher", "sms"), [("deepep", 20), ("hybridep", 16)])
def test_a_dispatcher_starts_with_its_librarys_usual_sms(
    capsys: pytest.CaptureFixture[str], dispatcher: str, sms: int
) -> None:
    _, bare = check(capsys, "--set", f"dispatcher={dispatcher}")
    _, said = check(capsys, "--set", f"dispatcher={dispatcher}", "--set", f"num_sms={sms}")

    assert bare["settings"] == said["settings"]
    assert bare["step_time_s"] == said["step_time_s"]


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("--gpus", "4"), "no step time: gpus=4 must be a multiple of 256"),
        (("--set", "micro_batch_size=4096"), "no step time: global_batch_size=4096 must be a multiple of"),
        (("--set", "expert_parallel=48"), "no memory: "),
    ],
)
def test_what_cannot_be_predicted_says_why(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], why: str
) -> None:
    _, document = check(capsys, *arguments)

    assert any(reason.startswith(why) for reason in document["missing"])
    main([*GB300, *arguments])
    assert why in capsys.readouterr().out


def test_a_file_of_settings_and_set_on_top(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    _, document = check(capsys, "--set", "dispatcher=hybridep", "--set", "offload_modules=expert_fc1,moe_act")
    path = tmp_path / "best.json"
    path.write_text(json.dumps(document["settings"]))

    _, again = check(capsys, "--settings", str(path))
    _, changed = check(capsys, "--settings", str(path), "--set", "num_sms=32")

    assert again == document
    assert changed["settings"] == {**document["settings"], "num_sms": 32}


def test_a_published_layout_with_the_prediction_layer_on_its_own_is_legal(capsys: pytest.CaptureFixture[str]) -> None:
    layout = "pipeline_layout=Et*3|(tt|)*29m|L"
    grid = ("--gpus", "1024", "--set", "pipeline_parallel=16", "--set", "virtual_pipeline=2")
    status, document = check(capsys, *grid, "--set", layout)

    assert (status, document["violations"]) == (0, [])
    assert document["step_time_s"] > 0


def test_versions_make_rules_on_versions_speak(capsys: pytest.CaptureFixture[str]) -> None:
    status, document = check(capsys, "--stack", "megatron_core=0.19.2", "--stack", "transformer-engine=2.0")

    assert status == 1
    assert {violation["rule"] for violation in document["violations"]} >= {"MC099", "MC098"}


def test_a_cpu_has_no_prediction(capsys: pytest.CaptureFixture[str]) -> None:
    status = main(["check", "--model", "tiny-moe", "--cluster", "local", "--json"])
    document = json.loads(capsys.readouterr().out)

    assert status == 0
    assert (document["peak_memory_bytes"], document["fits"], document["step_time_s"]) == (None, None, None)


@pytest.mark.parametrize(
    ("arguments", "error", "hint"),
    [
        (["--set", "expert_paralel=48"], "unknown setting 'expert_paralel'", "did you mean expert_parallel"),
        (["--set", "dispatcher=hybridpe"], "dispatcher='hybridpe' is not legal", "did you mean hybridep"),
        (["--set", "micro_batch_size=two"], "micro_batch_size='two' is not a whole number", ""),
        (["--set", "micro_batch_size"], "--set 'micro_batch_size' has no value", "--set key=value"),
        (["--set", "recompute_modules=[a"], "--set recompute_modules=[a: not a YAML value", "quote"),
        (
            ["--stack", "megatron=0.16.1"],
            "--stack megatron: no rule asks for its version",
            "did you mean megatron_core",
        ),
        (["--set", "num_sms=16", "--set", "num_sms=20"], "--set num_sms stands twice", "once"),
        (["--stack", "torch"], "--stack 'torch' has no version", "--stack megatron_core=0.19.2"),
        (["--gpus", "255"], "gpus=255 is not a multiple of the 4 GPUs", "--gpus"),
    ],
)
def test_a_wrong_request_is_one_line_and_status_2(
    capsys: pytest.CaptureFixture[str], arguments: list[str], error: str, hint: str
) -> None:
    status = main([*GB300, *arguments])
    captured = capsys.readouterr()

    assert status == 2
    assert captured.out == ""
    assert captured.err.startswith(f"error: {error}")
    assert hint in captured.err


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_combination_of_values_has_an_answer(data: st.DataObject, capsys: pytest.CaptureFixture[str]) -> None:
    chosen = data.draw(st.lists(st.sampled_from(sorted(SETTINGS)), max_size=6, unique=True))
    arguments = []
    for name in chosen:
        row = SETTINGS[name]
        if row.kind == "list":
            value: Any = data.draw(st.lists(st.sampled_from(row.choices), max_size=2, unique=True))
        elif row.kind == "bool":
            value = data.draw(st.booleans())
        elif row.kind == "str":
            value = data.draw(st.sampled_from(row.choices)) if row.choices else "Et*30|t*31mL"
        else:
            value = data.draw(st.integers(max(row.minimum, 1), 70))
        arguments += ["--set", f"{name}={json.dumps(value)}"]

    status, document = check(capsys, *arguments)

    assert status == (0 if document["legal"] else 1)
    assert document["legal"] == (not document["violations"])
    assert all(violation["amount"] > 0 and violation["message"] for violation in document["violations"])
