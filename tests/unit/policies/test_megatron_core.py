"""Canonical settings <-> fields of a release."""

from enum import Enum
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune_policies.errors import PolicyError
from autotune_policies.megatron_core import RELEASES, read_back, release_of, render
from autotune_policies.settings import SETTINGS, resolve
from tests.support.settings_strategy import settings_for


@pytest.mark.parametrize("release", RELEASES)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_what_is_rendered_reads_back_the_same(release: str, data: st.DataObject) -> None:
    asked = data.draw(settings_for(release))
    fields = render(asked, release)
    assert read_back(fields, release) == asked
    assert read_back(fields.merged(), release) == asked
    assert read_back(SimpleNamespace(**fields.merged()), release) == asked


@pytest.mark.parametrize("release", RELEASES)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_every_rendering_of_a_dispatcher_overwrites_every_other_one(release: str, data: st.DataObject) -> None:
    before, after = data.draw(settings_for(release)), data.draw(settings_for(release))
    left_over = {**render(before, release).merged(), **render(after, release).merged()}
    assert read_back(left_over, release) == after


def test_transformer_fields_alone_read_back_without_the_other_homes() -> None:
    settings = read_back(render({}, "0.19").transformer, "0.19")
    assert set(settings) == {name for name, row in SETTINGS.items() if row.home == "transformer"}


@pytest.mark.parametrize(
    ("version", "release"),
    [("0.16", "0.16"), ("0.16.1", "0.16"), ("0.19.2", "0.19"), ("0.18.0rc1", "0.18"), ("0.17+abc", "0.17")],
)
def test_a_full_version_belongs_to_its_release(version: str, release: str) -> None:
    assert release_of(version) == release


@pytest.mark.parametrize("version", ["0.15.3", "0.20", "0.160", "1.16", "", "latest", "0"])
def test_other_releases_are_refused_and_the_supported_ones_named(version: str) -> None:
    with pytest.raises(PolicyError, match="not supported") as caught:
        render({}, version)
    assert caught.value.hint == "supported: 0.16, 0.17, 0.18, 0.19"


@pytest.mark.parametrize(
    ("release", "dispatcher", "expected"),
    [
        ("0.16", "deepep", {"moe_deepep_num_sms": 24, "moe_hybridep_num_sms": 16}),
        ("0.17", "hybridep", {"moe_deepep_num_sms": 20, "moe_hybridep_num_sms": 24}),
        ("0.18", "hybridep", {"moe_deepep_num_sms": 20, "moe_hybridep_num_sms": 24}),
        ("0.19", "hybridep", {"moe_flex_dispatcher_num_sms": 24, "moe_hybridep_num_sms": None}),
        ("0.19", "ncclep", {"moe_flex_dispatcher_num_sms": 24, "moe_deepep_num_sms": None}),
    ],
)
def test_sm_counts_go_to_the_field_of_the_release(
    release: str, dispatcher: str, expected: dict[str, int | None]
) -> None:
    fields = render({"dispatcher": dispatcher, "num_sms": 24}, release).transformer
    assert fields["moe_token_dispatcher_type"] == "flex"
    assert fields["moe_flex_dispatcher_backend"] == dispatcher
    assert {name: fields.get(name, "absent") for name in expected} == expected
    assert ("moe_flex_dispatcher_num_sms" in fields) == (release == "0.19")


@pytest.mark.parametrize("release", RELEASES)
def test_alltoall_puts_every_flex_field_back_to_its_class_default(release: str) -> None:
    fields = render({"dispatcher": "alltoall"}, release).transformer
    assert fields["moe_token_dispatcher_type"] == "alltoall"
    assert fields["moe_flex_dispatcher_backend"] == "deepep"
    assert fields["moe_enable_deepep"] is False
    expected = {"0.16": (20, 16), "0.17": (20, None), "0.18": (20, None), "0.19": (None, None)}
    assert (fields["moe_deepep_num_sms"], fields["moe_hybridep_num_sms"]) == expected[release]


