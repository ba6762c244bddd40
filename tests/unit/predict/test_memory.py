import sys
from statistics import mean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.cluster import load_cluster
from autotune.predict.memory import predict_memory
from autotune.predict.numerics import BRIDGE_BENCHMARK, Numerics
from autotune.predict.schedule import in_flight
from autotune_policies.settings import SETTINGS, resolve
from autotune_trials.spec import Contract, GangShape, ModelShape, Routing

GIB = 2**30
TWO_NODES = GangShape(2, 8)


def tell(line):
    """Shown by ``pytest -s``."""
    sys.stdout.write(f"{line}\n")


def memory(where):
    return predict_memory(where.model, where.contract, where.settings, where.gang, where.cluster, where.numerics)


def test_peaks_measured_on_b200(placed):
    errors = []
    for row, where in placed("b200_step_time_memory.tsv"):
        errors.append(memory(where).peak_memory_bytes / row.measured["peak_memory_bytes"] - 1)
        tell(f"{row.cells['case']:55} {errors[-1]:+.2%}")
    tell(f"MAPE {mean(map(abs, errors)):.2%}, bias {mean(errors):+.2%}, n {len(errors)}")
    assert len(errors) == 22
    assert mean(map(abs, errors)) < 0.005
    assert max(map(abs, errors)) < 0.01


def test_peaks_of_qwen3_30b_on_h100_with_one_knob_changed_at_a_time(placed):
    errors = []
    for row, where in placed("controlled_ab_memory.tsv"):
        if row.cells["model"] != "qwen3-30b" or row.failure or "peak_memory_bytes" not in row.measured:
            continue
        errors.append(memory(where).peak_memory_bytes / row.measured["peak_memory_bytes"] - 1)
        tell(f"{row.group:30} {errors[-1]:+.2%}")
    assert len(errors) == 7
    assert mean(map(abs, errors)) < 0.01


def test_runs_that_ran_fit_and_runs_out_of_memory_do_not(placed):
    right = {"ok": [], "oom": []}
    for row, where in placed("controlled_ab_memory.tsv"):
        outcome = row.cells["outcome"]
        right[outcome].append(memory(where).fits(where.cluster.gpu_memory_bytes) == (outcome == "ok"))
        if not right[outcome][-1]:
            tell(f"wrong: {outcome} {row.cells['model']} {row.group} {row.cells.get('note', '')[:80]}")
    tell({outcome: f"{sum(found)}/{len(found)}" for outcome, found in right.items()})
    assert len(right["oom"]) == 3
    assert all(right["oom"])
    assert mean(right["ok"]) >= 0.95


BYTES = {"float32": 4.0, "bfloat16": 2.0, "float16": 2.0, "None": 4.0}


def recipe_estimate(row, shape, cluster):
    def names(column, setting):
        legal = SETTINGS[setting].choices
        return [word for word in row[column].split(",") if word in legal]

    parameters, _, first, second = (BYTES[word] for word in row["optimizer_dtypes"].split("/"))
    settings = {name: int(row[name]) for name in row if name.endswith("_parallel") and row[name].isdigit()}
    settings |= {
        "micro_batch_size": int(row["micro_batch_size"]),
        "virtual_pipeline": int(row["virtual_pipeline"]),
        "pipeline_layout": row["pipeline_layout"] or None,
        "dispatcher": row["dispatcher"],
        "num_sms": 20 if row["dispatcher"] in ("deepep", "hybridep") else None,
        "cuda_graph_impl": row["cuda_graph_impl"],
        "cuda_graph_modules": names("cuda_graph_modules", "cuda_graph_modules"),
        "recompute_granularity": row["recompute_granularity"] or None,
        "recompute_modules": names("recompute_modules", "recompute_modules"),
        "recompute_num_layers": int(row["recompute_num_layers"]) if row["recompute_granularity"] == "full" else None,
        "offload_modules": names("offload_modules", "offload_modules"),
        "rank_capacity_factor": float(row["rank_capacity_factor"]) if row["rank_capacity_factor"] else None,
        "cuda_allocator": "expandable_segments",
    }
    for name in ("sequence_parallel", "permute_fusion_into_hybridep", "ep_overlap", "paged_stash"):
        settings[name] = row[name] == "True"
    numerics = Numerics(
        gradient_bytes=2.0, main_parameter_bytes=parameters, moment_bytes=first + second, cross_entropy="te",
        precision_aware_optimizer=row["precision_aware"] == "True", fp8_parameters=True,
    )  # fmt: skip
    contract = Contract(int(row["seq_length"]), int(row["global_batch_size"]), row["precision"])
    gang = GangShape(*cluster.nodes(int(row["num_gpus"])))
    return predict_memory(shape(row["model"]), contract, resolve(settings), gang, cluster, numerics)


