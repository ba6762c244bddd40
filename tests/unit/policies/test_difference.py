"""What two policies do differently, and whether their numbers may be compared."""

import json
from pathlib import Path
from typing import Any

import pytest

from autotune_policies import Policy, dump_policy, load_policy
from autotune_policies.__main__ import main
from autotune_policies.difference import Change, compare_policies, difference_text
from autotune_policies.settings import SETTINGS

EXAMPLE = load_policy(Path(__file__).parent / "example.yaml")
FULL = EXAMPLE._replace(evidence={**EXAMPLE.evidence, "contract": {"steps": 20, "seed": 1}})


def policy_of(policy: Policy = EXAMPLE, evidence: dict[str, Any] | None = None, **settings: Any) -> Policy:
    return policy._replace(
        settings={**policy.settings, **settings}, evidence={**policy.evidence, **(evidence or {})}, name="other"
    )


def test_a_policy_does_what_it_does() -> None:
    difference = compare_policies(EXAMPLE, EXAMPLE)
    assert difference.same
    assert (difference.settings, difference.env, difference.launch, difference.applies_to) == ((), (), (), ())
    assert difference.incomparable == ()
    assert set(difference.ratios.values()) == {1.0}


def test_settings_are_told_with_what_they_are() -> None:
    difference = compare_policies(EXAMPLE, policy_of(num_sms=32, ep_overlap=False))
    assert not difference.same
    assert difference.settings == (
        Change("num_sms", 24, 32, SETTINGS["num_sms"].doc),
        Change("ep_overlap", True, False, SETTINGS["ep_overlap"].doc),
    )  # fmt: skip


def test_spellings_of_the_same_are_no_difference() -> None:
    other = policy_of(pipeline_layout="Et|t*2|tt|tL", recompute_modules=["layernorm", "moe_act"])
    assert compare_policies(EXAMPLE, other).same


def test_environment_launch_and_conditions() -> None:
    other = EXAMPLE._replace(env={"NCCL_GRAPH_REGISTER": "1", "OMP_NUM_THREADS": "4"}, launch={},
        applies_to={**EXAMPLE.applies_to, "num_gpus": 64, "stack": {"megatron_core": "0.19.2"}},
    )  # fmt: skip
    difference = compare_policies(EXAMPLE, other)
    assert difference.env == (
        Change("CUDA_DEVICE_MAX_CONNECTIONS", "32", None), Change("NCCL_GRAPH_REGISTER", "0", "1"),
        Change("OMP_NUM_THREADS", None, "4"),
    )  # fmt: skip
    assert difference.launch == (Change("segment", 4, None),)
    assert [row.name for row in difference.applies_to] == [
        "num_gpus",
        "stack.megatron_core",
        "stack.torch",
        "stack.deep_ep",
    ]
    assert not difference.same


def test_numbers_that_were_measured_alike_are_compared() -> None:
    faster = {"step_time_s": {"median": 2.0}, "tokens_per_s_per_gpu": 32768.0}
    difference = compare_policies(FULL, policy_of(FULL, faster, num_sms=32))
    assert difference.incomparable == ()
    assert difference.ratios == {"step_time_s": 0.8, "tokens_per_s_per_gpu": 1.25, "peak_memory_bytes": 1.0}
    assert "b over a, measured alike" in difference_text(difference, FULL, FULL)


@pytest.mark.parametrize(
    ("evidence", "why"),
    [
        ({"kind": "predicted"}, "other is predicted, not measured"),
        ({"fingerprint": "ffff"}, "fingerprint: 0f3c against ffff"),
        ({"fingerprint": None}, "fingerprint: 0f3c against -"),
        (
            {"routing": {**EXAMPLE.evidence["routing"], "source": "natural"}},
            "routing source: forced_balance against natural",
        ),
        ({"routing": {"source": "forced_balance"}}, "routing token_policy: dropless against -"),
        ({"num_gpus": 32}, "contract num_gpus: 16 against 32"),
        ({"contract": {"steps": 10, "seed": 1}}, "contract steps: 20 against 10"),
    ],
)
def test_numbers_that_were_measured_differently_are_not(evidence: dict[str, Any], why: str) -> None:
    difference = compare_policies(FULL, policy_of(FULL, evidence))
    assert why in difference.incomparable
    assert difference.ratios == {}
    assert (
        f"the numbers must not be compared\n  {why}" in difference_text(difference, FULL, EXAMPLE)
        or len(difference.incomparable) > 1
    )


def test_the_fingerprint_is_needed_on_both_sides() -> None:
    nothing = policy_of(evidence={"fingerprint": None})
    assert compare_policies(nothing, nothing).incomparable == ("fingerprint: - against -",)


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    status = main(list(argv), prog="policy")
    captured = capsys.readouterr()
    return status, captured.out, captured.err


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    a, b = tmp_path / "a.yaml", tmp_path / "b.yaml"
    a.write_text(dump_policy(EXAMPLE), encoding="utf-8")
    b.write_text(dump_policy(policy_of(num_sms=32)), encoding="utf-8")
    return str(a), str(b)


def test_diff_says_what_differs(files: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run(capsys, "diff", *files)
    assert (status, err) == (1, "")
    assert out.startswith(f"a  {files[0]}\nb  {files[1]}\n")
    row = next(line for line in out.splitlines() if line.startswith("  num_sms "))
    assert row.split()[1:3] == ["24", "32"]
    assert row.endswith(SETTINGS["num_sms"].doc)
    assert "environment: the same" in out
    assert run(capsys, "diff", files[0], files[0])[0] == 0


def test_diff_as_json(files: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run(capsys, "diff", *files, "--json")
    answer = json.loads(out)
    assert (status, err, len(out.splitlines())) == (1, "", 1)
    assert answer["same"] is False
    assert answer["settings"] == [{"name": "num_sms", "a": 24, "b": 32, "doc": SETTINGS["num_sms"].doc}]
    assert answer["evidence"]["a"]["step_time_s"]["median"] == 2.5


def test_diff_of_what_is_no_policy(files: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "diff", files[0], "no/such.yaml")[::2] == (2, "error: no/such.yaml: No such file or directory\n")
    status, _, err = run(capsys, "diff", files[0])
    assert status == 2
    assert "required: B" in err
