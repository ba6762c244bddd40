"""The policy for a run, from a folder of them."""

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import autotune_policies
from autotune_policies import Policy, PolicyError, dump_policy, load_policy
from autotune_policies.__main__ import main
from autotune_policies.selection import Found, find

EXAMPLE = load_policy(Path(__file__).parent / "example.yaml")
STACK = {"megatron_core": "0.19.2", "torch": "2.8.0", "deep_ep": "1.2.1"}
RUN: dict[str, Any] = {"model": "example-moe", "cluster": "example-cluster", "num_gpus": 32, "stack": STACK}


def policy_of(*, fallback: bool = True, evidence: dict[str, Any] | None = None, **conditions: Any) -> Policy:
    made_on = {"num_gpus": conditions["num_gpus"]} if isinstance(conditions.get("num_gpus"), int) else {}
    return EXAMPLE._replace(applies_to={**EXAMPLE.applies_to, **conditions},
        evidence={**(evidence or EXAMPLE.evidence), **made_on},
        fallback=EXAMPLE.fallback if fallback else None,
    )  # fmt: skip


def write(folder: Path, **policies: Policy) -> Path:
    for name, policy in policies.items():
        path = folder / f"{name}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dump_policy(policy), encoding="utf-8")
    return folder


def name_of(found: Found) -> str:
    return Path(found.policy.name).stem


def test_the_policy_that_holds(tmp_path: Path) -> None:
    found = autotune_policies.find(write(tmp_path, a=policy_of(model="other"), b=EXAMPLE), **RUN)
    assert (name_of(found), found.exact, found.kind, found.differs) == ("b", True, "exact", ())
    assert found.unchecked == ("precision", "seq_length", "global_batch_size")
    assert found.settings == EXAMPLE.settings


def test_what_is_left_open_is_said(tmp_path: Path) -> None:
    write(tmp_path, long=policy_of(seq_length=8192), short=EXAMPLE)
    found = find(tmp_path, **RUN)
    assert (name_of(found), [Path(name).stem for name in found.also]) == ("long", ["short"])
    found = find(tmp_path, **RUN, seq_length=4096)
    assert (name_of(found), found.also) == ("short", ())


PREDICTED = {"kind": "predicted"}
IMPORTED = {"kind": "imported", "role": "seed", "source": "recipe x"}
OLDER = {**EXAMPLE.evidence, "created_at": "2025-01-02T03:04:05+00:00"}


@pytest.mark.parametrize("order", list(itertools.permutations("abcd")))
def test_measured_goes_before_predicted_before_imported_and_newer_before_older(
    order: tuple[str, ...], tmp_path: Path
) -> None:
    policies = (EXAMPLE, policy_of(evidence=OLDER), policy_of(evidence=PREDICTED), policy_of(evidence=IMPORTED))
    write(tmp_path, **dict(zip(order, policies, strict=True)))
    found = find(tmp_path, **RUN, predicted=True)
    assert [Path(name).stem for name in (found.policy.name, *found.also)] == list(order)


@pytest.mark.parametrize("evidence", [PREDICTED, IMPORTED], ids=["predicted", "imported"])
def test_what_nobody_has_run_is_proposed_only_when_it_is_asked_for(evidence: dict[str, Any], tmp_path: Path) -> None:
    write(tmp_path, guess=policy_of(evidence=evidence, num_gpus=128))
    run = {**RUN, "num_gpus": 128}
    with pytest.raises(PolicyError, match="that ran fits model example-moe") as caught:
        find(tmp_path, **run)
    assert f"nobody has run {tmp_path}/guess.yaml" in str(caught.value.hint)
    found = find(tmp_path, **run, predicted=True)
    assert (name_of(found), found.kind, found.exact) == ("guess", "exact", True)
    found = find(write(tmp_path, real=EXAMPLE), **run)
    assert (name_of(found), found.kind, found.exact) == ("real", "nearest", False)
    assert [Path(name).stem for name in found.also] == ["guess"]


def test_the_nearest_is_named_with_what_differs(tmp_path: Path) -> None:
    write(tmp_path, far=policy_of(cluster="h100"), near=EXAMPLE)
    found = find(tmp_path, **{**RUN, "num_gpus": 128})
    assert (name_of(found), found.exact, found.kind) == ("near", False, "nearest")
    assert found.differs == ("num_gpus is 128, but the policy holds for at least 16, at most 64, a multiple of 16",)
    assert found.settings == EXAMPLE.settings


