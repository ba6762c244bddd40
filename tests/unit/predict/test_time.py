import math
from collections.abc import Callable, Hashable
from statistics import mean
from time import process_time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.cluster import load_cluster
from autotune.errors import RequestError
from autotune.predict.compare import compare_times
from autotune.predict.efficiency import Observation, efficiency_error, learn_efficiency
from autotune.predict.imbalance import rank_imbalance
from autotune.predict.layers import assumed_layout, pipeline_chunks
from autotune.predict.numerics import MEGATRON_LM, bridge_numerics
from autotune.predict.placement import Placed
from autotune.predict.table import TableRow
from autotune.predict.time import BOUND_OF, UNCERTAINTY, TimeEstimate, predict_time
from autotune_policies.settings import resolve
from autotune_trials.spec import Contract, ModelShape, Routing

Rows = Callable[[str], tuple[tuple[TableRow, Placed], ...]]
Shape = Callable[[str], ModelShape]

CLUSTERS = {name: load_cluster(name) for name in ("h100", "h200", "b200", "b300", "gb200", "gb300")}


def _time(placed: Placed) -> TimeEstimate:
    facts = (placed.cluster, placed.model, placed.contract, placed.settings, placed.gang.world_size)
    return predict_time(*facts, numerics=placed.numerics)


def test_step_times_measured_on_b200_are_met(placed: Rows) -> None:
    errors = [
        abs(_time(where).step_time_s / row.measured["step_time_s"] - 1)
        for row, where in placed("b200_step_time_memory.tsv")
    ]
    assert len(errors) == 22
    assert mean(errors) <= 0.04
    assert max(errors) <= 0.15


@pytest.mark.parametrize(
    ("left_out", "bar"),
    [
        (lambda row, where: row.index, 0.12),
        (lambda row, where: (where.model.name, where.cluster.name, where.contract.precision, where.stack), 0.14),
        (lambda row, where: where.model.name, 0.16),
        (lambda row, where: where.stack, 0.14),
    ],
    ids=["row", "its twins", "its model", "its release"],
)
def test_published_throughput_is_met_with_one_factor_per_stack_from_other_rows(
    placed: Rows, left_out: Callable[[TableRow, Placed], Hashable], bar: float
) -> None:
    seen: list[tuple[Hashable, Observation]] = []
    for row, where in placed("bridge_perf_summary.tsv"):
        contract = where.contract
        tokens = contract.seq_length * contract.global_batch_size / where.gang.world_size
        measured_s = row.measured.get("step_time_s") or tokens / row.measured["tokens_per_s_per_gpu"]
        facts = (where.cluster.name, contract.precision, where.stack)
        seen.append((left_out(row, where), Observation(*facts, measured_s, _time(where).step_time_s)))
    errors = []
    for key, item in seen:
        others = [other for other_key, other in seen if other_key != key]
        efficiency = learn_efficiency(others, item.cluster, item.precision, item.stack) or 1.0
        errors.append(abs(item.predicted_s / efficiency / item.measured_s - 1))
    assert len(errors) == 145
    assert mean(errors) <= bar


KNOBS = ("dispatcher", "num_sms", "cuda_graph_impl", "cuda_graph_modules", "ep_overlap", "recompute_modules")
FIXED = (
    "group", "num_gpus", "precision", "seq_length", "micro_batch_size", "global_batch_size", "tensor_parallel",
    "pipeline_parallel", "virtual_pipeline", "context_parallel", "expert_parallel",
)  # fmt: skip


def _transport(row: TableRow) -> str:
    """DeepEP over NVSHMEM and over UCCL are two libraries; a pair of them changes more than one knob."""
    return next((name for name in ("UCCL", "NVSHMEM") if name in row.cells.get("note", "")), "")


