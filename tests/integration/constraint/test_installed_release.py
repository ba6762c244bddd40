"""One-sided oracle: whatever the rules call legal, the installed Megatron-Core accepts."""

import importlib.util
import warnings
from dataclasses import replace
from importlib import metadata
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from autotune.constraint.check import check
from autotune.constraint.rule import Candidate
from autotune.space.layout import generate
from autotune_policies.megatron_core import render
from autotune_policies.settings import DISPATCHERS, FLEX_DISPATCHERS, SETTINGS, resolve
from autotune_trials.spec import Contract, GangShape, ModelShape, TrialSpec

pytestmark = [
    pytest.mark.trial,
    pytest.mark.skipif(
        importlib.util.find_spec("torch") is None or importlib.util.find_spec("megatron") is None,
        reason="megatron-core is not installed",
    ),
]

TRANSFORMER_ENGINE = "2.14.0"
FLAGS = (
    "permute_fusion", "router_fusion", "grouped_gemm", "op_fuser", "shared_expert_overlap", "paged_stash",
    "permute_fusion_into_hybridep",
)  # fmt: skip
RARELY = st.sampled_from([False, False, False, True])

SHAPE = ModelShape(
    name="m", num_layers=8, hidden_size=256, num_attention_heads=8, vocab_size=512, ffn_hidden_size=512,
    num_experts=16, moe_ffn_hidden_size=128,
)  # fmt: skip


@st.composite
def shapes(draw: st.DrawFn) -> ModelShape:
    dense = draw(RARELY) and draw(RARELY)
    attention = draw(st.sampled_from(["mha", "mha", "mla"]))
    grouped = draw(RARELY)
    return replace(
        SHAPE,
        num_layers=draw(st.sampled_from([4, 6, 8])),
        num_experts=None if dense else draw(st.sampled_from([8, 16])),
        num_query_groups=draw(st.sampled_from([None, 2, 4])),
        router_topk=draw(st.sampled_from([1, 2, 4])),
        shared_expert_size=None if dense else draw(st.sampled_from([None, 128])),
        num_dense_layers=draw(st.sampled_from([0, 0, 1, 2])),
        router_score_function=draw(st.sampled_from(["softmax", "sigmoid", "sqrtsoftplus"])),
        router_num_groups=4 if grouped else None,
        router_group_topk=draw(st.sampled_from([1, 2, 4, 8])) if grouped else None,
        expert_bias=draw(RARELY),
        attention=attention,
        mtp_num_layers=draw(st.sampled_from([0, 0, 1, 2])),
    )


@st.composite
def layouts(draw: st.DrawFn, layers: int, stages: int, mtp: int) -> str | None:
    """Even or generated layouts, and some that moved a layer, lost one, or have the prediction layers elsewhere."""
    kind = draw(st.sampled_from([None, "even", "light_last", "broken", "moved"]))
    if kind is None or stages > layers:
        return None
    text = generate("light_last" if kind in ("broken", "moved") else kind, layers, stages, mtp)
    if kind == "moved" and text and mtp:
        parts = text.replace("m", "").split("|")
        for _ in range(mtp):
            parts[draw(st.integers(max(0, stages - 3), stages - 1))] += "m"
        parts[-1] = parts[-1].replace("L", "") + "L"
        return "|".join(parts)
    if kind == "broken" and text:
        place = draw(st.integers(0, len(text) - 1))
        text = text[:place] + draw(st.sampled_from(["", "t", "|", "m"])) + text[place + 1 :]
    return text


@st.composite
def candidates(draw: st.DrawFn, stack: dict[str, str]) -> Candidate:
    """Legal candidates far from the defaults: changes are put on top of each other while the rules allow it."""
    precision = draw(st.sampled_from(["bf16", "bf16", "bf16", "fp32", "fp8_tensorwise", "fp8_delayed"]))
    plain = Candidate(
        settings=resolve({}), shape=draw(shapes()), contract=Contract(128, 32, precision), gang=GangShape(2, 8),
        nvlink_domain_gpus=8, stack=stack,
    )  # fmt: skip
    assume(not check(plain))
    for change in draw(st.permutations(draw(changes(plain.shape)))):
        changed = replace(plain, settings=resolve({**plain.settings, **change}))
        if not check(changed):
            plain = changed
    return plain


@st.composite
def changes(draw: st.DrawFn, shape: ModelShape) -> list[dict[str, Any]]:
    """Settings that make sense together, in groups."""
    tensor, pipeline, virtual = (draw(st.sampled_from(some)) for some in ([1, 2, 4], [1, 2, 4], [1, 2]))
    dispatcher = draw(st.sampled_from(DISPATCHERS))
    experts = {
        "dispatcher": dispatcher, "expert_parallel": draw(st.sampled_from([2, 4, 8])),
        "num_sms": 20 if dispatcher in FLEX_DISPATCHERS else None,
    }  # fmt: skip
    if dispatcher in ("hybridep", "ncclep"):
        experts |= draw(st.sampled_from([{}, {"rank_capacity_factor": 1.5, "op_fuser": True, "grouped_gemm": True}]))
    graphs = draw(st.sampled_from(["local", "transformer_engine", "full_iteration"]))
    modules = [] if graphs == "full_iteration" else draw(names("cuda_graph_modules"))
    recompute = draw(
        st.sampled_from([
            {"recompute_granularity": "selective", "recompute_modules": draw(names("recompute_modules"))},
            {"recompute_granularity": "full", "recompute_method": "block", "recompute_num_layers": 1},
        ])
    )  # fmt: skip
    layout = draw(layouts(shape.num_layers, pipeline * virtual, shape.mtp_num_layers))
    groups: list[dict[str, Any]] = [
        experts,
        {"tensor_parallel": tensor, "sequence_parallel": tensor > 1},
        {"pipeline_parallel": pipeline, "virtual_pipeline": virtual, "pipeline_layout": layout},
        {"pipeline_parallel": pipeline, "pipeline_layout": None},
        {"cuda_graph_impl": graphs, "cuda_graph_modules": modules},
        recompute,
        {"offload_modules": draw(names("offload_modules"))},
        {"ep_overlap": True, "expert_parallel": 2},
        {"ep_overlap": True, "delay_wgrad": True},
        {"overlap_grad_reduce": True, "overlap_param_gather": True},
        {"context_parallel": 2},
        {"expert_tensor_parallel": 2},
        {"micro_batch_size": 2},
        *({name: True} for name in FLAGS),
    ]
    return [group for group in groups if draw(st.booleans())]