def test_the_vendors_performance_recipes_fit_their_own_gpus(table, shape):
    clusters = {name: load_cluster(name) for name in ("h100", "b200", "b300", "gb200", "gb300")}
    fits = []
    for row in table("bridge_recipes_memory.tsv"):
        cluster = clusters[row["cluster"]]
        estimate = recipe_estimate(row, shape, cluster)
        fits.append(estimate.fits(cluster.gpu_memory_bytes))
        if not fits[-1]:
            tell(f"{row['name']}: {estimate.device_memory_bytes / cluster.gpu_memory_bytes:.2f} of the device")
    tell(f"{sum(fits)} of {len(fits)} fit")
    assert mean(fits) >= 0.95


def test_optimizer_state_on_the_host_is_both_moments(shape):
    # qwen3-30b on 16 H100s: 43.96 GiB with the optimizer on the GPU, 29.80 GiB without (sequence length unknown).
    settings = resolve({"tensor_parallel": 2, "sequence_parallel": True, "pipeline_parallel": 2, "expert_parallel": 4})
    here, there = (
        predict_memory(
            shape("qwen3-30b"), Contract(2048, 64), settings, TWO_NODES,
            numerics=Numerics(gradient_bytes=2.0, optimizer_on_host=share),
        )
        for share in (0.0, 1.0)
    )  # fmt: skip
    saved = (here.stages[0].optimizer - there.stages[0].optimizer) / GIB
    assert saved == pytest.approx(43.96 - 29.80, rel=0.02)


PROXY = ModelShape(
    "deepseek-v3-proxy", 14, 7168, 128, 258560, 18432, num_dense_layers=3, num_experts=64, router_topk=8,
    moe_ffn_hidden_size=2048, shared_expert_size=2048, expert_bias=True, attention="mla", q_lora_rank=1536,
    kv_lora_rank=512, qk_head_dim=128, qk_pos_emb_head_dim=64, v_head_dim=128, qk_layernorm=True, mtp_num_layers=1,
)  # fmt: skip
PROXY_H100 = {
    "tensor_parallel": 2, "pipeline_parallel": 4, "virtual_pipeline": 2, "expert_parallel": 16,
    "pipeline_layout": "Et*2|(tt|)*5t|tmL", "dispatcher": "hybridep", "num_sms": 16,
}  # fmt: skip
PROXY_GB200 = {
    "tensor_parallel": 2, "pipeline_parallel": 2, "expert_parallel": 8, "micro_batch_size": 4,
    "pipeline_layout": "Et*7|t*7mL", "dispatcher": "hybridep", "num_sms": 16,
}  # fmt: skip
MIXTRAL = ModelShape("mixtral-8x22b", 56, 6144, 48, 32000, 16384, num_query_groups=8, num_experts=8)
MIXTRAL_H100 = {"tensor_parallel": 2, "pipeline_parallel": 8, "expert_parallel": 8, "expert_tensor_parallel": 2}