def test_signs_of_measured_effects(placed: Rows) -> None:
    rows = [(row, where) for row, where in placed("controlled_ab_time.tsv") if "step_time_s" in row.measured]
    verdicts = []
    for index, (first, where) in enumerate(rows):
        for second, other in rows[index + 1 :]:
            if any(first.cells.get(name) != second.cells.get(name) for name in FIXED):
                continue
            changed = [name for name in KNOBS if first.cells.get(name) != second.cells.get(name)]
            ratio = first.measured["step_time_s"] / second.measured["step_time_s"]
            if len(changed) != 1 or abs(ratio - 1) < 0.03:
                continue
            if changed != ["dispatcher"] and _transport(first) != _transport(second):
                continue
            verdict = compare_times(_time(where), _time(other)).verdict
            verdicts.append((verdict, "a_faster" if ratio < 1 else "b_faster"))
    decided = [verdict == truth for verdict, truth in verdicts if verdict != "unsure"]
    assert len(verdicts) >= 40
    assert len(decided) / len(verdicts) >= 0.75
    assert mean(decided) >= 0.8


def _dsv3(shape: Shape, given: dict[str, Any] | None = None, **options: Any) -> TimeEstimate:
    settings = {
        "pipeline_parallel": 4, "virtual_pipeline": 4, "expert_parallel": 64, "dispatcher": "hybridep", "num_sms": 32,
        "permute_fusion": True, "overlap_grad_reduce": True, "overlap_param_gather": True,
    }  # fmt: skip
    contract = options.pop("contract", Contract(4096, 4096, "fp8_mx"))
    return predict_time(
        CLUSTERS["gb300"], shape("dsv3"), contract, resolve({**settings, **(given or {})}), 256, **options
    )


def test_parts_add_up_and_every_part_has_a_bound_and_an_error(shape: Shape) -> None:
    estimate = _dsv3(shape, {"ep_overlap": True})
    assert sum(estimate.parts.values()) == pytest.approx(estimate.step_time_s)
    assert set(estimate.parts) <= set(BOUND_OF) == set(UNCERTAINTY)
    assert all(value > 0 for value in estimate.parts.values())
    assert estimate.interval[0] < estimate.step_time_s < estimate.interval[1]
    assert estimate.tokens_per_s_per_gpu == pytest.approx(4096 * 4096 / 256 / estimate.step_time_s)
    assert 0 < estimate.mfu < 1


def test_measured_efficiency_scales_the_step_and_narrows_the_interval(shape: Shape) -> None:
    blind = _dsv3(shape)
    informed = _dsv3(shape, efficiency=2.0)
    assert informed.step_time_s == pytest.approx(blind.step_time_s / 2)
    assert _width(informed) < _width(blind)
    assert any("corrected the efficiency" in note for note in blind.notes)
    assert not any("corrected the efficiency" in note for note in informed.notes)
    assert blind.biggest_uncertainty == "stack"


def _qwen3_30b(shape: Shape, **given: Any) -> TimeEstimate:
    settings = {
        "dispatcher": "hybridep", "num_sms": 16, "expert_parallel": 16, "micro_batch_size": 2, "permute_fusion": True,
        "cuda_graph_impl": "transformer_engine", "cuda_graph_modules": ["moe_router", "moe_preprocess"],
    }  # fmt: skip
    contract = Contract(4096, 1024)
    return predict_time(CLUSTERS["h100"], shape("qwen3-30b"), contract, resolve({**settings, **given}), 16)


def test_offloading_costs_what_the_host_link_cannot_hide(shape: Shape) -> None:
    none = _qwen3_30b(shape)
    some = _qwen3_30b(shape, offload_modules=["moe_act"])
    more = _qwen3_30b(shape, offload_modules=["expert_fc1", "moe_act"])
    assert "activation_offload" not in none.parts
    assert none.step_time_s <= some.step_time_s < more.step_time_s
    # 22.6 GB of each of 32 micro-batches of 0.8 s pass a link of 50 GB/s, there and back.
    assert 0.3 * none.step_time_s < more.parts["activation_offload"] < 32 * 2 * 22.6 / 50
    assert max(more.parts, key=lambda name: more.parts[name]) == "activation_offload"
    assert any("host link" in note for note in more.notes)


