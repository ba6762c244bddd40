"""``autotune plan``: the printed and the JSON ranking of a small space, and requests that are wrong."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from autotune import resources
from autotune.cli.main import main


@pytest.fixture
def model(tmp_path: Path) -> str:
    """DeepSeek-V3 with few parameters, so that the space is seen whole."""
    document = yaml.safe_load(resources.locate("models", "dsv3").read_text(encoding="utf-8"))
    names = ("dispatcher", "num_sms", "expert_parallel", "micro_batch_size", "router_fusion")
    document["parameters"] = {name: document["parameters"][name] for name in names}
    document["parameters"]["num_sms"]["choices"] = [16, 32]
    document["fixed"] |= {
        "pipeline_parallel": 4, "virtual_pipeline": 4, "permute_fusion": True,
        "pipeline_layout": "E" + "tttt|" * 15 + "tmL", "recompute_granularity": "selective",
        "recompute_modules": ["mla_up_proj", "mlp"],
    }  # fmt: skip
    document["recipes"], document["baseline"] = {}, {"dispatcher": "alltoall", "expert_parallel": 64}
    path = tmp_path / "small.yaml"
    path.write_text(yaml.safe_dump(document))
    return str(path)


def plan(capsys: pytest.CaptureFixture[str], model: str, *arguments: str) -> tuple[int, dict[str, Any]]:
    status = main(["plan", "--model", model, "--cluster", "gb300", "--gpus", "256", "--json", *arguments])
    return status, json.loads(capsys.readouterr().out)


def test_the_ranking_as_json(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    status, document = plan(capsys, model, "--top", "3")
    assert status == 0
    assert document["kind"] == "predicted"
    assert document["num_gpus"] == 256
    assert len(document["ranking"]) == 3
    assert "router_fusion" in document["parameters_without_prediction"]
    first = document["ranking"][0]
    assert sum(first["time_parts_s"].values()) == pytest.approx(first["step_time_s"])
    assert sum(first["memory_parts_bytes"].values()) == pytest.approx(first["peak_memory_bytes"], abs=1)
    assert first["step_time_interval_s"][0] < first["step_time_s"] < first["step_time_interval_s"][1]
    speeds = [entry["tokens_per_s_per_gpu"] for entry in document["ranking"]]
    assert speeds == sorted(speeds, reverse=True)
    assert speeds[0] > document["baseline"]["tokens_per_s_per_gpu"]
    assert first["settings"]["pipeline_parallel"] == 4  # all settings, also those that do not vary
    assert document["not_fitting"] <= document["legal"] <= document["looked_at"]


def test_the_ranking_as_text(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--model", model, "--cluster", "gb300", "--gpus", "256", "--top", "2"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("dsv3 on 256 gb300 GPUs, bf16, sequence 4096, batch 4096: predicted, not measured\n")
    for text in ("tokens/s/GPU", "peak GiB", "the study's baseline", "gemm", "routed", "bound: ", "most uncertain: "):
        assert text in printed


def test_nothing_that_fits_is_exit_1(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    status, document = plan(capsys, model, "--memory-limit-gib", "1")
    assert status == 1
    assert document["ranking"] == []
    assert document["not_fitting"] == document["legal"] > 0
    assert main(["plan", "--model", model, "--cluster", "gb300", "--gpus", "256", "--memory-limit-gib", "1"]) == 1
    assert "none of them fits" in capsys.readouterr().out


def test_nothing_legal_is_exit_1_and_names_the_rules(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("plan", "--model", "qwen3-30b", "--cluster", "h100", "--gpus", "1")
    assert main([*arguments, "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert (document["legal"], document["ranking"], document["recommended"]) == (0, [], None)
    assert {entry["rule"] for entry in document["refused_by"]} >= {"MC001", "MC002"}
    assert sum(entry["points"] for entry in document["refused_by"]) == document["looked_at"]
    assert main(arguments) == 1
    printed = capsys.readouterr().out
    assert printed.startswith("qwen3-30b on 1 h100 GPU, bf16")
    assert "none of them is legal; the rules that refused most" in printed
    assert "does not divide the ranks = 1" in printed


def test_what_can_never_be_legal_is_named_and_not_searched(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    _, document = plan(capsys, model, "--top", "1")
    assert ("dispatcher", "ncclep") in [(item["parameter"], item["value"]) for item in document["left_out"]]
    assert main(["plan", "--model", model, "--cluster", "gb300", "--gpus", "256", "--top", "1"]) == 0
    assert "left out: dispatcher=ncclep: it works only with a rank capacity" in capsys.readouterr().out


def test_what_may_not_fit_is_marked_and_another_one_recommended(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    _, document = plan(capsys, model, "--top", "100")
    peaks = [entry["peak_memory_bytes"] for entry in document["ranking"]]
    limit = str(peaks[0] / 2**30 + 0.1)  # the fastest just fits
    _, document = plan(capsys, model, "--top", "2", "--memory-limit-gib", limit)
    first, second = document["ranking"]
    assert (first["fits"], first["fit"], second["fit"]) == (True, "may not fit", "fits")
    assert document["recommended"] == 1
    assert first["step_time_s"] < second["step_time_s"]
    arguments = ["plan", "--model", model, "--cluster", "gb300", "--gpus", "256", "--top", "2"]
    assert main([*arguments, "--memory-limit-gib", limit]) == 0
    printed = capsys.readouterr().out
    assert f"{first['peak_memory_bytes'] / 2**30:.1f}?" in printed
    assert "? may not fit" in printed
    assert "number 2, the fastest that fits" in printed


def test_a_narrow_terminal_is_respected(
    model: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    assert main(["plan", "--model", model, "--cluster", "gb300", "--gpus", "256", "--top", "2"]) == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 60


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--model", "tiny-moe", "--cluster", "local"), "cluster local: no time model"),
        (("--model", "dsv33", "--cluster", "gb300"), "dsv33"),
        (("--model", "dsv3", "--cluster", "gb300", "--gpus", "255"), "gpus=255 is not a multiple of the 4 GPUs"),
        (("--model", "dsv3", "--cluster", "gb300", "--top", "0"), "--top"),
    ],
)
def test_wrong_requests_exit_2(arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *arguments]) == 2
    assert message in capsys.readouterr().err
