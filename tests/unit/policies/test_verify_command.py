"""``policy verify``: from files, for people and for scripts."""

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from autotune_policies import dump_policy, load_policy
from autotune_policies.__main__ import main
from autotune_policies.resolved import read_resolved
from tests.support.resolved_containers import arguments_of_run, document_of, fields_of, printed_arguments

EXAMPLE = load_policy(Path(__file__).parent / "example.yaml")
APPLIES_TO = {**EXAMPLE.applies_to, "stack": {"megatron_core": "0.19.2", "megatron_bridge": "0.6.2"}}
PINNED = EXAMPLE._replace(applies_to=APPLIES_TO)


@pytest.fixture
def policy(tmp_path: Path) -> str:
    path = tmp_path / "policy.yaml"
    path.write_text(dump_policy(PINNED), encoding="utf-8")
    return str(path)


def save(tmp_path: Path, document: Any) -> str:
    path = tmp_path / "ConfigContainer.yaml"
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    return str(path)


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    status = main(["verify", *argv], prog="policy")
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_a_run_as_the_policy_says(tmp_path: Path, policy: str, capsys: pytest.CaptureFixture[str]) -> None:
    resolved = save(tmp_path, document_of(fields_of(EXAMPLE), train__global_batch_size=256))
    status, out, err = run(capsys, policy, "--resolved", resolved)
    assert (status, err) == (0, "")
    assert out.startswith(f"{resolved} against {policy}: as the policy says, ")
    assert "not checked\n" in out
    assert "  launch.segment: only the launcher knows" in out
    assert "global_batch_size: " not in out


def test_a_fallback_is_told_with_its_reason(tmp_path: Path, policy: str, capsys: pytest.CaptureFixture[str]) -> None:
    changes = {"model.moe_token_dispatcher_type": "alltoall", "model.moe_flex_dispatcher_backend": None}
    resolved = save(tmp_path, document_of({**fields_of(EXAMPLE), **changes}))
    status, out, _ = run(capsys, policy, "--resolved", resolved)
    assert status == 1
    assert "  dispatcher: wanted deepep, found alltoall\n      why: Megatron-Bridge goes on with alltoall" in out
    assert "      do: look for 'Falling back to alltoall'" in out


def test_as_json(tmp_path: Path, policy: str, capsys: pytest.CaptureFixture[str]) -> None:
    document = document_of({**fields_of(EXAMPLE), "model.moe_permute_fusion": False})
    del document["env_vars"]["NCCL_GRAPH_REGISTER"]
    status, out, err = run(capsys, policy, "--resolved", save(tmp_path, document), "--json")
    answer = json.loads(out)
    assert (status, err, len(out.splitlines()), answer["same"]) == (1, "", 1, False)
    first, second = answer["differences"]
    assert first == {"field": "permute_fusion", "wanted": True, "found": False, "why": "", "remedy": ""}
    assert (second["field"], second["wanted"], second["found"]) == ("env_vars.NCCL_GRAPH_REGISTER", "0", None)
    assert answer["suspects"] == []
    assert "model.moe_router_fusion" in answer["checked"]
    assert answer["unchecked"]["launch.segment"] == "only the launcher knows"


def test_a_silent_change_beside_the_policy_fails_only_when_asked(
    tmp_path: Path, policy: str, capsys: pytest.CaptureFixture[str]
) -> None:
    resolved = save(tmp_path, document_of(fields_of(EXAMPLE), model__gradient_accumulation_fusion=False))
    status, out, _ = run(capsys, policy, "--resolved", resolved)
    assert status == 0
    assert "changed silently, though the policy says nothing about it\n  model.gradient_accumulation_fusion" in out
    assert run(capsys, policy, "--resolved", resolved, "--strict")[0] == 1


def test_the_releases_that_ran_can_be_named(tmp_path: Path, policy: str, capsys: pytest.CaptureFixture[str]) -> None:
    document = document_of(fields_of(EXAMPLE._replace(env={}), "0.17"))
    status, out, _ = run(
        capsys, policy, "--resolved", save(tmp_path, document), "--megatron-core", "0.17.1", "--megatron-bridge", "0.4"
    )
    assert status == 1
    assert "stack.megatron_core: wanted 0.19.2, found 0.17.1" in out
    assert "2 differences" in out


def trial(**changes: Any) -> dict[str, Any]:
    return {
        "settings": {**EXAMPLE.settings, **changes}, "dispatcher_class": "MoEFlexTokenDispatcher", "precision": "bf16",
        "megatron_core": "0.19.2", "torch": "2.8.0", "versions": {"python": "3.12.1"}, "world_size": 32,
    }  # fmt: skip