# Megatron-LM's functional tests (tests/functional_tests/test_cases/mixtral, golden values of the dev branch), with real
# data: the peak that the last rank logged. The number of GPUs is not recorded: of the multiples of the parallel sizes
# it is the one that explains the optimizer's share. Early in training the fullest rank gets 2.5 times the mean load.
@pytest.mark.parametrize(
    ("model", "settings", "gang", "batch", "loss", "imbalance", "measured"),
    [
        (PROXY, PROXY_H100, GangShape(8, 8), 512, "te", None, 46597890048),
        (PROXY, PROXY_GB200, GangShape(8, 4), 512, "te", None, 100882341888),
        (PROXY, PROXY_H100, GangShape(8, 8), 512, "te", 2.5, 51804901376),
        (PROXY, PROXY_GB200, GangShape(8, 4), 512, "te", 2.5, 121791733760),
        (MIXTRAL, MIXTRAL_H100, GangShape(16, 8), 256, "unfused", 1.0, 28533706752),
    ],
)
def test_peaks_of_megatrons_own_release_tests(model, settings, gang, batch, loss, imbalance, measured):
    estimate = predict_memory(
        model, Contract(4096, batch, routing=Routing("natural")), resolve({**settings, "sequence_parallel": True}),
        gang, numerics=Numerics(cross_entropy=loss), imbalance=imbalance,
    )  # fmt: skip
    error = estimate.stages[-1].total / measured - 1
    tell(f"{model.name:20} {measured / GIB:7.2f} GiB  {error:+.2%}")
    assert abs(error) < 0.035


SMALL = ModelShape(
    "small", 8, 1024, 8, 32000, 4096, num_query_groups=4, num_experts=16, moe_ffn_hidden_size=512,
    shared_expert_size=512, num_dense_layers=1,
)  # fmt: skip
CONTRACT = Contract(4096, 256)


def small(settings=None, contract=CONTRACT, model=SMALL, gang=TWO_NODES, **rest):
    return predict_memory(model, contract, resolve(settings or {}), gang, **rest)


@pytest.mark.parametrize(
    ("settings", "part", "others"),
    [
        ({"recompute_granularity": "selective", "recompute_modules": ["moe_act"]}, "routed", set()),
        ({"recompute_granularity": "selective", "recompute_modules": ["moe"]}, "routed", {"shared"}),
        ({"recompute_granularity": "selective", "recompute_modules": ["mlp"]}, "dense", set()),
        ({"recompute_granularity": "selective", "recompute_modules": ["shared_experts"]}, "shared", set()),
        ({"recompute_granularity": "full"}, "routed", {"attention", "dense", "shared"}),
        ({"offload_modules": ["expert_fc1"]}, "routed", set()),
        ({"offload_modules": ["attn_norm"]}, "attention", set()),
    ],
)
def test_recompute_and_offload_take_from_their_own_part(settings, part, others):
    before, after = small().stages[0].parts(), small(settings).stages[0].parts()
    assert after[part] < before[part]
    touched = {name for name in before if after[name] != before[name]} - {"working", "logits", part}
    assert touched == others


def test_block_recompute_leaves_the_other_layers_alone():
    settings = {"recompute_granularity": "full", "recompute_method": "block"}
    none, one, four, eight = (
        sum(small(chosen).stages[0].parts()[part] for part in ("attention", "dense", "routed", "shared"))
        for chosen in ({}, *({**settings, "recompute_num_layers": layers} for layers in (1, 4, 8)))
    )
    # The first layer is the dense one; the others are alike.
    assert none > one
    assert one - four == pytest.approx(3 * (four - eight) / 4)


def test_deepep_buffers_grow_with_the_sms_it_is_lent():
    few, many = (small({"expert_parallel": 16, "dispatcher": "deepep", "num_sms": sms}) for sms in (8, 24))
    assert many.overhead.dispatcher == 3 * few.overhead.dispatcher
    assert small({"expert_parallel": 16}).overhead.dispatcher == 0


