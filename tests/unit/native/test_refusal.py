"""What is refused before anything is built, and that each refusal is one line with the value."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune_trials.native.refusal import Rejected, check
from autotune_trials.spec import TrialSpec, spec_from

RELEASE = "0.19.2"


def spec(ranks: int = 4, device: str = "cpu", **changes: Any) -> TrialSpec:
    """A legal trial with changes: ``contract_x``, ``routing_x`` and ``model_x`` go there, the rest are settings."""
    model = {
        "name": "m", "num_layers": 4, "hidden_size": 8, "num_attention_heads": 2, "vocab_size": 16,
        "ffn_hidden_size": 16, "num_experts": 4, "moe_ffn_hidden_size": 8,
    }  # fmt: skip
    parts: dict[str, dict[str, Any]] = {
        "model": model, "contract": {"seq_length": 16, "global_batch_size": 16}, "routing": {}, "settings": {}
    }  # fmt: skip
    for name, value in changes.items():
        part, _, field = name.partition("_")
        parts[part if part in parts else "settings"][field if part in parts else name] = value
    contract = {**parts["contract"], "routing": parts["routing"]}
    gang = {"num_nodes": 1, "ranks_per_node": ranks, "device": device}
    trial = {"study": "s", "trial": 0, "contract": contract, "gang": gang}
    return spec_from({**trial, "model": parts["model"], "settings": parts["settings"]})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"dispatcher": "hybridep", "num_sms": 16}, "dispatcher=hybridep needs GPUs"),
        ({"cuda_graph_impl": "local"}, "cuda_graph_impl=local needs GPUs"),
        ({"contract_precision": "fp8_mxfp8"}, "precision=fp8_mxfp8 needs GPUs"),
        ({"grouped_gemm": True}, "grouped_gemm=true needs Transformer Engine"),
        ({"permute_fusion": True}, "permute_fusion=true needs Transformer Engine"),
        ({"router_fusion": True}, "router_fusion=true needs Transformer Engine"),
        ({"offload_modules": ["core_attn"]}, "offload_modules needs GPUs"),
        ({"context_parallel": 2}, "context_parallel=2 needs Transformer Engine"),
        ({"context_parallel": 4, "contract_seq_length": 12}, "seq_length=12 is no multiple of 2 x context_parallel=4"),
        ({"contract_steps": 1}, "contract.steps=1"),
        ({"contract_global_batch_size": 6}, "= 4 does not divide global_batch_size=6"),
        ({"pipeline_parallel": 3}, "= 3 does not divide the 4 ranks"),
        ({"expert_parallel": 3}, "= 3 does not divide the 4 ranks"),
        ({"routing_source": "replay"}, "routing.source='replay'"),
        ({"routing_data_condition": "real"}, "routing.data_condition='real'"),
        ({"routing_token_policy": "capacity"}, "routing.token_policy='capacity'"),
        ({"tensor_parallel": 2}, "tensor_parallel=2 with experts needs sequence_parallel: true"),
        ({"expert_parallel": 4, "model_num_experts": 6}, "expert_parallel=4 does not divide the 6 experts"),
        ({"expert_tensor_parallel": 2}, "expert_tensor_parallel=2"),
        (
            {"tensor_parallel": 4, "sequence_parallel": True, "contract_seq_length": 18},
            "seq_length=18 is no multiple of tensor_parallel=4",
        ),
        ({"device": "tpu"}, "gang.device='tpu'"),
        (
            {"pipeline_parallel": 4, "virtual_pipeline": 2, "contract_global_batch_size": 6},
            "6 micro-batches are no multiple of pipeline_parallel=4",
        ),
    ],
)  # fmt: skip
def test_it_is_refused_with_its_value(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(Rejected) as caught:
        check(spec(**changes), 4, RELEASE)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_delayed_weight_gradients_depend_on_the_release() -> None:
    trial = spec(delay_wgrad=True)
    check(trial, 4, "0.19.2")
    with pytest.raises(Rejected, match="delay_wgrad=true"):
        check(trial, 4, "0.16.1")


def test_gpus_may_do_what_a_cpu_may_not() -> None:
    check(spec(device="cuda", dispatcher="deepep", num_sms=24, cuda_graph_impl="local", grouped_gemm=True), 4, RELEASE)


def test_other_ranks_than_the_gang_has_are_refused() -> None:
    with pytest.raises(Rejected, match="WORLD_SIZE=8, but the gang has 4 ranks"):
        check(spec(), 8, RELEASE)


SIZE = st.sampled_from([1, 2, 3, 4, 8])


@given(pipeline=SIZE, tensor=SIZE, expert=SIZE, rows=SIZE, batch=st.integers(1, 64))
def test_what_passes_can_be_laid_out(pipeline: int, tensor: int, expert: int, rows: int, batch: int) -> None:
    trial = spec(
        8, pipeline_parallel=pipeline, tensor_parallel=tensor, sequence_parallel=True, expert_parallel=expert,
        micro_batch_size=rows, contract_global_batch_size=batch, contract_seq_length=48, model_num_experts=24,
    )  # fmt: skip
    replicas, rest = divmod(8, pipeline * tensor)
    whole = not rest and 8 % (pipeline * expert) == 0 and batch % (rows * replicas) == 0
    try:
        check(trial, 8, RELEASE)
    except Rejected:
        assert not whole
    else:
        assert whole
