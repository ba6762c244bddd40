"""What a command says of model, precision and contract, against the study's."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune_policies.settings import resolve
from autotune_trials.command.proof import RanOtherwise, from_dump, require_contract
from autotune_trials.programs import CommandSpec
from autotune_trials.spec import Contract, GangShape, ModelShape, Routing, TrialSpec

MODEL = ModelShape("tiny", 4, 64, 8, 512, 128, num_experts=4, moe_ffn_hidden_size=96, num_dense_layers=1)
SPEC = TrialSpec(
    "study", 0, MODEL, Contract(128, 8, steps=10, routing=Routing(source="natural")),
    resolve({"micro_batch_size": 1}), GangShape(1, 2), program="command", command=CommandSpec(("x",)),
)  # fmt: skip
HONEST: dict[str, Any] = {
    "seq_length": 128, "train_iters": 10, "global_batch_size": 8, "moe_router_force_load_balancing": False,
    "num_layers": 4, "hidden_size": 64, "num_attention_heads": 8, "num_experts": 4, "moe_router_topk": 2,
    "moe_ffn_hidden_size": 96, "moe_shared_expert_intermediate_size": None, "ffn_hidden_size": 128,
    "bf16": True, "fp16": False, "fp8": None,
}  # fmt: skip
OTHERWISE = {
    "bf16": False, "fp16": True, "fp8": "hybrid", "moe_router_force_load_balancing": True, "num_experts": None,
    "moe_shared_expert_intermediate_size": 64,
}  # fmt: skip


def said(spec: TrialSpec = SPEC, **changes: Any) -> str:
    """What is refused; empty when nothing is."""
    fields = {**HONEST, **changes}
    try:
        require_contract(spec, {"model": fields}, fields)
    except RanOtherwise as error:
        return str(error)
    return ""


def test_an_honest_run_is_accepted_and_so_is_one_that_says_little() -> None:
    assert said() == ""
    require_contract(SPEC, {"model": {}}, {})


@given(st.sampled_from(sorted(HONEST.keys() - {"fp16"})))  # bf16 and fp16 exclude each other
def test_every_field_is_held_against_the_contract(name: str) -> None:
    wrong = OTHERWISE.get(name, (HONEST[name] or 0) + 1)
    assert said(**{name: wrong}) != ""


def test_all_that_differs_is_named() -> None:
    message = said(num_layers=1, hidden_size=8, bf16=False, fp16=True)
    assert message == (
        "the command ran outside the study's contract: num_layers is 1, not 4; hidden_size is 8, not 64; "
        "precision is fp16, not bf16"
    )


def test_no_low_precision_is_full_precision() -> None:
    assert "precision is fp32, not bf16" in said(bf16=False)
    full = replace(SPEC, contract=replace(SPEC.contract, precision="fp32"))
    assert said(full, bf16=False) == ""
    scaled = replace(SPEC, contract=replace(SPEC.contract, precision="fp8_mx"))
    assert said(scaled, fp8="e4m3", fp8_recipe="mxfp8") == ""


def test_fields_that_mean_nothing_for_the_model_are_not_compared() -> None:
    no_dense_layer = replace(SPEC, model=replace(MODEL, num_dense_layers=0))
    assert said(no_dense_layer, ffn_hidden_size=256) == ""
    dense = replace(SPEC, model=replace(MODEL, num_experts=None))
    assert said(dense, num_experts=None, moe_router_topk=7, moe_ffn_hidden_size=None) == ""
    assert "num_experts is 4, not None" in said(dense)


@pytest.mark.trial
def test_a_printed_block_is_refused_before_its_settings_are_read() -> None:
    lines = [f"  {name} {'.' * (48 - len(name))} {value}" for name, value in (HONEST | {"num_layers": 1}).items()]
    text = "\n".join(["----- arguments -----", *lines, "----- end of arguments -----"])
    with pytest.raises(RanOtherwise, match=r"num_layers is 1, not 4$"):
        from_dump(text, SPEC)
