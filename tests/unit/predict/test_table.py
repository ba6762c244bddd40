"""Tables as they come: the product's columns, public aliases, sidecars, approximate and blank cells."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.errors import RequestError
from autotune.predict.columns import READ, first_number
from autotune.predict.placement import _OTHER_NAMES, place, place_cluster, place_settings
from autotune.predict.published_shapes import shape_of
from autotune.predict.table import read_table

DATA = Path(__file__).parents[2] / "data"

PUBLIC = (
    "# source: somewhere\n"
    "model\tcluster\tnum_gpus\tprecision\tglobal_batch_size\texpert_parallel\tdispatcher\tnum_sms\trouting_mode\t"
    "tokens_per_s_per_gpu\tpeak_memory_gib\toutcome\tsource\tnote\n"
)


def write(folder: Path, *rows: str, header: str = PUBLIC) -> Path:
    path = folder / "table.tsv"
    path.write_text(header + "".join(f"{row}\n" for row in rows))
    return path


def test_public_names_become_the_products(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "qwen3-30b\th100\t16\tbf16\t512\t8\tdeepep\t\ttoken_drop\t~370\t60.5\tok\t\t",
        "qwen3-30b\th100\t16\tbf16\t512\t8\tdeepep\t\tforced_balance\t\t\toom\t\t",
    )
    first, second = read_table(path).rows
    assert first.measured == {"tokens_per_s_per_gpu": 370.0, "peak_memory_bytes": 60.5 * 2**30}
    assert first.approximate == {"tokens_per_s_per_gpu"}
    assert (first.cells["routing_source"], first.cells["token_policy"]) == ("forced_balance", "capacity")
    assert first.failure is None
    assert second.failure == "oom: not a completed run"
    assert "tokens_per_s_per_gpu" not in second.cells  # blank is unknown, not zero


def test_a_row_is_placed_with_what_its_recipe_must_have_had(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "qwen3-30b\th100\t16\tbf16\t512\t8\tdeepep\t\tforced_balance\t9000\t\tok\tawslabs\tpermute_fusion=false; x",
        "qwen3-30b\th100\t16\tbf16\t512\t8\thybridep\t32 (set by harness)\tforced_balance\t9000\t\tok\tdocs\t",
    )
    table = read_table(path)
    plain, other = (place(row, table) for row in table.rows)
    assert plain.settings["num_sms"] == 20
    assert plain.settings["permute_fusion"] is False
    assert plain.cluster.nic_proxied
    assert other.settings["num_sms"] == 32
    assert other.settings["permute_fusion"] is True
    assert not other.cluster.nic_proxied
    assert other.contract.seq_length == 4096


def test_a_sidecar_names_converts_and_completes(tmp_path: Path) -> None:
    path = write(tmp_path, "m\t12.5\t2\ta2a", "m\t\t4\tdeepep", header="net\tms\tcopies\tway\n")
    (tmp_path / "table.tsv.yaml").write_text(
        "groups: [net]\n"
        "parameters:\n"
        "  {net: {name: model}, copies: {name: expert_parallel}, way: {name: dispatcher, values: {a2a: alltoall}}}\n"
        "objectives: {ms: {name: step_time_ms}}\n"
        "failed_when: {ms: missing}\n"
        "context: {cluster: h100, num_gpus: 8, global_batch_size: 8}\n"
        "models:\n"
        "  m: {layers: 2, hidden_size: 64, heads: 4, vocab_size: 128, ffn_hidden_size: 64, experts: 8, topk: 2}\n"
    )
    table = read_table(path)
    first, second = table.rows
    assert first.measured == {"step_time_s": pytest.approx(0.0125)}
    assert first.group == "m"
    placed = place(first, table)
    assert (placed.settings["dispatcher"], placed.settings["expert_parallel"]) == ("alltoall", 2)
    assert (placed.model.num_layers, placed.model.num_experts) == (2, 8)
    assert second.failure == "failed (ms missing): not a completed run"


@pytest.mark.parametrize(
    ("text", "sidecar", "message"),
    [
        ("", None, "no rows"),
        ("a\tb\n1\t2\n", None, "no measured column among a, b"),
        ("a\tb\n1\t2\t3\n", None, "row 0 has more cells than the header"),
        ("a\n1\n", "groups: 3", "groups must be a list of columns"),
        ("a\n1\n", "[1]", "must be a mapping"),
        ("a\n1\n", "objectives: {a: 3}", "a needs a name"),
        ("a\n1\n", "foo: 1", "table.tsv.yaml:1: 'foo' is not known"),
        ("a\n1\n", "parameters: {a: {name: nosuch}}", "'nosuch' is no column that is read"),
        ("a\n1\n", "objectives: {a: {name: steptime_ms}}", "'steptime_ms' is no measured quantity"),
        ("a\n1\n", "objectives: {a: {nam: 1, name: step_time_ms}}", "a: 'nam' is not known"),
        ("a\n1\n", "objectives: {b: {name: step_time_ms}}", "the table has no column 'b'"),
        ("a\n1\n", "groups: [b]", "the table has no column 'b'"),
        ("a\ta\n1\t2\n", None, "table.tsv:1: column 'a' stands twice"),
        ("# c\n\nstep_time_s\n1,5\n", None, "table.tsv:4: step_time_s='1,5' is no number"),
        ("step_time_s\tglobal_batch_size\n1\t1.024,0\n", None, "table.tsv:2: global_batch_size='1.024,0' is no number"),
        ("step_time_s\n-5\n", None, "no measured value is of use: step_time_s='-5' is no number above zero"),
    ],
)
def test_what_is_no_table_is_refused(tmp_path: Path, text: str, sidecar: str | None, message: str) -> None:
    path = write(tmp_path, header=text)
    if sidecar:
        (tmp_path / "table.tsv.yaml").write_text(sidecar)
    with pytest.raises(RequestError, match=message):
        read_table(path)


def test_thousands_are_read_as_such(tmp_path: Path) -> None:
    header = "model\tcluster\tnum_gpus\tglobal_batch_size\tstep_time_s\n"
    table = read_table(write(tmp_path, "qwen3-30b\th100\t16\t1,024\t1,200.5", header=header))
    assert table.rows[0].measured == {"step_time_s": 1200.5}
    assert place(table.rows[0], table).contract.global_batch_size == 1024


@pytest.mark.parametrize("text", ["-5", "0", "abc", "inf"])
def test_a_measurement_that_is_none_is_named(tmp_path: Path, text: str) -> None:
    table = read_table(write(tmp_path, f"1\t{text}", "1\t2", header="step_time_s\tpeak_memory_gib\n"))
    assert table.rows[0].unusable == {"peak_memory_bytes": f"peak_memory_gib={text!r} is no number above zero"}
    assert table.rows[1].unusable == {}


def test_columns_that_nothing_reads_are_known_with_the_closest_one(tmp_path: Path) -> None:
    table = read_table(write(tmp_path, "8\t1\tx", header="expert_paralel\tstep_time_ms\tweather\n"))
    assert table.unread == {"expert_paralel": "expert_parallel", "weather": ""}


def test_every_column_that_placement_knows_by_another_name_is_read() -> None:
    assert set(_OTHER_NAMES) <= READ


def test_a_folder_is_no_table() -> None:
    with pytest.raises(RequestError, match="is a folder"):
        read_table(Path())


@pytest.mark.parametrize("name", ["missing.tsv", "missing.parquet"])
def test_a_file_that_is_not_there_is_one_line(tmp_path: Path, name: str) -> None:
    with pytest.raises(RequestError, match="No such file"):
        read_table(tmp_path / name)


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        ({"cluster": "h1000"}, "h1000"),
        ({"device": "NVIDIA A100"}, "cluster of device 'NVIDIA A100' is not known"),
        ({}, "cluster is blank"),
    ],
)
def test_an_unknown_cluster_is_named(cells: dict[str, str], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        place_cluster(cells)


def test_a_device_names_its_cluster() -> None:
    assert place_cluster({"device": "NVIDIA H100 80GB HBM3"}).name == "h100"


def test_values_that_a_setting_cannot_have_are_refused_and_unknown_modules_left_out() -> None:
    with pytest.raises(RequestError, match="dispatcher='pigeon' is not legal"):
        place_settings({"dispatcher": "pigeon"})
    settings = place_settings({"recompute_modules": "moe_act,gdn", "p.op_fuser": "true"})
    assert settings["recompute_modules"] == ["moe_act"]
    assert settings["recompute_granularity"] == "selective"
    assert settings["op_fuser"] is True


@pytest.mark.parametrize(("stage", "sharded"), [("0", False), ("1", True)])
def test_a_zero_stage_is_the_distributed_optimizer(stage: str, sharded: bool) -> None:
    assert place_settings({"zero_stage": stage})["distributed_optimizer"] is sharded


def test_a_model_that_nobody_knows_has_no_shape() -> None:
    with pytest.raises(RequestError, match="model moby-dick: no shape of it is known"):
        shape_of("moby-dick", {})
    with pytest.raises(RequestError, match="'vocab_size' is missing"):
        shape_of("1B", {"1B": {"layers": 16, "hidden_size": 2048, "heads": 32, "ffn_hidden_size": 8192}})
    assert shape_of("dsv3", {}, num_layers=4).num_layers == 4


def test_the_b200_table_is_read_as_its_readers_read_it() -> None:
    table = read_table(DATA / "b200_step_time_memory.tsv")
    placed = place(table.rows[-1], table)
    assert (placed.contract.seq_length, placed.contract.global_batch_size) == (131072, 4)
    assert placed.settings["context_parallel"] == 8
    assert placed.numerics.cross_entropy == "te"
    assert place(table.rows[4], table).model.shared_expert_size == 3072


@given(st.floats(0.001, 1e9), st.sampled_from(["", "~", "~ "]), st.sampled_from(["", " (rounded)"]))
def test_the_number_of_a_cell_survives_what_stands_around_it(number: float, before: str, after: str) -> None:
    assert first_number(f"{before}{number!r}{after}") == number
    assert first_number(f"{before}{int(number):,}{after}") == int(number)


@given(st.text(alphabet="abcxyz ()~", max_size=8))
def test_a_cell_without_a_number_has_none(text: str) -> None:
    assert first_number(text) is None
