"""``policy import`` and ``policy render --for megatron-bridge``: configurations that teams already have."""

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from autotune_policies import load_policy, parse_policy
from autotune_policies.__main__ import main
from autotune_policies.errors import PolicyError, PolicyFormatError
from autotune_policies.importing import Imported, conditions, policy_from
from autotune_policies.megatron_bridge import read_container
from autotune_policies.policy import dump_policy
from tests.support.containers import TOPOLOGY, VERSIONS, container_of, state_of

WHERE = ["--model", "example-moe", "--cluster", "example-cluster", "--num-gpus", "32"]
RELEASES = ["--megatron-core", "0.19.2", "--megatron-bridge", "0.6.2"]
HYBRID: dict[str, Any] = {"dispatcher": "hybridep", "num_sms": 24, "expert_parallel": 8, "overlap_grad_reduce": True}


def recipe_config() -> Any:
    recipe = container_of(settings=HYBRID)
    recipe.env_vars = {**TOPOLOGY, "CUDA_DEVICE_MAX_CONNECTIONS": 32, "NVTE_USE_FAST_MATH": 1}
    return recipe


@pytest.fixture
def recipe_module(monkeypatch: pytest.MonkeyPatch) -> str:
    module = ModuleType("recipes_of_this_test")
    module.moe_config = recipe_config  # type: ignore[attr-defined]
    module.number_config = lambda: 7  # type: ignore[attr-defined]
    module.broken_config = lambda: 1 / 0  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module.__name__


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "ConfigContainer.yaml"
    document = {"_target_": "megatron.bridge.training.config.ConfigContainer", **state_of(recipe_config())}
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    return path


def test_a_recipe_becomes_a_policy_without_numbers(recipe_module: str, tmp_path: Path, capsys: Any) -> None:
    target = tmp_path / "policy.yaml"
    source = f"{recipe_module}:moe_config"
    assert main(["import", source, "-o", str(target), "--as", "baseline", *WHERE, *RELEASES]) == 0
    out, err = capsys.readouterr()
    assert out == ""
    assert err == "NVTE_USE_FAST_MATH=1 is left out: no policy with these settings may set it\n"
    policy = load_policy(target)
    assert policy.evidence == {"kind": "imported", "role": "baseline", "source": f"recipe {source}"}
    assert policy.settings["dispatcher"] == "hybridep"
    assert policy.env == {**TOPOLOGY, "CUDA_DEVICE_MAX_CONNECTIONS": "32"}
    assert policy.applies_to == {
        "model": "example-moe", "cluster": "example-cluster", "num_gpus": 32, "precision": "bf16",
        "seq_length": 4096, "global_batch_size": 512,
        "stack": {
            "megatron_core": {"min": "0.19", "below": "0.20"}, "megatron_bridge": {"min": "0.6", "below": "0.7"},
        },
    }  # fmt: skip


def test_a_saved_configuration_becomes_the_same_policy(saved: Path, capsys: Any) -> None:
    assert main(["import", str(saved), *WHERE, *RELEASES]) == 0
    policy = parse_policy(capsys.readouterr().out)
    settings = read_container(recipe_config(), **VERSIONS)
    assert {name: policy.settings[name] for name in settings} == settings
    assert policy.evidence["source"] == "file ConfigContainer.yaml"


