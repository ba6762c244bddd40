import re
from collections.abc import Callable
from statistics import mean
from time import process_time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.cluster import Cluster, load_cluster
from autotune.errors import RequestError
from autotune.predict.compare import compare_times
from autotune.predict.efficiency import Observation, learn_efficiency
from autotune.predict.imbalance import rank_imbalance
from autotune.predict.time import BOUND_OF, UNCERTAINTY, TimeEstimate, predict_time
from autotune_policies.settings import Settings, resolve
from autotune_trials.spec import Contract, ModelShape, Routing

Rows = Callable[[str], list[dict[str, str]]]
Shape = Callable[[str], ModelShape]

CLUSTERS = {name: load_cluster(name) for name in ("h100", "h200", "b200", "b300", "gb200", "gb300")}

LLAMA3_70B = {"hidden_size": 8192, "num_attention_heads": 64, "vocab_size": 128256, "ffn_hidden_size": 28672}
DEEPSEEK_V2 = {
    "hidden_size": 5120, "num_attention_heads": 128, "vocab_size": 102400, "ffn_hidden_size": 12288,
    "num_dense_layers": 1, "num_experts": 160, "router_topk": 6, "moe_ffn_hidden_size": 1536,
    "shared_expert_size": 3072, "attention": "mla", "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_head_dim": 128,
    "qk_pos_emb_head_dim": 64, "v_head_dim": 128,
}  # fmt: skip
B200_MODELS: dict[str, dict[str, Any]] = {
    "llama3-70b": {**LLAMA3_70B, "num_query_groups": 8},
    "deepseekv2": DEEPSEEK_V2,
}


def _b200(row: dict[str, str]) -> TimeEstimate:
    size = {name: int(value) for name, value in re.findall(r"(tp|pp|ep|cp)(\d+)", row["parallel"])}
    sequence = re.search(r"seq(\d+)", row["case"])
    tensor, pipeline, context = (size.get(name, 1) for name in ("tp", "pp", "cp"))
    settings = resolve(
        {
            "tensor_parallel": tensor,
            "pipeline_parallel": pipeline,
            "context_parallel": context,
            "expert_parallel": size.get("ep", 1),
            "permute_fusion": True,
        }
    )
    model = ModelShape(row["model"], num_layers=int(row["layer_num"]), **B200_MODELS[row["model"]])
    batch = int(row["mbc"]) * (8 // (tensor * pipeline * context))
    contract = Contract(int(sequence[1]) if sequence else 4096, batch)
    return predict_time(CLUSTERS["b200"], model, contract, settings, 8)


def test_step_times_measured_on_b200_are_met(table: Rows) -> None:
    rows = table("b200_step_time_memory.tsv")
    errors = [abs(_b200(row).step_time_s * 1e3 / float(row["real_ms"]) - 1) for row in rows]
    assert len(errors) == 22
    assert mean(errors) <= 0.06
    assert max(errors) <= 0.15


def _settings(row: dict[str, str]) -> Settings:
    """The settings of a published row; blank cells take what the vendor's recipes of that time had."""

    def number(name: str) -> int:
        return int(float(row[name])) if row[name] else 1

    dispatcher = row["dispatcher"] or "hybridep"
    budget = re.match(r"\d+", row["num_sms"])
    recompute = [name for name in row["recompute_modules"].split(",") if name and name != "selective"]
    granularity = row["recompute_granularity"] or ("selective" if recompute else "none")
    return resolve(
        {
            **{
                name: number(name)
                for name in (
                    "micro_batch_size", "tensor_parallel", "pipeline_parallel", "virtual_pipeline", "context_parallel",
                    "expert_parallel", "expert_tensor_parallel",
                )
            },
            "dispatcher": dispatcher,
            "num_sms": int(budget[0]) if budget else {"deepep": 20, "hybridep": 16}.get(dispatcher),
            "cuda_graph_impl": row["cuda_graph_impl"] or "none",
            "cuda_graph_modules": [name for name in row["cuda_graph_modules"].split(",") if name],
            "ep_overlap": row["ep_overlap"] == "true",
            "recompute_granularity": None if granularity == "none" else granularity,
            "recompute_modules": (recompute or ["core_attn"]) if granularity == "selective" else [],
            "permute_fusion": "permute_fusion=false" not in row["note"],
            "overlap_grad_reduce": True,
            "overlap_param_gather": True,
        }
    )  # fmt: skip


def _cluster(row: dict[str, str]) -> Cluster:
    """The row's cluster; the runs of awslabs went over EFA."""
    cluster = CLUSTERS[row["cluster"]]
    return cluster.model_copy(update={"nic_proxied": True}) if "awslabs" in row["source"] else cluster


def _published(row: dict[str, str], shape: Shape) -> TimeEstimate:
    contract = Contract(int(row["seq_length"] or 4096), int(row["global_batch_size"]), row["precision"])
    return predict_time(_cluster(row), shape(row["model"]), contract, _settings(row), int(row["num_gpus"]))


def test_published_throughput_is_met_with_one_factor_per_stack_from_other_rows(table: Rows, shape: Shape) -> None:
    seen: list[tuple[dict[str, str], Observation]] = []
    for row in table("bridge_perf_summary.tsv"):
        if row["routing_mode"] != "forced_balance" or row["model"] == "nemotron3-ultra":  # no shape of it
            continue
        if int(row["expert_parallel"]) * int(row["pipeline_parallel"]) > int(row["num_gpus"]):
            continue  # one row was published so; it cannot have run
        predicted_s = _published(row, shape).step_time_s
        measured_s = float(row["step_time_s"])
        seen.append((row, Observation(row["cluster"], row["precision"], row["stack"], measured_s, predicted_s)))
    errors = []
    for index, (row, item) in enumerate(seen):
        others = [other for place, (_, other) in enumerate(seen) if place != index]
        efficiency = learn_efficiency(others, row["cluster"], row["precision"], row["stack"])
        assert efficiency is not None
        errors.append(abs(item.predicted_s / efficiency / item.measured_s - 1))
    assert len(errors) == 140
    assert mean(errors) <= 0.15


KNOBS = ("dispatcher", "num_sms", "cuda_graph_impl", "cuda_graph_modules", "ep_overlap", "recompute_modules")
FIXED = (
    "group", "num_gpus", "precision", "seq_length", "micro_batch_size", "global_batch_size", "tensor_parallel",
    "pipeline_parallel", "virtual_pipeline", "context_parallel", "expert_parallel",
)  # fmt: skip


def test_signs_of_measured_effects(table: Rows, shape: Shape) -> None:
    rows = [row for row in table("controlled_ab_time.tsv") if row["outcome"] == "ok" and row["step_time_s"]]
    verdicts = []
    for index, first in enumerate(rows):
        for second in rows[index + 1 :]:
            if any(first[name] != second[name] for name in FIXED):
                continue
            changed = [name for name in KNOBS if first[name] != second[name]]
            ratio = float(first["step_time_s"]) / float(second["step_time_s"])
            if len(changed) != 1 or abs(ratio - 1) < 0.03:
                continue
            verdict = compare_times(_published(first, shape), _published(second, shape)).verdict
            verdicts.append((verdict, "a_faster" if ratio < 1 else "b_faster"))
    decided = [verdict == truth for verdict, truth in verdicts if verdict != "unsure"]
    assert len(verdicts) >= 45
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
def test_equal_rows_are_reproduced(ratio: float, count: int) -> None:
    assert learn_efficiency([_observed("one", ratio)] * count, "h100", "bf16", "one") == pytest.approx(ratio)


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