def test_the_record_of_a_trial(tmp_path: Path, policy: str, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run(capsys, policy, "--resolved", save(tmp_path, trial()))
    assert (status, err) == (0, "")
    assert "  stack.megatron_bridge: not in this record" in out
    document = {**trial(dispatcher="alltoall", num_sms=None), "world_size": 8}
    status, out, _ = run(capsys, policy, "--resolved", save(tmp_path, document))
    assert status == 1
    for line in (
        "dispatcher: wanted deepep, found alltoall",
        "num_gpus: wanted at least 16, at most 64, a multiple of 16, found 8",
    ):
        assert f"  {line}\n" in out


def test_the_arguments_that_megatron_lm_prints(tmp_path: Path, policy: str, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "log.txt"
    log.write_text(printed_arguments(arguments_of_run(EXAMPLE)), encoding="utf-8")
    status, out, err = run(capsys, policy, "--arguments", str(log))
    assert (status, err) == (0, "")
    assert "  env.NCCL_GRAPH_REGISTER: not in this record" in out
    changes = {"recompute_modules": ["moe_act"], "global_batch_size": 128}
    log.write_text(printed_arguments(arguments_of_run(EXAMPLE, **changes)), encoding="utf-8")
    status, out, _ = run(capsys, policy, "--arguments", str(log))
    assert status == 1
    assert "  recompute_modules: wanted moe_act,layernorm, found moe_act\n" in out
    assert "  global_batch_size: wanted 256, found 128\n" in out


def test_an_alias_in_a_saved_configuration_is_read(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("model: {a: &x [1, 2], b: *x}", encoding="utf-8")
    assert read_resolved(path) == {"model": {"a": [1, 2], "b": [1, 2]}}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("model: [", "c.yaml:1: "),
        ("- 1", "c.yaml: a configuration is a mapping"),
        ("", "c.yaml: a configuration is a mapping"),
        ("model: {}", "this is no ConfigContainer"),
        ("settings: 3", "settings is no mapping"),
        ("settings: {}", "no record of a trial: it has no megatron_core, world_size"),
        ("settings: {tensor_parallel: 1}\nmegatron_core: 0.19.2", "it has no world_size"),
        ("model: &a {b: *a}\nddp: {}\ntrain: {}", "not readable as YAML"),
        ("model: !!python/object:os.system {}", "c.yaml:1: "),
        ("\x00", "not readable as YAML"),
    ],
)
def test_what_is_no_configuration_is_one_line(
    text: str, words: str, tmp_path: Path, policy: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(text, encoding="utf-8")
    status, out, err = run(capsys, policy, "--resolved", str(path))
    assert (status, out) == (2, "")
    assert words in err.splitlines()[0]
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ([], "--resolved --arguments is required"),
        (["--resolved", "a", "--arguments", "b"], "not allowed with"),
        (["--resolved", "no/such.yaml"], "no/such.yaml: No such file or directory"),
        (["--arguments", "no/such.log"], "no/such.log: No such file or directory"),
        (["--arguments", "x", "--megatron-bridge", "0.6"], "--megatron-bridge means nothing to --arguments"),
    ],
)
def test_wrong_requests(argv: list[str], words: str, policy: str, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run(capsys, policy, *argv)
    assert (status, out) == (2, "")
    assert words in err


def test_a_policy_is_not_compared_with_a_policy(policy: str, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run(capsys, policy, "--resolved", policy)
    assert (status, out) == (2, "")
    assert f"{policy} is of the schema autotune.policy/v1: what should run, not what ran" in err


def test_what_a_trials_record_leaves_out_is_a_difference(
    tmp_path: Path, policy: str, capsys: pytest.CaptureFixture[str]
) -> None:
    document = trial()
    del document["settings"]["permute_fusion"], document["settings"]["gpus_per_numa_node"]
    status, out, _ = run(capsys, policy, "--resolved", save(tmp_path, document))
    assert status == 1
    assert "1 difference," in out
    assert "  permute_fusion: wanted yes, found absent\n      why: the trial's record does not say it" in out


@pytest.mark.parametrize("merge", ["", "<<: "])
def test_aliases_that_multiply_are_refused_at_once(
    merge: str, tmp_path: Path, policy: str, capsys: pytest.CaptureFixture[str]
) -> None:
    letters = "abcdefghi"
    lines = ["a: &a {x: 1}"]
    for before, name in itertools.pairwise(letters):
        items = f"[{', '.join([f'*{before}'] * 10)}]"
        lines.append(f"{name}: &{name} {{{merge}{items}}}" if merge else f"{name}: &{name} {items}")
    path = tmp_path / "c.yaml"
    path.write_text("\n".join(lines), encoding="utf-8")
    status, out, err = run(capsys, policy, "--resolved", str(path))
    assert (status, out) == (2, "")
    assert "written out without aliases it has more than 100000 parts" in err
