"""Runs of a model-verification card; Megatron-Bridge itself is stood in for."""

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from autotune_policies.errors import PolicyError, PolicyFormatError
from autotune_policies.importing import conditions, policy_from
from autotune_policies.verification_card import CardRun, card_runs, choose_run, read_card

CARD = """\
title: a_model
verification_index: {performance: {H100: verified}}
items:
  conversion:
    status: verified
    command: convert --hf-model a/b
  pretrain:
    H100:
      status: unverified
      command: train.sh --recipe a_config
  pretrain_performance:
    H100:
      status: verified
      precision: bf16
      bridge_commit: 0123abc
      enabled_features:
        moe_dispatcher: hybridep
        cuda_graph: {implementation: local, scopes: [attn]}
      command: >
        ./train.sh --nodes 2 --gpus-per-node 8 --recipe a_pretrain_config
        --mode pretrain -mb 2 --seq_length 4096 'dataset.blend=[["a b"],null]'
        model.moe_grouped_gemm=true ++env_vars.USE_MNNVL=0
        'model.recompute_modules=[layernorm,"moe"]' logger.log_interval=1
      metrics: {step_time_ms: 20147.29, tokens_per_second_per_gpu: 13011.4}
    GB200:
      status: verified
      command: ./train.sh --recipe another_config
"""
VERSIONS = {"megatron_core": "0.19.2", "megatron_bridge": "0.6.2"}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """A Megatron-Bridge with one recipe; what it is asked for."""
    calls: list[Any] = []

    def recipe() -> str:
        calls.append("built")
        return "container"

    def override(container: str, cli_overrides: list[str]) -> str:
        calls.append((container, cli_overrides))
        return "overridden"

    parts: dict[str, Any] = {
        "megatron.bridge.recipes": SimpleNamespace(),
        "megatron.bridge.perf_recipes": SimpleNamespace(__path__=[]),
        "megatron.bridge.training.utils.omegaconf_utils": SimpleNamespace(process_config_with_overrides=override),
    }
    parts["megatron.bridge.recipes"].a_pretrain_config = recipe
    for name, part in parts.items():
        words = name.split(".")
        for end in range(1, len(words)):
            monkeypatch.setitem(sys.modules, ".".join(words[:end]), ModuleType(".".join(words[:end])))
        monkeypatch.setitem(sys.modules, name, part)
    return calls


def test_verified_runs_of_a_recipe_are_read_with_their_overrides() -> None:
    first, second = card_runs(CARD, "card.yaml")
    assert first == CardRun(
        name="pretrain_performance.H100",
        line=19,
        recipe="a_pretrain_config",
        overrides=(
            "train.micro_batch_size=2", "model.seq_length=4096", "model.moe_grouped_gemm=true",
            "++env_vars.USE_MNNVL=0", 'model.recompute_modules=[layernorm,"moe"]',
        ),
        contract={"num_gpus": 16, "precision": "bf16"},
        features={"moe_dispatcher": "hybridep", "cuda_graph": {"implementation": "local", "scopes": ["attn"]}},
        notes=(
            "recipe a_pretrain_config",
            "ran on Megatron-Bridge commit 0123abc",
            "reported by the card, not measured here: step_time_ms 20147.29, tokens_per_second_per_gpu 13011.4",
        ),
    )  # fmt: skip
    assert (second.name, second.overrides, second.contract) == ("pretrain_performance.GB200", (), {})


def test_a_run_is_chosen_by_name_or_because_it_is_the_only_one() -> None:
    runs = card_runs(CARD, "card.yaml")
    assert choose_run(runs[:1], None) == runs[0]
    assert choose_run(runs, "pretrain_performance.GB200") == runs[1]
    with pytest.raises(PolicyError, match="the card has 2 runs") as several:
        choose_run(runs, None)
    assert several.value.hint == "say which: --item pretrain_performance.H100|pretrain_performance.GB200"
    with pytest.raises(PolicyError, match=r"no run 'pretrain_performance\.H10'") as mistyped:
        choose_run(runs, "pretrain_performance.H10")
    assert "did you mean pretrain_performance.H100" in str(mistyped.value.hint)


def test_the_recipe_is_built_with_the_overrides_and_the_numbers_stay_a_note(
    asked: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def imported(container: object, source: str, versions: object) -> Any:
        from autotune_policies.importing import Imported

        assert container == "overridden"
        return Imported({"cuda_graph_impl": "local", "cuda_graph_modules": ["attn"], "dispatcher": "alltoall"}, {},
                        {"seq_length": 4096, "global_batch_size": 64}, VERSIONS, source)  # fmt: skip

    monkeypatch.setattr("autotune_policies.verification_card.imported_from", imported)
    found = read_card(CARD, "card.yaml", "pretrain_performance.H100", VERSIONS)
    assert asked == ["built", ("container", list(card_runs(CARD, "card.yaml")[0].overrides))]
    assert found.contract == {"num_gpus": 16, "precision": "bf16", "seq_length": 4096, "global_batch_size": 64}
    assert found.notes[-1] == "the card says dispatcher hybridep, but this Megatron-Bridge builds alltoall"
    applies_to = conditions(found, {"model": "m", "cluster": "c"})
    policy = policy_from(found.settings, found.env, applies_to, found.source, notes=found.notes)
    assert set(policy.evidence) == {"kind", "role", "source", "note"}
    assert (policy.evidence["kind"], policy.evidence["source"]) == ("imported", "card.yaml, pretrain_performance.H100")
    assert "reported by the card, not measured here: step_time_ms 20147.29" in policy.evidence["note"]


@pytest.mark.usefixtures("asked")
def test_a_recipe_that_is_not_there_or_fails_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(PolicyError, match="the installed Megatron-Bridge has no recipe 'another_config'"):
        read_card(CARD, "card.yaml", "pretrain_performance.GB200", VERSIONS)

    def fails() -> None:
        raise RuntimeError("no hub here\nat all")

    monkeypatch.setattr(sys.modules["megatron.bridge.recipes"], "another_config", fails, raising=False)
    with pytest.raises(PolicyError, match=r"GB200 fails: RuntimeError: no hub here$"):
        read_card(CARD, "card.yaml", "pretrain_performance.GB200", VERSIONS)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\n", "^c.yaml: no model-verification card"),
        ("[]", "^c.yaml: no model-verification card"),
        ("items: [1", "^c.yaml:"),
        (CARD.replace("--nodes 2", "--nodes $N"), "^c.yaml:19: the command of pretrain_performance.H100 is not one"),
        (
            CARD.replace("--mode pretrain", "; reboot"),
            "^c.yaml:19: the command of pretrain_performance.H100 is not one",
        ),
        (CARD.replace("'dataset", '"dataset'), "^c.yaml:19:.* is not closed"),
    ],
)
def test_what_is_no_card_or_no_plain_command_is_refused_with_its_line(text: str, message: str) -> None:
    with pytest.raises(PolicyFormatError, match=message):
        card_runs(text, "c.yaml")