def test_a_newer_library_is_nearer_than_another_megatron_core(tmp_path: Path) -> None:
    core = policy_of(stack={"megatron_core": "0.18", "torch": {"min": "2.6"}})
    torch = policy_of(stack={"megatron_core": "0.19.2", "torch": "2.6"})
    assert name_of(find(write(tmp_path, core=core, torch=torch), **RUN)) == "torch"


@pytest.mark.parametrize(
    "changes", [{"cluster": "gb300"}, {"stack": {**STACK, "deep_ep": "2.0"}}], ids=["cluster", "library"]
)
def test_only_the_baseline_carries_over_to_other_hardware_or_another_library(
    changes: dict[str, Any], tmp_path: Path
) -> None:
    write(tmp_path, with_baseline=EXAMPLE, without=policy_of(fallback=False))
    found = find(tmp_path, **{**RUN, **changes})
    assert (name_of(found), found.exact, found.kind) == ("with_baseline", False, "fallback")
    assert found.settings == EXAMPLE.fallback
    assert found.settings["dispatcher"] == "alltoall"
    assert len(found.differs) == 1


def test_a_replica_that_does_not_fit_is_never_proposed(tmp_path: Path) -> None:
    write(tmp_path, a=EXAMPLE)
    with pytest.raises(PolicyError, match="fits model example-moe on 24 GPUs"):
        find(tmp_path, **{**RUN, "num_gpus": 24})


def test_nothing_that_fits_is_an_error_that_says_what_is_there(tmp_path: Path) -> None:
    write(tmp_path, a=EXAMPLE)
    (tmp_path / "broken.yaml").write_text("schema: none", encoding="utf-8")
    with pytest.raises(PolicyError) as caught:
        find(tmp_path, **{**RUN, "model": "dsv3"})
    assert caught.value.message == f"no policy in {tmp_path} fits model dsv3 on 32 GPUs of example-cluster"
    assert caught.value.hint == "it has example-moe; 1 unreadable"
    with pytest.raises(PolicyError) as caught:
        find(tmp_path, **{**RUN, "num_gpus": 24})
    where = "at least 16, at most 64, a multiple of 16 GPUs of example-cluster"
    assert caught.value.hint == f"for example-moe it has {where}; 1 unreadable"


def test_an_empty_folder_and_no_folder(tmp_path: Path) -> None:
    with pytest.raises(PolicyError) as caught:
        find(tmp_path, **RUN)
    assert caught.value.hint == "it has no policy"
    with pytest.raises(FileNotFoundError):
        find(tmp_path / "nowhere", **RUN)


def test_broken_files_are_named_and_not_fatal(tmp_path: Path) -> None:
    write(tmp_path / "deeper", a=EXAMPLE)
    (tmp_path / "b.yaml").write_text("schema: [", encoding="utf-8")
    (tmp_path / "c.yaml").write_bytes(b"\xff")
    (tmp_path / "notes.txt").write_text("no policy at all", encoding="utf-8")
    (tmp_path / "d.yaml").mkdir()
    found = find(tmp_path, **RUN)
    assert name_of(found) == "a"
    assert [Path(name).name for name in found.broken] == ["b.yaml", "c.yaml", "d.yaml"]
    assert all(message.startswith(name) for name, message in found.broken.items())


