"""The same contract trained in different layouts: every layout really runs, and all of them train the same model."""

from typing import Any

import pytest

EXACT = 1e-4
"""Bound on loss and gradient norm in fp32: only the order of sums differs between layouts."""


def baseline(trained: Any) -> Any:
    return trained(2, expert_parallel=2)


def assert_same_training(run: Any, other: Any, tolerance: float = EXACT) -> None:
    assert run.losses == pytest.approx(other.losses, abs=tolerance)
    assert run.grad_norms == pytest.approx(other.grad_norms, abs=tolerance)
    assert run.resolved["num_parameters"] == other.resolved["num_parameters"]


def test_every_rank_reports_its_life(trained: Any) -> None:
    run = baseline(trained)
    for rank in range(2):
        names = [event["event"] for event in run.events[rank]]
        assert names == ["started", "imported", "built", "step", "step", "step", "finished"]
        finished = run.named("finished", rank)[0]
        assert finished["steps"] == 3
        assert finished["peak_memory_kind"] == "rss_over_imports"
        # Weights, gradients and Adam's state of half a million parameters, and less than any import.
        assert 5e6 < finished["peak_memory_bytes"] < 1e9
        assert run.named("imported", rank)[0]["rss_bytes"] > 1e8
    assert all("resolved" not in event for event in run.named("built", 1))
    assert all(record.tokens == 4 * 32 and 0 < record.step_time_s < 100 for record in run.records)
    assert run.resolved["dispatcher_class"] == "MoEAlltoAllTokenDispatcher"
    assert run.resolved["schedule"] == "forward_backward_no_pipelining"
    assert run.resolved["stages"] == [["EttttL"]]


def test_num_parameters_is_that_of_the_whole_model(trained: Any) -> None:
    hidden, experts, width, vocabulary, layers, heads, groups = 64, 8, 64, 512, 4, 4, 2
    attention = hidden * hidden // heads * (heads + 2 * groups) + hidden * hidden
    layer = attention + experts * 3 * hidden * width + hidden * experts + 2 * hidden
    assert baseline(trained).resolved["num_parameters"] == layers * layer + 2 * vocabulary * hidden + hidden


def test_allgather_trains_like_alltoall(trained: Any) -> None:
    run = trained(2, expert_parallel=2, dispatcher="allgather")
    assert run.resolved["dispatcher_class"] == "MoEAllGatherTokenDispatcher"
    assert_same_training(run, baseline(trained))


def test_replicas_train_like_expert_parallelism(trained: Any) -> None:
    run = trained(2, distributed_optimizer=False)
    assert_same_training(run, baseline(trained))


def test_interleaved_layout_trains_like_expert_parallelism(trained: Any) -> None:
    run = trained(2, pipeline_parallel=2, virtual_pipeline=2, pipeline_layout="Et|t*2|t|L")
    assert run.resolved["schedule"] == "forward_backward_pipelining_with_interleaving"
    assert run.resolved["stages"] == [["Et", "t"], ["tt", "L"]]
    assert_same_training(run, baseline(trained))


def test_tensor_and_sequence_parallelism_trains_like_expert_parallelism(trained: Any) -> None:
    run = trained(2, tensor_parallel=2, sequence_parallel=True, expert_parallel=2)
    assert_same_training(run, baseline(trained))


def test_overlap_trains_like_no_overlap(trained: Any) -> None:
    shared = {"model": {"shared_expert_size": 64}, "contract": {"precision": "bf16"}}
    plain = trained(2, expert_parallel=2, overlap_grad_reduce=True, **shared)
    overlapped = trained(2, expert_parallel=2, ep_overlap=True, **shared)
    beside = trained(2, expert_parallel=2, shared_expert_overlap=True, **shared)
    assert overlapped.losses == pytest.approx(plain.losses, abs=2e-3)
    assert beside.losses == pytest.approx(plain.losses, abs=2e-3)


def test_recomputation_changes_no_number(trained: Any) -> None:
    selective = trained(
        2, expert_parallel=2, recompute_granularity="selective", recompute_modules=["core_attn", "layernorm", "moe"]
    )
    full = trained(
        2, expert_parallel=2, recompute_granularity="full", recompute_method="uniform", recompute_num_layers=2
    )
    assert_same_training(selective, baseline(trained), tolerance=1e-6)
    assert_same_training(full, baseline(trained), tolerance=1e-6)


def test_four_ranks_with_everything_at_once(trained: Any) -> None:
    run = trained(
        4, contract={"precision": "bf16"}, expert_parallel=2, pipeline_parallel=2, virtual_pipeline=2, ep_overlap=True
    )
    assert run.resolved["schedule"] == "forward_backward_pipelining_with_interleaving"
    assert run.resolved["stages"] == [["Et", "t"], ["t", "tL"]]
    assert run.losses == pytest.approx(baseline(trained).losses, abs=2e-3)


def test_forced_balance_gives_both_dispatchers_the_same_routing(trained: Any) -> None:
    forced = {"routing": {"source": "forced_balance"}, "expert_parallel": 2}
    alltoall, allgather = trained(2, **forced), trained(2, dispatcher="allgather", **forced)
    assert_same_training(allgather, alltoall)
    assert alltoall.losses != baseline(trained).losses


def test_training_learns_a_predictable_text(trained: Any) -> None:
    run = trained(
        2,
        contract={"steps": 10},
        routing={"source": "natural", "data_condition": "mock_arange"},
        expert_parallel=2,
    )
    assert run.losses[-1] < run.losses[0] - 1.0


