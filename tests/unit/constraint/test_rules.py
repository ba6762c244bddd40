"""Every legality rule has a configuration that breaks it and one beside it that does not."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.constraint.check import check
from autotune.constraint.rule import Candidate
from autotune.constraint.rules import RULES
from autotune_policies.settings import resolve
from autotune_trials.spec import Contract, GangShape, ModelShape

CASES: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("MC001", {"tensor_parallel": 3}, {"tensor_parallel": 2, "sequence_parallel": True}),
    ("MC002", {"expert_parallel": 3}, {"expert_parallel": 4}),
    ("MC008", {"expert_parallel": 2, "shape__num_experts": None}, {"expert_parallel": 1, "shape__num_experts": None}),
    ("MC009", {"expert_parallel": 8, "shape__num_experts": 12}, {"expert_parallel": 4, "shape__num_experts": 12}),
    (
        "MC011",
        {"tensor_parallel": 8, "shape__num_attention_heads": 4},
        {"tensor_parallel": 8, "sequence_parallel": True},
    ),
    (
        "MC012",
        {"tensor_parallel": 8, "shape__num_query_groups": 3},
        {"tensor_parallel": 8, "shape__num_query_groups": 2},
    ),
    ("MC014", {"sequence_parallel": True}, {"sequence_parallel": True, "tensor_parallel": 2}),
    ("MC015", {"tensor_parallel": 2}, {"tensor_parallel": 2, "sequence_parallel": True}),
    (
        "AT003",
        {"tensor_parallel": 8, "sequence_parallel": True, "contract__seq_length": 100},
        {"tensor_parallel": 2, "sequence_parallel": True, "contract__seq_length": 100},
    ),
    ("MC016", {"context_parallel": 4, "contract__seq_length": 36}, {"context_parallel": 2, "contract__seq_length": 36}),
    ("MC091", {"shape__router_topk": 17}, {"shape__router_topk": 16}),
    ("MC023", {"micro_batch_size": 8}, {"micro_batch_size": 4}),
    ("MC029", {"virtual_pipeline": 2}, {"virtual_pipeline": 2, "pipeline_parallel": 2}),
    (
        "MC027",
        {"virtual_pipeline": 2, "pipeline_parallel": 4, "contract__global_batch_size": 4},
        {"virtual_pipeline": 2, "pipeline_parallel": 4, "contract__global_batch_size": 8},
    ),
    ("MC035", {"pipeline_parallel": 4, "shape__num_layers": 6}, {"pipeline_parallel": 2, "shape__num_layers": 6}),
    (
        "MC035",
        {"pipeline_parallel": 2, "shape__mtp_num_layers": 1},
        {"pipeline_parallel": 1, "shape__mtp_num_layers": 1},
    ),
    (
        "MC045",
        {"pipeline_parallel": 2, "pipeline_layout": "Etttt|tttL"},
        {"pipeline_parallel": 2, "pipeline_layout": "Et*5|tttL"},
    ),
    (
        "MC045",
        {"pipeline_parallel": 4, "pipeline_layout": "Et*4|||t*4L"},
        {"pipeline_parallel": 4, "pipeline_layout": "Et*4|t|t|t*2L"},
    ),
    (
        "MC045",
        {"pipeline_parallel": 2, "pipeline_layout": "E|t*4|t*3|tL"},
        {"pipeline_parallel": 2, "virtual_pipeline": 2, "pipeline_layout": "E|t*4|t*3|tL"},
    ),
    ("AT001", {"dispatcher": "deepep"}, {"dispatcher": "deepep", "num_sms": 20}),
    ("AT001", {"num_sms": 20}, {"num_sms": None}),
    ("AT002", {"dispatcher": "hybridep", "num_sms": 16, "device": "cpu"}, {"dispatcher": "hybridep", "num_sms": 16}),
    ("MC065", {"dispatcher": "deepep", "num_sms": 20}, {"dispatcher": "deepep", "num_sms": 20, "expert_parallel": 8}),
    (
        "MC067",
        {"dispatcher": "deepep", "num_sms": 21, "expert_parallel": 8},
        {"dispatcher": "hybridep", "num_sms": 21, "expert_parallel": 8},
    ),
    (
        "MC068",
        {"dispatcher": "deepep", "num_sms": 20, "expert_parallel": 12, "ranks": 12, "shape__num_experts": 24},
        {"dispatcher": "deepep", "num_sms": 20, "expert_parallel": 24, "ranks": 24, "shape__num_experts": 24},
    ),
    (
        "MC069",
        {"dispatcher": "hybridep", "num_sms": 16, "expert_parallel": 2, "shape__num_experts": 2},
        {"dispatcher": "hybridep", "num_sms": 16, "expert_parallel": 2, "shape__num_experts": 4},
    ),
    (
        "MC069",
        {"dispatcher": "hybridep", "num_sms": 16, "shape__hidden_size": 264},
        {"dispatcher": "hybridep", "num_sms": 16},
    ),
    (
        "AT006",
        {"tensor_parallel": 2, "sequence_parallel": True, "stack": {"megatron_core": "0.16.1"}},
        {"tensor_parallel": 2, "sequence_parallel": True, "stack": {"megatron_core": "0.19.2"}},
    ),
    ("MC099", {"permute_fusion": True, "stack": {"torch": "2.9"}}, {"permute_fusion": True}),
    ("MC098", {"router_fusion": True, "stack": {"transformer_engine": "2.6.1"}}, {"router_fusion": True}),
    ("AT004", {"grouped_gemm": True, "stack": {}}, {"grouped_gemm": True}),
    ("MC086", {"shared_expert_overlap": True, "dispatcher": "allgather"}, {"shared_expert_overlap": True}),
    ("MC086", {"shared_expert_overlap": True, "shape__shared_expert_size": None}, {"shared_expert_overlap": True}),
    ("MC108", {"ep_overlap": True}, {"ep_overlap": True, "expert_parallel": 2}),
    (
        "MC108",
        {"ep_overlap": True, "expert_parallel": 2, "pipeline_parallel": 2},
        {"ep_overlap": True, "expert_parallel": 2, "pipeline_parallel": 2, "virtual_pipeline": 2},
    ),
    (
        "MC108",
        {"ep_overlap": True, "expert_parallel": 2, "stack": {"torch": "2.5.1"}},
        {"ep_overlap": True, "expert_parallel": 2, "stack": {"torch": "2.6.0+cpu"}},
    ),
    (
        "MC108",
        {"ep_overlap": True, "expert_parallel": 2, "contract__precision": "fp32"},
        {"ep_overlap": True, "expert_parallel": 2},
    ),
    ("MC119", {"delay_wgrad": True}, {"delay_wgrad": True, "ep_overlap": True, "expert_parallel": 2}),
    ("AT005", {"cuda_graph_impl": "local", "cuda_graph_modules": ["attn"], "device": "cpu"}, {"device": "cpu"}),
    (
        "MC131",
        {"cuda_graph_impl": "transformer_engine", "cuda_graph_modules": ["attn", "moe_preprocess"]},
        {"cuda_graph_impl": "transformer_engine", "cuda_graph_modules": ["attn", "moe_router", "moe_preprocess"]},
    ),
    ("MC131", {"cuda_graph_impl": "local"}, {"cuda_graph_impl": "local", "cuda_graph_modules": ["attn"]}),
    ("MC139", {"cuda_graph_impl": "full_iteration"}, {"cuda_graph_impl": "full_iteration", "shape__num_experts": None}),
    (
        "MC152",
        {"recompute_granularity": "full"},
        {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1},
    ),
    ("MC152", {"recompute_modules": ["mlp"]}, {"recompute_granularity": "selective", "recompute_modules": ["mlp"]}),
    (
        "MC156",
        {"recompute_granularity": "selective", "recompute_modules": ["moe_act"]},
        {"recompute_granularity": "selective", "recompute_modules": ["moe_act"], "grouped_gemm": True},
    ),
    (
        "MC156",
        {"recompute_granularity": "selective", "recompute_modules": ["mla_up_proj"]},
        {"recompute_granularity": "selective", "recompute_modules": ["mla_up_proj"], "shape__attention": "mla"},
    ),
    ("MC163", {"offload_modules": ["attn_proj"]}, {"offload_modules": ["core_attn", "attn_proj"]}),
    (
        "MC178",
        {"overlap_param_gather": True},
        {"overlap_param_gather": True, "overlap_grad_reduce": True, "distributed_optimizer": True},
    ),
]


@pytest.mark.parametrize(("rule", "broken", "legal"), CASES, ids=[f"{i}-{case[0]}" for i, case in enumerate(CASES)])
def test_the_rule_refuses_one_and_lets_the_other_pass(
    candidate: Callable[..., Candidate], rule: str, broken: dict[str, Any], legal: dict[str, Any]
) -> None:
    refused = {violation.rule: violation for violation in check(candidate(**broken))}
    passed = {violation.rule for violation in check(candidate(**legal))}

    assert rule in refused
    assert refused[rule].amount > 0
    assert refused[rule].message
    assert rule not in passed


def test_every_rule_has_a_case_and_a_source() -> None:
    assert {rule.id for rule in RULES} == {case[0] for case in CASES}
    assert len({rule.id for rule in RULES}) == len(RULES)
    assert all(rule.source for rule in RULES)


def test_the_plain_baseline_is_legal(candidate: Callable[..., Candidate]) -> None:
    assert check(candidate()) == []


def test_an_unknown_stack_holds_version_rules_back(candidate: Callable[..., Candidate]) -> None:
    assert check(candidate(permute_fusion=True, grouped_gemm=True, stack=None)) == []


small = st.sampled_from([1, 2, 3, 4, 8])


@given(tensor=small, pipeline=small, virtual=small, expert=small, context=small, micro=small)
def test_what_is_legal_divides_the_gang_the_batch_and_the_layers(
    tensor: int, pipeline: int, virtual: int, expert: int, context: int, micro: int
) -> None:
    shape = ModelShape("m", 8, 64, 8, 128, 128, num_experts=8, moe_ffn_hidden_size=32)
    judged = Candidate(
        settings=resolve({
            "tensor_parallel": tensor, "pipeline_parallel": pipeline, "virtual_pipeline": virtual,
            "expert_parallel": expert, "context_parallel": context, "micro_batch_size": micro,
            "sequence_parallel": tensor > 1,
        }),
        shape=shape, contract=Contract(seq_length=64, global_batch_size=16), gang=GangShape(1, 8, "cpu"),
    )  # fmt: skip

    violations = check(judged)

    assert all(violation.amount > 0 for violation in violations)
    if not violations:
        data_parallel = 8 // (tensor * pipeline * context)
        assert data_parallel * tensor * pipeline * context == 8
        assert 8 % (expert * pipeline) == 0
        assert 16 % (micro * data_parallel) == 0
        assert 8 % (pipeline * virtual) == 0
        assert virtual == 1 or (16 // (micro * data_parallel)) % pipeline == 0