def test_json_is_one_line(saved: Path, capsys: Any) -> None:
    assert main(["import", str(saved), *WHERE, *RELEASES, "--json"]) == 0
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    document = json.loads(out)
    assert document["left_out"] == ["NVTE_USE_FAST_MATH"]
    assert document["document"]["evidence"]["kind"] == "imported"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("model: !!python/object:os.system {}\n", ":1: could not determine a constructor"),
        ("model: !ours {}\n", ":1: could not determine a constructor"),
        ("model: [\n", "expected the node content"),
        ("a: 1\n", "no ConfigContainer"),
        ("- 1\n", "a configuration is a mapping"),
    ],
)
def test_what_is_no_saved_configuration_is_refused_in_one_line(
    text: str, message: str, tmp_path: Path, capsys: Any
) -> None:
    path = tmp_path / "saved.yaml"
    path.write_text(text, encoding="utf-8")
    assert main(["import", str(path), *WHERE, *RELEASES]) == 2
    error = capsys.readouterr().err.splitlines()
    assert message in error[0]
    assert len(error) <= 2


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("absent_config", "has no function 'absent_config'"),
        ("number_config", "builds a int, but no ConfigContainer"),
        ("broken_config", "fails: ZeroDivisionError"),
    ],
)
def test_what_is_no_recipe_is_refused_in_one_line(recipe_module: str, function: str, message: str, capsys: Any) -> None:
    assert main(["import", f"{recipe_module}:{function}", *WHERE, *RELEASES]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error


def test_a_module_that_does_not_exist_is_refused(capsys: Any) -> None:
    assert main(["import", "no_such_module:f", *WHERE, *RELEASES]) == 2
    assert "module 'no_such_module' cannot be imported: ModuleNotFoundError" in capsys.readouterr().err


def test_a_condition_that_nobody_knows_is_asked_for() -> None:
    found = Imported({}, {}, {"precision": "bf16"}, {}, "file x")
    with pytest.raises(PolicyError, match="file x does not say seq_length, global_batch_size") as caught:
        conditions(found, {"model": "m", "cluster": "c", "num_gpus": 8})
    assert caught.value.hint == "say it: --seq-length --global-batch-size"


def test_half_a_switch_is_not_imported() -> None:
    applies_to = {
        "model": "m", "cluster": "c", "num_gpus": 8, "precision": "bf16", "seq_length": 1, "global_batch_size": 1,
        "stack": {"megatron_core": "0.19.2"},
    }  # fmt: skip
    with pytest.raises(PolicyError, match="NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN is missing"):
        policy_from(HYBRID, {}, applies_to, "recipe x")
    policy = policy_from({}, TOPOLOGY, applies_to, "recipe x", notes=("the optimizer is another",))
    assert policy.env == {}
    assert policy.evidence["note"] == "the optimizer is another"
    for name, value in (("step_time_s", {"median": 1.0}), ("tokens_per_s_per_gpu", 3.0), ("trial", 1)):
        policy.evidence[name] = value
        with pytest.raises(PolicyFormatError, match=f"kind is imported, but {name} is given"):
            dump_policy(policy)
        del policy.evidence[name]


def test_rendered_overrides_are_words_for_a_shell(recipe_module: str, saved: Path, tmp_path: Path, capsys: Any) -> None:
    target = tmp_path / "policy.yaml"
    assert main(["import", str(saved), "-o", str(target), *WHERE, *RELEASES]) == 0
    render = ["render", str(target), "--for", "megatron-bridge", *RELEASES]
    assert main([*render, "--recipe", f"{recipe_module}:moe_config"]) == 0
    assert capsys.readouterr().out == ""
    assert main(render) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "model.moe_token_dispatcher_type=flex" in lines
    assert "'++env_vars.USE_MNNVL='\"'\"'0'\"'\"''" in lines


def test_rendering_names_what_only_a_launcher_can_do(
    saved: Path, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "policy.yaml"
    assert main(["import", str(saved), "-o", str(target), *WHERE, *RELEASES]) == 0
    text = target.read_text(encoding="utf-8").replace("launch: {}", "launch: {segment: 4}")
    target.write_text(text, encoding="utf-8")
    render = ["render", str(target), "--for", "megatron-bridge", *RELEASES]
    capsys.readouterr()
    assert main(render) == 2
    assert "launch.segment cannot be said to Megatron-Bridge" in capsys.readouterr().err
    monkeypatch.setenv("AUTOTUNE_POLICY", str(target.resolve()))
    assert main(render) == 0


def test_what_a_recipe_prints_is_no_word_of_the_answer(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    target = tmp_path / "policy.yaml"
    assert main(["import", str(saved), *WHERE, *RELEASES, "-o", str(target)]) == 0
    text = "import sys\nfrom containers import container_of\nstream = sys.stdout\nprint('hello from the module')\n"
    text += "def loud():\n    print('hello from the recipe', file=stream)\n    return container_of()\n"
    (tmp_path / "a_loud_recipe.py").write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "support"))
    capsys.readouterr()
    assert main(["render", str(target), "--for", "megatron-bridge", *RELEASES, "--recipe", "a_loud_recipe:loud"]) == 0
    captured = capsys.readouterr()
    assert "model.moe_token_dispatcher_type=flex" in captured.out.splitlines()
    assert "hello" not in captured.out
    assert captured.err.splitlines() == ["hello from the module", "hello from the recipe"]


def test_a_recipe_means_nothing_to_other_targets(saved: Path, tmp_path: Path, capsys: Any) -> None:
    target = tmp_path / "policy.yaml"
    assert main(["import", str(saved), "-o", str(target), *WHERE, *RELEASES]) == 0
    assert main(["render", str(target), "--for", "env", "--recipe", "a:b"]) == 2
    assert "--recipe means nothing to --for env" in capsys.readouterr().err