def names(setting: str) -> st.SearchStrategy[list[str]]:
    return st.lists(st.sampled_from(SETTINGS[setting].choices), min_size=1, max_size=3, unique=True)


@pytest.fixture(params=["as installed", f"with Transformer Engine {TRANSFORMER_ENGINE}"])
def stack(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The installed versions; once more as Megatron validates when it is told that Transformer Engine is there."""
    versions = {"megatron_core": metadata.version("megatron-core"), "torch": metadata.version("torch")}
    monkeypatch.setenv("RANK", "0")  # 0.19 warns when it cannot tell which rank is to log
    if request.param != "as installed":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from megatron.core import utils
            from megatron.core.models.common.embeddings import rope_utils
            from megatron.core.transformer.moe import moe_utils
        from packaging.version import Version

        monkeypatch.setattr(utils, "_te_version", Version(TRANSFORMER_ENGINE))
        for kernel in ("fused_apply_rotary_pos_emb", "fused_apply_rotary_pos_emb_thd"):
            monkeypatch.setattr(rope_utils, kernel, object())
        for kernel in ("permute", "permute_with_probs", "sort_chunks_by_index", "sort_chunks_by_index_with_probs"):
            monkeypatch.setattr(moe_utils, f"fused_{kernel}", object(), raising=False)
        monkeypatch.setattr(moe_utils, "fused_unpermute", object(), raising=False)
        versions["transformer_engine"] = TRANSFORMER_ENGINE
    return versions


def build(candidate: Candidate) -> Any:
    """The configuration as the trial program would build it; upstream's advice is no refusal."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from autotune_trials.native.config import transformer_config

        spec = TrialSpec("study", 0, candidate.shape, candidate.contract, candidate.settings, candidate.gang)
        assert candidate.stack is not None
        fields = render(candidate.settings, candidate.stack["megatron_core"])
        return transformer_config(spec, fields, "transformer_engine" in candidate.stack)


def build_and_validate(candidate: Candidate) -> None:
    """As :func:`build`, and the layout against the layers."""
    layout = build(candidate).pipeline_model_parallel_layout
    if layout is not None:
        layers, prediction = candidate.shape.num_layers, candidate.shape.mtp_num_layers or None
        layout.validate_layer_layout(num_layers=layers, mtp_num_layers=prediction)


def test_what_is_legal_is_accepted_by_the_installed_release(stack: dict[str, str]) -> None:
    seen: set[str] = set()

    @settings(max_examples=200, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(candidates(stack))
    def accepted(candidate: Candidate) -> None:
        build_and_validate(candidate)
        seen.update(name for name, value in candidate.settings.items() if value != SETTINGS[name].default)

    accepted()
    assert {"pipeline_layout", "ep_overlap", "dispatcher", "virtual_pipeline"} <= seen


EXACT = {"MC045", "MC115", "MC131", "MC132", "MC133", "MC134", "MC142"}
"""Rules that say what Megatron-Core's own validation says, no more: what only they refuse, it refuses too."""


def test_what_a_copied_rule_refuses_is_refused_by_the_installed_release(stack: dict[str, str]) -> None:
    seen: set[str] = set()

    @settings(max_examples=300, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(st.data())
    def refused(data: st.DataObject) -> None:
        plain = data.draw(candidates(stack))
        for change in data.draw(changes(plain.shape)):
            changed = replace(plain, settings=resolve({**plain.settings, **change}))
            broken = {violation.rule for violation in check(changed)}
            if not broken or not broken <= EXACT or _has_an_empty_stage(changed):
                continue
            seen.update(broken)
            with pytest.raises((AssertionError, ValueError)):
                build_and_validate(changed)

    refused()
    assert seen


def _has_an_empty_stage(candidate: Candidate) -> bool:
    text = str(candidate.settings["pipeline_layout"] or "")
    return "||" in text or text.startswith("|") or text.endswith("|")


@pytest.mark.parametrize(
    "changes",
    [
        {"expert_parallel": 2, "ep_overlap": True, "pipeline_parallel": 2},
        {"dispatcher": "allgather", "ep_overlap": True, "expert_parallel": 2},
        {"tensor_parallel": 16, "sequence_parallel": True},
        {"cuda_graph_impl": "local", "cuda_graph_modules": ["moe"]},
        {"pipeline_parallel": 2, "pipeline_layout": "Ettt|ttttL"},
    ],
)
def test_the_oracle_can_refuse(stack: dict[str, str], changes: dict[str, Any]) -> None:
    candidate = Candidate(resolve(changes), SHAPE, Contract(128, 32), GangShape(2, 8), stack=stack)

    assert check(candidate)
    with pytest.raises((AssertionError, ValueError)):
        build(candidate).pipeline_model_parallel_layout.validate_layer_layout(num_layers=8, mtp_num_layers=None)
