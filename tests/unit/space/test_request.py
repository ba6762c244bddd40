"""Requests: complete, checked, and the same every time."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.errors import RequestError
from autotune.request import load_request, parse_duration, stored_request
from autotune_trials.spec import TrialSpec


def test_the_defaults_are_the_models_own(tmp_path: Path) -> None:
    request = load_request("tiny-moe", "local", home=tmp_path)

    assert request.study == "tiny-moe-local"
    assert (request.gang.num_nodes, request.gang.ranks_per_node, request.gang.device) == (1, 2, "cpu")
    assert request.storage_url == f"sqlite:///{tmp_path}/tiny-moe-local/study.db"


def test_a_specification_survives_its_text(tmp_path: Path) -> None:
    request = load_request("dsv3", "gb300", home=tmp_path)

    spec = request.spec(7, request.space.seeds[0])

    assert TrialSpec.from_json(spec.to_json()) == spec
    assert spec.settings["num_sms"] == 32
    assert spec.settings["pipeline_layout"] is not None


def test_full_recompute_and_tensor_parallel_bring_what_they_need(tmp_path: Path) -> None:
    request = load_request("tiny-moe", "local", home=tmp_path)

    settings = request.settings({"recompute_granularity": "full", "tensor_parallel": 2})

    assert settings["recompute_method"] == "uniform"
    assert settings["recompute_num_layers"] == 1
    assert settings["sequence_parallel"] is True


@pytest.mark.parametrize(
    ("asked", "says", "hint"),
    [
        ({"gpus": 0}, "gpus must be at least 1, but got 0", None),
        ({"trials": 0}, "trials must be at least 1, but got 0", None),
        ({"routing": "natrual"}, "routing='natrual'", "did you mean natural?"),
        ({"select": "fast"}, "select='fast'", "legal: throughput, memory, balanced"),
        ({"deadline": "2 hours"}, "duration '2 hours' is not", "write a number and a unit: 45s, 90m, 2h, 1d"),
        ({"memory_limit_gib": float("nan")}, "memory-limit-gib must be above 0, but got nan", None),
        ({"study": "x" * 101}, "study name", None),
        ({"study": ""}, "study name ''", None),
        ({"memory_limit_gib": -1.0}, "memory-limit-gib must be above 0, but got -1.0", None),
        ({"study": "../x"}, "study name '../x'", None),
    ],
)
def test_an_impossible_value_is_one_line(asked: dict[str, object], says: str, hint: str | None) -> None:
    with pytest.raises(RequestError) as caught:
        load_request("tiny-moe", "local", **asked)  # type: ignore[arg-type]

    assert says in caught.value.message
    assert caught.value.hint == hint


def test_a_cluster_without_a_default_asks_for_gpus() -> None:
    with pytest.raises(RequestError, match="no default number of GPUs on cluster 'gb300'") as caught:
        load_request("tiny-moe", "gb300")

    assert "--gpus" in str(caught.value.hint)


@given(st.floats(0.001, 1000), st.sampled_from("smhd"))
def test_durations_scale_with_their_unit(number: float, unit: str) -> None:
    seconds = parse_duration(f"{number}{unit}")

    assert seconds == pytest.approx(number * {"s": 1, "m": 60, "h": 3600, "d": 86400}[unit])


@pytest.mark.parametrize(("model", "cluster"), [("tiny-moe", "local"), ("dsv3", "gb300")])
def test_a_stored_request_is_read_back_from_its_own_file_alone(tmp_path: Path, model: str, cluster: str) -> None:
    request = load_request(model, cluster, home=tmp_path, memory_limit_gib=1.5, select="memory")
    request.folder.mkdir()
    (request.folder / "request.yaml").write_text(request.to_yaml(), encoding="utf-8")

    stored = stored_request(request.study, tmp_path)

    assert stored.identity() == request.identity()
    assert stored.space == request.space
    assert (stored.select, stored.memory_limit_bytes, stored.trials) == ("memory", 3 * 2**29, request.trials)
    assert stored.spec(3, request.space.baseline).settings == request.spec(3, request.space.baseline).settings


@pytest.mark.parametrize("text", ["", "[]", "asked: 1", "\xff\xfe", "asked: {}"])
def test_a_damaged_request_file_is_one_line(tmp_path: Path, text: str) -> None:
    folder = tmp_path / "study"
    folder.mkdir()
    (folder / "request.yaml").write_bytes(text.encode("latin-1"))

    with pytest.raises(RequestError, match="not a request of this version"):
        stored_request("study", tmp_path)