def test_a_wider_host_link_hides_more(shape: Shape) -> None:
    settings = {"offload_modules": ["expert_fc1", "moe_act"], "expert_parallel": 8, "micro_batch_size": 4}
    exposed = [
        predict_time(
            CLUSTERS[name], shape("qwen3-30b"), Contract(4096, 1024), resolve(settings), 8
        ).parts.get("activation_offload", 0.0)
        for name in ("b200", "gb200")
    ]  # fmt: skip
    assert exposed[1] < 0.5 * exposed[0]


def test_block_recomputation_costs_by_the_layer(shape: Shape) -> None:
    model = ModelShape("small", 8, 2048, 16, 32000, 6144, num_query_groups=4)

    def step(**given: Any) -> float:
        return predict_time(CLUSTERS["h100"], model, Contract(4096, 64), resolve(given), 8).step_time_s

    block = {"recompute_granularity": "full", "recompute_method": "block"}
    none, one, four, eight = step(), *(step(**block, recompute_num_layers=layers) for layers in (1, 4, 8))
    assert none < one < four < eight == step(recompute_granularity="full")
    assert four - one == pytest.approx(3 * (one - none), rel=0.05)


@pytest.mark.parametrize("sms", [8, 32, 66, 100, 130])
def test_overlap_never_costs_more_than_running_one_after_the_other(shape: Shape, sms: int) -> None:
    plain, overlapped = (_qwen3_30b(shape, num_sms=sms, ep_overlap=overlap) for overlap in (False, True))
    assert overlapped.step_time_s - overlapped.parts["host"] <= plain.step_time_s - plain.parts["host"] + 1e-9


def test_time_and_memory_assume_the_same_layout(shape: Shape) -> None:
    model = shape("dsv3")
    layout = assumed_layout(model, 8)
    assert pipeline_chunks(model, 8, 1, None) == pipeline_chunks(model, 8, 1, layout)
    counts = [sum(count for _, count in chunk.blocks) for chunk in pipeline_chunks(model, 8, 1, None)]
    assert counts == [8, 8, 8, 8, 8, 8, 8, 5]
    assert assumed_layout(model, 61) is None  # even: nothing to assume


def _width(estimate: TimeEstimate) -> float:
    return (estimate.interval[1] - estimate.interval[0]) / estimate.step_time_s