def test_latent_attention_and_a_biased_sigmoid_router(trained: Any) -> None:
    model = {
        "attention": "mla", "q_lora_rank": 32, "kv_lora_rank": 32, "qk_head_dim": 16, "qk_pos_emb_head_dim": 8,
        "v_head_dim": 24, "num_query_groups": None, "router_score_function": "sigmoid", "expert_bias": True,
        "router_num_groups": 4, "router_group_topk": 2, "num_dense_layers": 1,
    }  # fmt: skip
    run = trained(2, model=model, expert_parallel=2)
    assert run.losses[0] == pytest.approx(6.25, abs=0.1)  # log(512): an untrained model knows nothing


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({"pipeline_parallel": 2}, id="pipeline"),
        pytest.param({"pipeline_parallel": 2, "pipeline_layout": "Ettt|tL"}, id="uneven-layout"),
        pytest.param({"pipeline_parallel": 2, "virtual_pipeline": 2, "overlap_grad_reduce": True}, id="interleaved"),
        pytest.param({"overlap_grad_reduce": True, "overlap_param_gather": True}, id="param-gather"),
        pytest.param({"expert_parallel": 1}, id="replicas"),
        pytest.param({"expert_parallel": 2, "distributed_optimizer": False}, id="ep2-without-distributed-optimizer"),
        pytest.param(
            {
                "pipeline_parallel": 2, "recompute_granularity": "full", "recompute_method": "block",
                "recompute_num_layers": 1,
            },
            id="full-block-recompute",
        ),
    ],
)  # fmt: skip
def test_more_layouts_of_two_ranks_train_the_same(trained: Any, settings: dict[str, Any]) -> None:
    assert_same_training(trained(2, **settings), baseline(trained))


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({"expert_parallel": 4}, id="ep4"),
        pytest.param({"expert_parallel": 2}, id="ep2-dp2"),
        pytest.param({"expert_parallel": 2, "pipeline_parallel": 2}, id="ep2-pp2"),
        pytest.param({"expert_parallel": 4, "tensor_parallel": 2, "sequence_parallel": True}, id="tp2-ep4"),
        pytest.param(
            {"expert_parallel": 2, "pipeline_parallel": 2, "tensor_parallel": 2, "sequence_parallel": True},
            id="tp2-ep2-pp2",
        ),
        pytest.param(
            {
                "expert_parallel": 2, "pipeline_parallel": 2, "virtual_pipeline": 2, "overlap_grad_reduce": True,
                "overlap_param_gather": True, "dispatcher": "allgather",
            },
            id="ep2-pp2-vpp2-overlaps",
        ),
        pytest.param({"pipeline_parallel": 4}, id="pp4"),
    ],
)  # fmt: skip
def test_more_layouts_of_four_ranks_train_the_same(trained: Any, settings: dict[str, Any]) -> None:
    assert_same_training(trained(4, **settings), baseline(trained))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "settings"),
    [
        pytest.param({"tied_embeddings": True, "qk_layernorm": True}, {"pipeline_parallel": 2}, id="tied-embeddings"),
        pytest.param({"mtp_num_layers": 1}, {"pipeline_parallel": 2}, id="multi-token-prediction"),
        pytest.param({"num_experts": None}, {"pipeline_parallel": 2}, id="dense"),
        pytest.param({"router_topk": 1}, {"expert_parallel": 2}, id="top1"),
        pytest.param(
            {"shared_expert_size": 64, "num_dense_layers": 1},
            {
                "expert_parallel": 2, "recompute_granularity": "selective",
                "recompute_modules": ["mlp", "shared_experts"],
            },
            id="shared-recompute",
        ),
    ],
)  # fmt: skip
def test_model_families_train_the_same_in_any_layout(
    trained: Any, model: dict[str, Any], settings: dict[str, Any]
) -> None:
    run, replicas = trained(2, model=model, **settings), trained(2, model=model)
    assert run.losses == pytest.approx(replicas.losses, abs=EXACT)


@pytest.mark.slow
def test_delayed_weight_gradients(launch: Any, trained: Any, release: tuple[int, int]) -> None:
    options: dict[str, Any] = {"contract": {"precision": "bf16"}, "expert_parallel": 2, "ep_overlap": True}
    if release >= (0, 19):
        assert trained(2, delay_wgrad=True, **options).losses == trained(2, **options).losses
    else:
        run = launch(2, delay_wgrad=True, **options)
        assert 2 in run.exit_codes
        assert "delay_wgrad=true" in run.failures[0]["message"]


@pytest.mark.slow
def test_tensor_parallel_experts_without_expert_parallelism(
    launch: Any, trained: Any, release: tuple[int, int]
) -> None:
    """0.16 would train them wrongly, so it is refused there; 0.19 is right."""
    settings: dict[str, Any] = {"tensor_parallel": 2, "sequence_parallel": True}
    if release >= (0, 19):
        assert_same_training(trained(2, **settings), baseline(trained))
    else:
        run = launch(2, **settings)
        assert 2 in run.exit_codes
        assert "expert_parallel >= 2" in run.failures[0]["message"]


def test_settings_around_the_program_are_in_force_and_change_no_result(trained: Any) -> None:
    run = trained(
        2, expert_parallel=2, manual_gc_interval=2, cuda_device_max_connections=1, layernorm_sm_margin=4,
        env={
            "CUDA_DEVICE_MAX_CONNECTIONS": "1", "NVTE_FWD_LAYERNORM_SM_MARGIN": "4",
            "NVTE_BWD_LAYERNORM_SM_MARGIN": "4",
        },
    )  # fmt: skip
    assert_same_training(run, baseline(trained))


def test_a_setting_whose_variable_is_missing_is_not_claimed(launch: Any) -> None:
    run = launch(1, cuda_device_max_connections=1)
    assert run.resolved["settings"]["cuda_device_max_connections"] is None