def test_expandable_segments_leave_less_unusable():
    fixed, expandable = (small({"cuda_allocator": kind}) for kind in ("fixed_segments", "expandable_segments"))
    assert expandable.overhead.fragmentation < fixed.overhead.fragmentation
    assert expandable.peak_memory_bytes == fixed.peak_memory_bytes


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"contract": Contract(4096, 256, "fp8_mxfp8")}, "fp8_mxfp8"),
        ({"contract": Contract(4096, 256, routing=Routing("natural"))}, "natural"),
        ({"settings": {"expert_parallel": 16, "dispatcher": "deepep", "num_sms": 20}}, "deepep"),
        ({"settings": {"cuda_graph_impl": "transformer_engine", "cuda_graph_modules": ["attn"]}}, "graphs"),
        ({"settings": {"offload_modules": ["core_attn"]}}, "offload"),
    ],
)
def test_outside_what_was_validated_the_estimate_says_so(changes, word):
    plain, doubtful = small(), small(**changes)
    assert plain.notes == ()
    assert any(word in note for note in doubtful.notes)
    assert doubtful.uncertainty > plain.uncertainty


def test_ranks_that_do_not_fit_the_parallel_sizes_are_refused():
    with pytest.raises(ValueError, match="16 ranks are no multiple of tensor x pipeline x context parallel = 3"):
        small({"tensor_parallel": 3})


@given(st.sampled_from([1, 2, 4]), st.sampled_from([1, 2]), st.sampled_from([1, 2, 4]), st.integers(1, 3))
def test_parts_add_up_and_the_worst_stage_is_reported(pipeline, virtual, expert, micro_batch):
    estimate = small(
        {"pipeline_parallel": pipeline, "virtual_pipeline": virtual if pipeline > 1 else 1, "expert_parallel": expert,
         "micro_batch_size": micro_batch}
    )  # fmt: skip
    totals = [sum(stage.parts().values()) for stage in estimate.stages]
    assert len(totals) == pipeline
    assert min(value for stage in estimate.stages for value in stage.parts().values()) >= 0
    assert totals[estimate.worst_stage] == max(totals) == pytest.approx(estimate.peak_memory_bytes, abs=1)
    assert not estimate.fits(estimate.device_memory_bytes - 1)
    assert estimate.fits(estimate.device_memory_bytes)


@given(st.floats(1.0, 4.0), st.floats(1.0, 4.0))
def test_more_imbalance_never_needs_less(low, high):
    low, high = sorted((low, high))
    assert small(imbalance=low).peak_memory_bytes <= small(imbalance=high).peak_memory_bytes


@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 4), st.booleans())
def test_passes_in_flight_are_those_that_a_rank_has_run_before_its_first_backward(pipeline, virtual, groups, overlap):
    microbatches = pipeline * groups
    for rank in range(pipeline):
        flights = in_flight(pipeline, rank, virtual, microbatches, overlap)
        if virtual == 1:
            assert flights == (min(microbatches, pipeline - rank),)
            continue
        # The order of forward passes: groups of as many micro-batches as ranks, through all chunks in turn.
        order = [chunk for _ in range(groups) for chunk in range(virtual) for _ in range(pipeline)]
        warm_up = 2 * (pipeline - rank - 1) + (virtual - 1) * pipeline + overlap
        started = order[: warm_up + 1]
        assert flights == tuple(started.count(chunk) for chunk in range(virtual))


def test_gradients_in_bf16_take_half(shape):
    wide, narrow = small(), small(numerics=BRIDGE_BENCHMARK)
    assert narrow.stages[0].gradients == wide.stages[0].gradients / 2


def test_narrower_formats_need_less():
    wide, fp8, fp4 = (
        small(contract=Contract(4096, 256, precision), numerics=BRIDGE_BENCHMARK).stages[0]
        for precision in ("bf16", "fp8_mx", "nvfp4")
    )
    assert fp8.weights == wide.weights  # two copies of a byte stand for one of two
    # NVFP4 keeps the bf16 weight and two copies of half a byte and a scale.
    assert 1.3 < fp4.weights / wide.weights < 1.6
    assert fp4.routed < fp8.routed < wide.routed