def test_what_is_not_known_is_said(shape: Shape) -> None:
    natural = Contract(4096, 4096, "fp8_mx", routing=Routing(source="natural"))
    notes = _dsv3(shape, {"offload_modules": ["core_attn"]}, contract=natural).notes
    assert any("routing natural was not measured" in note for note in notes)
    assert any("offloaded" in note for note in notes)
    assert any("61 layers do not split evenly" in note for note in notes)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"pipeline_parallel": 3}, "gpus=256 must be a multiple of 3"),
        ({"micro_batch_size": 3}, "global_batch_size=4096 must be a multiple of"),
        ({"expert_parallel": 128}, "gpus=256 must be a multiple of 512"),
        ({"expert_parallel": 48}, "expert_parallel=48 must divide num_experts=256"),
        ({"pipeline_layout": "Et|L"}, "pipeline_layout has 2 stages"),
    ],
)
def test_what_does_not_divide_is_refused(shape: Shape, given: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        _dsv3(shape, given)


def test_a_cpu_has_no_time_model(shape: Shape) -> None:
    with pytest.raises(RequestError, match="cluster local: no time model"):
        predict_time(load_cluster("local"), shape("tiny-moe"), Contract(64, 8), resolve({}), 2)


@given(st.sampled_from(["alltoall", "deepep", "hybridep"]), st.sampled_from(["none", "full_iteration"]), st.booleans())
def test_recomputing_never_saves_time(dispatcher: str, graph: str, overlap: bool) -> None:
    model = ModelShape(
        "small", 8, 2048, 16, 32000, 6144, num_experts=64, router_topk=4, moe_ffn_hidden_size=1024, num_query_groups=4
    )
    common = {"dispatcher": dispatcher, "num_sms": 20, "cuda_graph_impl": graph, "ep_overlap": overlap}
    base = {**common, "expert_parallel": 8}
    more: dict[str, Any] = {**base, "recompute_granularity": "selective", "recompute_modules": ["moe_act", "layernorm"]}
    full: dict[str, Any] = {**base, "recompute_granularity": "full"}
    times = [
        predict_time(CLUSTERS["h100"], model, Contract(4096, 64), resolve(settings), 8).step_time_s
        for settings in (base, more, full)
    ]
    assert times == sorted(times)


@given(st.integers(1, 4), st.floats(1.0, 3.0), st.floats(0.0, 1.0))
def test_imbalance_and_micro_batches_only_add_time(log_batches: int, imbalance: float, more: float) -> None:
    model = ModelShape("small", 8, 2048, 16, 32000, 6144, num_experts=64, router_topk=4, moe_ffn_hidden_size=1024)
    settings = resolve({"expert_parallel": 8, "permute_fusion": True})

    def step(batches: int, factor: float) -> float:
        contract = Contract(4096, 8 * batches)
        return predict_time(CLUSTERS["h100"], model, contract, settings, 8, imbalance=factor).step_time_s

    assert step(2**log_batches, imbalance) <= step(2**log_batches, imbalance + more) + 1e-12
    assert step(2**log_batches, imbalance) < step(2 ** (log_batches + 1), imbalance)


def test_the_same_candidate_twice_is_undecided(shape: Shape) -> None:
    comparison = compare_times(_dsv3(shape), _dsv3(shape))
    assert (comparison.verdict, comparison.ratio, comparison.difference_s) == ("unsure", 1.0, 0.0)


def test_comparison_is_antisymmetric_and_says_why(shape: Shape) -> None:
    plain, overlapped = _dsv3(shape), _dsv3(shape, {"ep_overlap": True})
    assert compare_times(plain, overlapped).verdict == "b_faster"
    assert compare_times(overlapped, plain).verdict == "a_faster"
    assert compare_times(plain, overlapped).because[0][0] == "dispatch"


def test_forced_balance_is_nearly_even_and_natural_routing_is_not() -> None:
    assert rank_imbalance(Routing(), 4096, 8, 8) == pytest.approx(1.011, abs=2e-3)
    assert rank_imbalance(Routing(source="natural"), 4096, 8, 8) > 1.2
    assert rank_imbalance(Routing(source="natural"), 4096, 8, 1) == 1.0


def _observed(stack: str, ratio: float, cluster: str = "h100", precision: str = "bf16") -> Observation:
    return Observation(cluster, precision, stack, 1.0, ratio)


def test_a_stack_owns_its_efficiency_the_more_rows_it_has() -> None:
    other = [_observed("old", 1.0)]
    few = learn_efficiency([*other, _observed("new", 2.0)], "h100", "bf16", "new")
    many = learn_efficiency([*other, *[_observed("new", 2.0)] * 20], "h100", "bf16", "new")
    assert few is not None
    assert many is not None
    assert 1.0 < few < many < 2.0
    assert many == pytest.approx(2.0, rel=0.05)


def test_nothing_is_learned_from_another_cluster() -> None:
    assert learn_efficiency([_observed("old", 1.5)], "b200", "bf16", "old") is None
    with pytest.raises(ValueError, match="must be positive"):
        _observed("old", 0.0)


@given(st.floats(0.2, 5.0), st.integers(1, 5))
def test_equal_rows_draw_the_factor_from_1_to_what_they_show(ratio: float, count: int) -> None:
    some, more = (
        learn_efficiency([_observed("one", ratio)] * rows, "h100", "bf16", "one") for rows in (count, 100 * count)
    )
    assert some is not None
    assert more is not None
    assert min(1.0, ratio) <= min(some, more) <= max(some, more) <= max(1.0, ratio)
    assert abs(math.log(more / ratio)) <= abs(math.log(some / ratio))
    assert more == pytest.approx(ratio, rel=0.01)


def test_a_model_that_a_stack_never_ran_is_less_certain_on_it(shape: Shape) -> None:
    seen = [Observation("gb300", "fp8_mx", "one", 1.0, 1.1, "dsv3")]
    known, unknown = (efficiency_error(seen, "gb300", "fp8_mx", "one", model) for model in ("dsv3", "qwen3-30b"))
    assert known < unknown
    narrow, wide = (_dsv3(shape, efficiency=1.1, efficiency_error=error) for error in (known, unknown))
    assert _width(narrow) < _width(wide)


@pytest.mark.parametrize("imbalance", [0.5, 0.0, -1.0, math.nan])
def test_the_fullest_rank_has_no_less_than_the_mean(shape: Shape, imbalance: float) -> None:
    with pytest.raises(RequestError, match="must be at least 1"):
        _dsv3(shape, imbalance=imbalance)


@pytest.mark.parametrize(
    ("cluster", "gpus", "sequence", "given", "said"),
    [
        ("h100", 16, 1_048_576, {}, "sequences of 1048576 tokens"),
        ("h100", 16, 1, {}, "sequences of 1 tokens"),
        ("h100", 131_072, 4096, {}, "131072 GPUs"),
        ("h100", 16, 4096, {"tensor_parallel": 16}, "tensor parallelism of 16 leaves the NVLink domain of 8"),
        ("h100", 16, 4096, {"expert_tensor_parallel": 16}, "expert-tensor parallelism of 16"),
        ("h200", 16, 4096, {}, "no training step on H200"),
        ("h100", 16, 4096, {"precision": "fp32"}, "fp32 is timed as bf16"),
        ("h100", 512, 4096, {"expert_parallel": 512}, "at most 32 nodes, not 64"),
        ("b300", 8, 4096, {"expert_parallel": 8, "dispatcher": "deepep", "num_sms": 20}, "not measured on B300"),
        ("h100", 8, 4096, {"expert_parallel": 4, "dispatcher": "deepep", "num_sms": 20}, "with 8 ranks, not 4"),
        ("h100", 16, 4096, {}, None),
        ("gb200", 64, 8192, {"tensor_parallel": 4, "sequence_parallel": True}, None),
    ],
)
def test_outside_what_was_measured_the_estimate_says_so(
    cluster: str, gpus: int, sequence: int, given: dict[str, Any], said: str | None
) -> None:
    model = ModelShape(
        "some", 8, 4096, 64, 32000, 6144, num_experts=512, router_topk=4, moe_ffn_hidden_size=1536, num_query_groups=16
    )
    precision = given.pop("precision", "bf16")
    contract = Contract(sequence, gpus * 4, precision)
    notes = predict_time(CLUSTERS[cluster], model, contract, resolve(given), gpus, efficiency=1.0).notes
    assert any(said in note for note in notes) if said else notes == ()


def test_each_departure_widens_the_interval(shape: Shape) -> None:
    def step(*, fp32: bool, gpus: int) -> TimeEstimate:
        contract = Contract(4096, 8192, "fp32" if fp32 else "bf16")
        return predict_time(CLUSTERS["h100"], shape("llama3-8b"), contract, resolve({}), gpus, efficiency=1.0)

    widths = [_width(step(fp32=fp32, gpus=gpus)) for fp32, gpus in ((False, 1024), (True, 1024), (True, 2048))]
    assert widths == sorted(widths)
    assert widths[0] < widths[2]


def test_a_layer_split_over_nodes_is_slower_than_inside_a_domain() -> None:
    model = ModelShape("dense", 8, 8192, 64, 32000, 28672, num_query_groups=16)
    settings = resolve({"tensor_parallel": 16, "sequence_parallel": True})
    wide = CLUSTERS["h100"].model_copy(update={"nvlink_domain_gpus": 16})
    slow = CLUSTERS["h100"].model_copy(update={"nic_bytes_per_s": 10e9})
    inside, over, thin = (
        predict_time(cluster, model, Contract(4096, 16), settings, 16).parts["tensor_parallel"]
        for cluster in (wide, CLUSTERS["h100"], slow)
    )
    assert inside < over < thin


def test_an_optimizer_that_is_not_shared_out_costs_more(shape: Shape) -> None:
    shared, whole = (_qwen3_30b(shape, distributed_optimizer=shared) for shared in (True, False))
    assert whole.parts["optimizer"] > 1.5 * shared.parts["optimizer"]
    assert whole.parts["data_parallel"] > shared.parts["data_parallel"]


def test_narrow_gradients_are_reduced_faster(shape: Shape) -> None:
    wide, narrow = (_dsv3(shape, numerics=numerics) for numerics in (MEGATRON_LM, bridge_numerics("dsv3")))
    for part in ("data_parallel", "optimizer"):
        assert narrow.parts[part] < wide.parts[part]


def test_fused_experts_are_faster(shape: Shape) -> None:
    plain, fused = (_dsv3(shape, {"op_fuser": fused}) for fused in (False, True))
    for part in ("grouped_gemm", "elementwise"):
        assert fused.parts[part] < plain.parts[part]
    assert fused.step_time_s < plain.step_time_s


def test_gb300_is_faster_than_gb200(shape: Shape) -> None:
    settings = resolve({"pipeline_parallel": 4, "virtual_pipeline": 4, "expert_parallel": 64, "permute_fusion": True})
    older, newer = (
        predict_time(CLUSTERS[name], shape("dsv3"), Contract(4096, 4096, "fp8_mx"), settings, 256).step_time_s
        for name in ("gb200", "gb300")
    )
    assert 1.05 < older / newer < 1.35


def test_two_thousand_predictions_per_second(shape: Shape) -> None:
    model, contract = shape("dsv3"), Contract(4096, 4096, "fp8_mx")
    base = resolve({"pipeline_parallel": 4, "virtual_pipeline": 4, "expert_parallel": 64, "dispatcher": "hybridep"})
    candidates = [
        {**base, "num_sms": sms, "cuda_graph_impl": graph, "ep_overlap": overlap, "expert_parallel": expert}
        for sms in (16, 20, 24, 32)
        for graph in ("none", "full_iteration")
        for overlap in (False, True)
        for expert in (8, 16, 32, 64)
    ]
    start = process_time()
    for _ in range(8):
        for candidate in candidates:
            predict_time(CLUSTERS["gb300"], model, contract, candidate, 256)
    assert 8 * len(candidates) / (process_time() - start) >= 2000


def test_a_shared_expert_beside_the_dispatcher_hides_part_of_it(shape: Shape) -> None:
    beside = _dsv3(shape, {"shared_expert_overlap": True})
    assert 0 < beside.parts["dispatch"] < _dsv3(shape).parts["dispatch"]


def test_slower_links_move_time_to_communication() -> None:
    model = ModelShape("small", 8, 2048, 16, 32000, 6144, num_experts=64, router_topk=8, moe_ffn_hidden_size=256)
    settings = resolve({"expert_parallel": 32, "permute_fusion": True, "cuda_graph_impl": "full_iteration"})
    slow = CLUSTERS["h100"].model_copy(update={"nic_bytes_per_s": 5e9})
    estimates = [
        predict_time(cluster, model, Contract(4096, 256), settings, 32) for cluster in (CLUSTERS["h100"], slow)
    ]
    assert estimates[0].step_time_s < estimates[1].step_time_s
    assert estimates[1].bound == "communication"


def test_small_eager_micro_batches_are_bound_by_the_host() -> None:
    model = ModelShape("small", 8, 1024, 16, 32000, 4096, num_experts=64, router_topk=4, moe_ffn_hidden_size=256)

    def estimate(graph: str) -> TimeEstimate:
        settings = resolve({"expert_parallel": 8, "cuda_graph_impl": graph})
        return predict_time(CLUSTERS["b200"], model, Contract(1024, 512), settings, 8)

    assert estimate("none").bound == "host"
    assert estimate("full_iteration").step_time_s < 0.5 * estimate("none").step_time_s
