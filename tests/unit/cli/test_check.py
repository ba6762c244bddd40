"""``autotune check``: legal or not and why, what is predicted, and requests that are wrong."""

import json
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