def test_yaml_that_means_to_be_no_policy_is_passed_over(tmp_path: Path) -> None:
    write(tmp_path, a=EXAMPLE)
    (tmp_path / "request.yaml").write_text("model:\n  schema: inner\nwords: 'schema: x'\n", encoding="utf-8")
    (tmp_path / "a.yaml").rename(tmp_path / "a.yml")
    found = find(tmp_path, **RUN)
    assert (Path(found.policy.name).name, found.broken) == ("a.yml", {})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"num_gpus": "2"}, "num_gpus is '2', but it is a whole number of at least 1"),
        ({"num_gpus": 0}, "num_gpus is 0"),
        ({"num_gpus": True}, "num_gpus is True"),
        ({"seq_length": 1.5}, "seq_length is 1.5"),
        ({"stack": {"megatron_core": None}}, "stack.megatron_core is None, but a version is a text"),
    ],
    ids=str,
)
def test_wrong_arguments_are_told_by_name(change: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(PolicyError) as caught:
        find(write(tmp_path, a=EXAMPLE), **{**RUN, **change})
    assert caught.value.message.startswith(words)


def test_without_a_stack_the_installed_one_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autotune_policies.selection.detect_stack", lambda: {"megatron_core": "0.21"})
    found = find(write(tmp_path, a=EXAMPLE), **{**RUN, "stack": None})
    assert found.differs == ("stack.megatron_core is 0.21, but the policy holds for at least 0.16, below 0.20",)


@given(data=st.data())
@settings(max_examples=15, deadline=None)
def test_exact_is_said_only_where_every_condition_holds(data: st.DataObject, tmp_path_factory: Any) -> None:
    draw = data.draw
    policies = {
        f"p{index}": policy_of(
            model=draw(st.sampled_from(["m", "n"])), cluster=draw(st.sampled_from(["c", "d"])),
            num_gpus=draw(st.sampled_from([16, 32, {"min": 16}])), fallback=draw(st.booleans()),
        )
        for index in range(draw(st.integers(0, 3)))
    }  # fmt: skip
    folder = write(tmp_path_factory.mktemp("policies"), **policies)
    run = {"model": "m", "cluster": "c", "num_gpus": draw(st.sampled_from([16, 32])), "stack": STACK}
    try:
        found = find(folder, **run)
    except PolicyError:
        assert not any(policy.applies_to["model"] == "m" and policy.fallback for policy in policies.values())
        return
    assert found.policy.applies_to["model"] == "m"
    assert found.exact == (found.differs == ())
    assert find(folder, **run) == found
    if found.kind != "fallback":
        assert found.policy.applies_to["cluster"] == "c"


def cli(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    status = main(["find", *argv, "--model", "example-moe", "--cluster", "example-cluster"], prog="policy")
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_find_prints_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, a=EXAMPLE)
    (tmp_path / "b.yaml").write_text("schema: none", encoding="utf-8")
    stack = ("--stack", *(f"{name}={version}" for name, version in STACK.items()))
    status, out, err = cli(capsys, str(tmp_path), "--num-gpus", "32", *stack)
    assert status == 0
    assert out.startswith(f"{tmp_path}/a.yaml  measured; holds for this run\n  not checked: precision")
    assert err.startswith(f"not a policy: {tmp_path}/b.yaml:1")
    status, out, _ = cli(capsys, str(tmp_path), "--num-gpus", "128", *stack)
    assert status == 1
    assert "the nearest, for another run\n  num_gpus is 128" in out


def test_find_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, a=EXAMPLE)
    argv = (str(tmp_path), "--num-gpus", "32", "--stack", "deep_ep=2.0", "megatron_core=0.19.2", "--json")
    status, out, err = cli(capsys, *argv)
    answer = json.loads(out)
    assert (status, err, len(out.splitlines())) == (1, "", 1)
    assert (answer["exact"], answer["kind"], answer["file"]) == (False, "fallback", f"{tmp_path}/a.yaml")
    assert answer["settings"] == EXAMPLE.fallback
    assert answer["differs"] == ["stack.deep_ep is 2.0, but the policy holds for 1.2.1"]


def test_a_draft_is_no_answer_unless_it_is_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stack = ("--num-gpus", "32", "--stack", *(f"{name}={version}" for name, version in STACK.items()))
    write(tmp_path, draft=policy_of(evidence=PREDICTED))
    status, out, err = cli(capsys, str(tmp_path), *stack)
    assert (status, out) == (2, "")
    assert "--allow-predicted" in err
    status, out, _ = cli(capsys, str(tmp_path), *stack, "--allow-predicted")
    assert status == 0
    assert out.startswith(f"{tmp_path}/draft.yaml  predicted; holds for this run\n")


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["x", "--num-gpus", "0"], "'0' is no whole number of at least 1"),
        (["x", "--num-gpus", "32", "--stack", "torch"], "--stack 'torch' is not NAME=VERSION"),
        (["no/such/folder", "--num-gpus", "32"], "no/such/folder: No such file or directory"),
        (["x"], "required: --num-gpus"),
    ],
)
def test_wrong_requests(argv: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = cli(capsys, *argv)
    assert (status, out) == (2, "")
    assert words in err
    assert "Traceback" not in err
