"""``autotune predict``: the scored table as text and as JSON, and tables that are none."""

import json
from pathlib import Path

import pytest

from autotune.cli.main import main
from autotune.export.measurements import write_measurements

DATA = Path(__file__).parents[2] / "data"
B200 = str(DATA / "b200_step_time_memory.tsv")


def test_the_contract_of_the_json_document(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", "--table", B200, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert set(document["rows"][0]) == {"row", "quantity", "measured", "predicted"}
    assert set(document["summary"]) == {"step_time_s", "peak_memory_bytes"}
    assert {"n", "mape", "bias", "kendall_tau"} <= set(document["summary"]["step_time_s"])
    assert document["skipped"] == []
    assert document["rows"][0]["measured"] in (pytest.approx(0.843), pytest.approx(66.55 * 2**30))
    (efficiency,) = document["efficiency"]
    assert 0.8 < efficiency["efficiency"] < 1.2


def test_the_text_names_errors_groups_and_worst_rows(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", "--table", str(DATA / "moe_layer_dispatcher_h100.tsv")]) == 0
    printed = capsys.readouterr().out
    for text in ("MAPE", "bias", "tau within groups", "layer_time_s by group", "worst rows of layer_time_s"):
        assert text in printed
    assert "skipped, not scored: 28\n  rows 0, 1, 2, 3, 4, 5, 6, 7 and 20 more: peak_memory_bytes: " in printed


def test_a_studys_own_parquet_is_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    row = {
        "model": "qwen3-30b", "cluster": "h100", "num_gpus": 16, "precision": "bf16", "seq_length": 4096,
        "micro_batch_size": 1, "global_batch_size": 512, "expert_parallel": 8, "dispatcher": "alltoall",
        "step_time_s": 20.0, "state": "COMPLETE",
    }  # fmt: skip
    path = tmp_path / "measurements.parquet"
    write_measurements(path, [row, {**row, "step_time_s": None, "state": "INFEASIBLE"}])
    assert main(["predict", "--table", str(path), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [item["measured"] for item in document["rows"]] == [20.0]
    assert document["summary"]["step_time_s"]["kendall_tau"] is None
    assert document["skipped"] == [{"row": 1, "reason": "INFEASIBLE: not a completed run"}]


def test_a_table_of_unknown_models_is_exit_1_and_lists_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "t.tsv"
    path.write_text("model\tcluster\tnum_gpus\tglobal_batch_size\tstep_time_s\nmoby-dick\th100\t8\t8\t1.5\n")
    assert main(["predict", "--table", str(path)]) == 1
    assert "row 0: model moby-dick: no shape of it is known" in capsys.readouterr().out


def test_a_misspelled_column_is_named_on_stderr_and_a_tiny_time_stays_readable(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "t.tsv"
    header = "model\tcluster\tnum_gpus\tglobal_batch_size\texpert_paralel\tstep_time_s\n"
    path.write_text(header + "qwen3-30b\th100\t16\t1024\t8\t1e-300\nqwen3-30b\th100\t16\t1024\t8\t-1\n")
    assert main(["predict", "--table", str(path)]) == 0
    captured = capsys.readouterr()
    assert "column 'expert_paralel' is not read; did you mean expert_parallel?" in captured.err
    assert max(map(len, captured.out.splitlines())) < 120
    assert "row 1: step_time_s='-1' is no number above zero" in captured.out


def test_a_folder_is_exit_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", "--table", "."]) == 2
    assert "error: .: is a folder" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["none.tsv", "none.parquet"])
def test_a_missing_table_is_exit_2(tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", "--table", str(tmp_path / name)]) == 2
    assert f"error: {name}: cannot be read as a measurement table: No such file" in capsys.readouterr().err
