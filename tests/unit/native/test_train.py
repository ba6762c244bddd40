"""Which policies may be trained here, and what exactly would run."""

from dataclasses import asdict, replace
from typing import Any

import pytest

from autotune_policies.policy import Policy
from autotune_policies.settings import resolve
from autotune_trials.spec import Contract, GangShape, ModelShape
from autotune_trials.train import CannotTrain, check_here, main, spec_of

MODEL = ModelShape(name="tiny", num_layers=2, hidden_size=8, num_attention_heads=2, vocab_size=16, ffn_hidden_size=16)
CONTRACT = Contract(seq_length=16, global_batch_size=8, warmup_steps=3)
STACK = {"megatron_core": "0.16.1", "torch": "2.13.0"}


def policy(gang: GangShape | None = None, **changes: Any) -> Policy:
    gang = gang or GangShape(1, 2, "cpu")
    base = Policy(
        applies_to={
            "model": "tiny", "cluster": "local", "num_gpus": {"min": 2, "max": 8}, "precision": "bf16",
            "seq_length": 16, "global_batch_size": 8, "stack": {"megatron_core": "0.16.1"},
        },
        settings=resolve({"micro_batch_size": 2}),
        env={"A": "1"},
        launch={},
        evidence={"contract": {"model": asdict(MODEL), "contract": asdict(CONTRACT), "gang": asdict(gang)}},
        name="p.yaml",
    )  # fmt: skip
    return base._replace(**changes)


def test_the_policy_describes_its_own_run() -> None:
    spec = spec_of(policy())
    assert (spec.model, spec.contract, spec.gang) == (MODEL, CONTRACT, GangShape(1, 2, "cpu"))
    assert spec.settings == resolve({"micro_batch_size": 2})
    assert spec.env == {"A": "1"}
    check_here(policy(), spec, {"A": "1"}, STACK, num_gpus=0)


def test_other_numbers_of_steps() -> None:
    assert spec_of(policy(), 20).contract == replace(CONTRACT, steps=20)
    assert spec_of(policy(), 2).contract == replace(CONTRACT, steps=2, warmup_steps=1)
    with pytest.raises(CannotTrain, match="--steps=1"):
        spec_of(policy(), 1)


@pytest.mark.parametrize(
    "evidence",
    [
        {},
        {"contract": None},
        {"contract": {}},
        {"contract": {"model": asdict(MODEL), "contract": {"seq_length": "x"}, "gang": {}}},
        {"contract": {"model": asdict(MODEL), "contract": [1], "gang": {}}},
    ],
)
def test_a_policy_without_a_contract_names_what_is_missing(evidence: dict[str, Any]) -> None:
    with pytest.raises(CannotTrain, match=r"p\.yaml: evidence\.contract"):
        spec_of(policy(evidence=evidence))


@pytest.mark.parametrize(
    ("environ", "stack", "changes", "words"),
    [
        ({}, STACK, {}, "A is not set, not 1"),
        ({"A": "2"}, STACK, {}, "A is 2, not 1"),
        ({"A": "1"}, {"megatron_core": "0.19.2"}, {}, "stack.megatron_core is 0.19.2"),
        ({"A": "1"}, {"torch": "2.13.0"}, {}, "megatron-core is not installed"),
        ({"A": "1"}, STACK, {"gang": GangShape(1, 16, "cpu")}, "num_gpus is 16"),
        ({"A": "1"}, STACK, {"gang": GangShape(2, 2, "cpu")}, "2 nodes"),
        ({"A": "1"}, STACK, {"gang": GangShape(1, 4, "cuda")}, "needs 4 GPUs on this machine, which has 3"),
    ],
)
def test_a_policy_for_another_run_is_refused(
    environ: dict[str, str], stack: dict[str, str], changes: dict[str, Any], words: str
) -> None:
    chosen = policy(**changes)
    with pytest.raises(CannotTrain) as caught:
        check_here(chosen, spec_of(chosen), environ, stack, num_gpus=3)
    assert words in str(caught.value)


def test_a_file_that_is_no_policy_is_exit_2_without_a_traceback(
    tmp_path: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "p.yaml"
    path.write_text("schema: other\n")
    for name in (path, tmp_path / "missing.yaml"):
        assert main(["--policy", str(name)]) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert err.startswith("error: ")