def test_a_recipes_own_fine_print_stays_only_with_its_backend() -> None:
    knob = "moe_hybridep_pad_uneven_dispatch_inputs"
    assert knob not in render({"dispatcher": "hybridep", "num_sms": 16}, "0.19").transformer
    assert render({"dispatcher": "deepep", "num_sms": 16}, "0.19").transformer[knob] is False


@pytest.mark.parametrize(
    ("interval", "fields"),
    [(None, {"manual_gc": False, "manual_gc_interval": 0}), (10, {"manual_gc": True, "manual_gc_interval": 10})],
)
def test_garbage_is_collected_by_hand_where_an_interval_says_so(interval: int | None, fields: dict[str, int]) -> None:
    training = render({"manual_gc_interval": interval}, "0.19").training
    assert {name: training[name] for name in fields} == fields


@pytest.mark.parametrize(
    ("release", "expected"),
    [
        ("0.16", {"cuda_graph_impl": "local", "cuda_graph_scope": ["full_iteration"]}),
        ("0.17", {"cuda_graph_impl": "local", "cuda_graph_scope": ["full_iteration"]}),
        ("0.18", {"cuda_graph_impl": "full_iteration", "cuda_graph_modules": [], "cuda_graph_scope": None}),
        ("0.19", {"cuda_graph_impl": "full_iteration", "cuda_graph_modules": [], "cuda_graph_scope": None}),
    ],
)
def test_full_iteration_graphs_are_a_scope_first_and_an_implementation_later(
    release: str, expected: dict[str, object]
) -> None:
    fields = render({"cuda_graph_impl": "full_iteration"}, release).transformer
    assert {name: value for name, value in fields.items() if name.startswith("cuda_graph")} == expected


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize(("chunks", "size", "overlap"), [(1, None, False), (3, 3, True)])
def test_the_interleaved_schedule_overlaps_its_messages(
    release: str, chunks: int, size: int | None, overlap: bool
) -> None:
    fields = render({"pipeline_parallel": 4, "virtual_pipeline": chunks}, release).transformer
    assert fields["virtual_pipeline_model_parallel_size"] == size
    assert fields["overlap_p2p_comm"] is overlap
    assert fields["batch_p2p_comm"] is not overlap
    assert fields["microbatch_group_size_per_vp_stage"] == 4


def test_delayed_weight_gradients_are_told_to_ddp_too() -> None:
    fields = render({"delay_wgrad": True, "ep_overlap": True}, "0.19")
    assert fields.transformer["delay_wgrad_compute"] is True
    assert fields.ddp["delay_wgrad_compute"] is True


@pytest.mark.parametrize(
    ("settings", "release", "words"),
    [
        ({"dispatcher": "ncclep", "num_sms": 8}, "0.18", "dispatcher=ncclep cannot be expressed in Megatron-Core 0.18"),
        ({"recompute_modules": ["gdn_norm_out"]}, "0.16", "recompute_modules=gdn_norm_out cannot"),
        ({"offload_modules": ["fused_group_mlp"]}, "0.17", "offload_modules=fused_group_mlp cannot"),
        ({"dispatcher": "deepep"}, "0.18", "num_sms=null with dispatcher=deepep cannot"),
        ({"dispatcher": "hybridep"}, "0.16", "num_sms=null with dispatcher=hybridep cannot"),
        ({"num_sms": 8}, "0.19", "num_sms=8 with dispatcher=alltoall cannot"),
        ({"cuda_graph_impl": "full_iteration", "cuda_graph_modules": ["attn"]}, "0.19", "cuda_graph_modules=attn with"),
        ({"cuda_graph_impl": "local", "cuda_graph_modules": ["moe_router"]}, "0.16", "cuda_graph_modules=moe_router"),
        ({"op_fuser": True}, "0.17", "op_fuser=True cannot be expressed in Megatron-Core 0.17"),
        ({"num_sms_preprocessing": 32, "dispatcher": "hybridep", "num_sms": 16}, "0.17", "num_sms_preprocessing=32"),
        ({"num_blocks_permute": 32, "dispatcher": "hybridep", "num_sms": 16}, "0.19", "num_blocks_permute=32 cannot"),
        ({"rank_capacity_factor": 1.5}, "0.19", "rank_capacity_factor=1.5 cannot be expressed"),
        ({"pipeline_layout": "Et|tL"}, "0.19", "has 2 stages, but pipeline_parallel x virtual_pipeline = 1"),
        ({"pipeline_layout": "Et|xL"}, "0.19", "unexpected 'x'"),
        ({"dispatcher": "nccl"}, "0.19", "dispatcher='nccl' is not legal"),
        ({"dispatchr": "alltoall"}, "0.19", "unknown setting 'dispatchr'"),
    ],
)
def test_what_a_release_cannot_express_is_refused_by_name(
    settings: dict[str, object], release: str, words: str
) -> None:
    with pytest.raises(PolicyError) as caught:
        render(settings, release)
    assert words in caught.value.message


