"""What published rows say in words, and what is filled in where they say nothing."""

from pathlib import Path

import pytest

from autotune.predict.memory import predict_memory
from autotune.predict.numerics import BRIDGE_BENCHMARK, MEGATRON_LM
from autotune.predict.placement import Placed, place
from autotune.predict.score import score_table
from autotune.predict.table import read_table
from autotune.predict.wording import modules, numerics_of, recomputed_in_words, told
from autotune_policies.settings import SETTINGS


@pytest.mark.parametrize(
    ("note", "settings"),
    [
        ("moe_permute_fusion=false; iters 3-8", {"permute_fusion": False}),
        ("x; moe_shared_expert_overlap; y", {"shared_expert_overlap": True}),
        ("shared overlap, same allocation; steps 5-8", {"shared_expert_overlap": True}),
        ("control, no shared overlap", {}),
        ("permute_fusion_into_hybridep; combine chunk 64", {"permute_fusion_into_hybridep": True}),
        ("grouped_mm + static dispatch (capacity 1.05)", {"rank_capacity_factor": 1.05}),
        ("MFU ~19%; layout Et*3|(tt|)*29m|L", {"pipeline_layout": "Et*3|(tt|)*29m|L"}),
        ("num_sms=8; the fastest", {}),
        ("", {}),
    ],
)
def test_notes_state_settings_between_semicolons(note: str, settings: dict[str, object]) -> None:
    assert told(note) == settings


def test_modules_have_other_names_and_some_have_none() -> None:
    setting = SETTINGS["recompute_modules"]
    assert modules(setting, "up_proj,mlp") == (["mla_up_proj", "mlp"], [])
    assert modules(setting, "gdn selective") == ([], ["gdn"])
    assert recomputed_in_words("a; recompute_modules as published: up_proj,mlp; b") == "up_proj,mlp"
    assert recomputed_in_words("recompute everything") == ""


BRIDGE = "# source: github NVIDIA-NeMo/Megatron-Bridge model cards\n"
HEADER = (
    "model\tcluster\tnum_gpus\tprecision\tmicro_batch_size\tglobal_batch_size\texpert_parallel\tdispatcher\t"
    "recompute_granularity\trecompute_modules\tstep_time_s\tstack\tsource\tnote\n"
)


def _placed(
    folder: Path, comment: str = "", *, model: str = "qwen3-30b", cluster: str = "h100", **cells: str
) -> Placed:
    names = HEADER.strip("\n").split("\t")
    given = {
        "model": model, "cluster": cluster, "num_gpus": "16", "precision": "bf16", "micro_batch_size": "1",
        "global_batch_size": "1024", "expert_parallel": "16", "step_time_s": "1", **cells,
    }  # fmt: skip
    path = folder / "table.tsv"
    path.write_text(comment + HEADER + "\t".join(given.get(name, "") for name in names) + "\n")
    table = read_table(path)
    return place(table.rows[0], table)


def test_numerics_come_from_the_row_then_from_the_tables_comments(tmp_path: Path) -> None:
    nobody = _placed(tmp_path, source="PR #3880 (unmerged)")
    table = _placed(tmp_path, BRIDGE, source="PR #3880 (unmerged)")
    row = _placed(tmp_path, BRIDGE, source="Megatron-LM PR #5289")
    assert nobody.numerics.assumed
    assert any("optimizer types" in what for what in nobody.assumed)
    assert table.numerics == BRIDGE_BENCHMARK
    assert row.numerics == MEGATRON_LM


def test_assumed_numerics_widen_the_memory_estimate_and_are_said(tmp_path: Path) -> None:
    estimates = [
        predict_memory(where.model, where.contract, where.settings, where.gang, where.cluster, where.numerics)
        for where in (_placed(tmp_path), _placed(tmp_path, BRIDGE))
    ]
    assert estimates[0].uncertainty > estimates[1].uncertainty + 0.08
    assert any("not known" in note for note in estimates[0].notes)
    assert not any("not known" in note for note in estimates[1].notes)


def test_a_row_tells_its_own_formats() -> None:
    assert numerics_of({"program": "Megatron-LM 0.14", "case": "x_cef_y"}).cross_entropy == "te"
    narrow = numerics_of({"source": "megatron-bridge", "note": "FP16 precision-aware main params"})
    assert (narrow.main_parameter_bytes, narrow.precision_aware_optimizer) == (2.0, True)


@pytest.mark.parametrize(
    ("cluster", "stack", "dispatcher"),
    [
        ("gb200", "nemo-26.04.01", "hybridep"),
        ("b200", "nemo-26.04.01", "deepep"),
        ("h100", "nemo-26.04.01", "deepep"),
        ("h100", "", "alltoall"),
    ],
)
def test_a_blank_dispatcher_is_the_recipes_and_is_said(
    tmp_path: Path, cluster: str, stack: str, dispatcher: str
) -> None:
    where = _placed(tmp_path, cluster=cluster, stack=stack)
    assert where.settings["dispatcher"] == dispatcher
    assert f"dispatcher taken as {dispatcher}" in where.assumed
    assert _placed(tmp_path, cluster=cluster, dispatcher="alltoall").settings["dispatcher"] == "alltoall"


def test_modules_in_words_count_and_unknown_ones_do_not_become_others(tmp_path: Path) -> None:
    words = "recompute_modules as published: "
    known = _placed(tmp_path, model="dsv3", note=words + "up_proj,mlp")
    unknown = _placed(tmp_path, model="qwen35-35b", recompute_granularity="selective", note=words + "gdn selective")
    default = _placed(tmp_path, recompute_granularity="selective", note=words + "selective")
    assert known.settings["recompute_modules"] == ["mla_up_proj", "mlp"]
    assert known.settings["recompute_granularity"] == "selective"
    assert unknown.settings["recompute_modules"] == []
    assert "recomputation of gdn is left out" in unknown.assumed
    assert default.settings["recompute_modules"] == ["core_attn"]


def test_what_rows_leave_open_is_counted_in_the_score(tmp_path: Path) -> None:
    _placed(tmp_path, BRIDGE)
    assert "1 row: dispatcher taken as alltoall" in score_table(read_table(tmp_path / "table.tsv")).notes