class Graph(Enum):
    attn = 1
    moe_router = 2
    full_iteration = 3
    full_iteration_inference = 4


@pytest.mark.parametrize(
    ("release", "impl", "scope", "expected"),
    [
        ("0.16", "local", [Graph.attn, Graph.moe_router], ("local", ["attn", "moe_router"])),
        ("0.16", "local", [Graph.full_iteration], ("full_iteration", [])),
        ("0.17", "local", [Graph.full_iteration_inference], ("local", [])),
        ("0.17", "none", "full", ("none", [])),
        ("0.17", "transformer_engine", "attn,mlp", ("transformer_engine", ["attn", "mlp"])),
        ("0.17", "none", "", ("none", [])),
        ("0.16", "none", None, ("none", [])),
        ("0.16", "local", Graph.attn, ("local", ["attn"])),
    ],
)
def test_graph_modules_are_read_in_every_form_the_class_accepts(
    release: str, impl: str, scope: object, expected: tuple[str, list[str]]
) -> None:
    fields = {**render({}, release).merged(), "cuda_graph_impl": impl, "cuda_graph_scope": scope}
    settings = read_back(fields, release)
    assert (settings["cuda_graph_impl"], settings["cuda_graph_modules"]) == expected


def test_values_that_the_class_would_fill_in_are_read_as_it_would() -> None:
    fields: dict[str, object] = {**render({"tensor_parallel": 2, "sequence_parallel": True}, "0.19").merged()}
    fields |= {"expert_tensor_parallel_size": None, "recompute_modules": None, "offload_modules": ["moe_act"]}
    settings = read_back(fields, "0.19")
    assert settings["expert_tensor_parallel"] == 2
    assert settings["recompute_modules"] == ["core_attn"]
    assert settings["offload_modules"] == []


@pytest.mark.parametrize("source", ["Et|tmL", [["embedding", "decoder"], ["t", "mtp", "loss"]]])
def test_a_parsed_layout_is_read_back_as_text(source: object) -> None:
    fields = {**render({}, "0.19").merged(), "pipeline_model_parallel_layout": SimpleNamespace(input_data=source)}
    assert read_back(fields, "0.19")["pipeline_layout"] == "Et|tmL"


def test_a_missing_field_is_named() -> None:
    fields = render({}, "0.19").merged()
    del fields["moe_grouped_gemm"]
    with pytest.raises(PolicyError, match=r"field 'moe_grouped_gemm' is missing, but Megatron-Core 0\.19 has it"):
        read_back(fields, "0.19")


def test_a_value_without_a_canonical_form_is_refused() -> None:
    fields = {**render({}, "0.19").merged(), "moe_token_dispatcher_type": "alltoall_seq"}
    with pytest.raises(PolicyError, match="alltoall_seq"):
        read_back(fields, "0.19")


def test_a_rendering_shares_no_list_with_the_settings() -> None:
    settings = resolve({"recompute_modules": ["moe_act"]})
    modules = render(settings, "0.19").transformer["recompute_modules"]
    assert isinstance(modules, list)
    modules.append("mlp")
    assert settings["recompute_modules"] == ["moe_act"]
