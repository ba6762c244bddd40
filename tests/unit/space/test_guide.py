"""The selection guide: complete, valid, and a source of seeds only."""

from pathlib import Path

import pytest

from autotune import resources, validation
from autotune.errors import SpaceError
from autotune.space.guide import Guide, Row, When, load_guide, suggestions

TEXT = resources.guide_path().read_text(encoding="utf-8")


def row(name: str) -> Row:
    return next(row for row in load_guide().rows if row.id == name)


def dispatchers(model: str, cluster: str, precision: str = "bf16", expert_parallel: int = 64) -> list[tuple[str, int]]:
    base = {"expert_parallel": expert_parallel}
    return [(one["dispatcher"], one["num_sms"]) for one in suggestions(load_guide(), model, cluster, precision, base)]


def test_all_six_pitfalls_are_there_with_their_source() -> None:
    assert [row.id for row in load_guide().about("pitfall")] == [
        "pitfall-stacks", "pitfall-topology", "pitfall-sms", "pitfall-routing", "pitfall-memory", "pitfall-import",
    ]  # fmt: skip
    assert [row.source for row in load_guide().about("pitfall")] == [f"line {n}" for n in range(126, 137, 2)]


def test_every_table_of_the_guide_has_its_rows() -> None:
    lines = {kind: [row.source for row in load_guide().about(kind)] for kind in ("hardware", "ep_size", "family")}
    assert lines["hardware"] == ["line 12", "line 13", "line 14", "line 15"]
    assert lines["ep_size"] == ["line 20", "line 21", "line 22"]
    assert set(lines["family"]) == {"line 27", "line 28", "line 29", "line 30", "line 31"}
    assert all(row.source.startswith("line") for row in load_guide().rows)


def test_evidence_says_whether_it_is_for_or_against() -> None:
    evidence = [line for row in load_guide().rows for line in row.newer]
    assert evidence
    assert all(line.startswith(("for: ", "against: ")) for line in evidence)


def test_models_and_clusters_of_the_rows_exist() -> None:
    for one in load_guide().rows:
        assert set(one.when.model) <= set(resources.names("models")), one.id
        assert {*one.when.cluster, *one.when.other_clusters} <= set(resources.names("clusters")), one.id


@pytest.mark.parametrize(
    ("model", "cluster", "expected"),
    [
        ("dsv3", "h100", [("deepep", 20)]),
        ("dsv3", "gb300", [("hybridep", 16), ("hybridep", 32)]),
        ("mixtral-8x7b", "b200", [("deepep", 20), ("hybridep", 16), ("hybridep", 32)]),
        ("dsv3", "an-unknown-one", []),
    ],
)
def test_the_hardware_decides_what_is_tried_early(model: str, cluster: str, expected: list[tuple[str, int]]) -> None:
    assert dispatchers(model, cluster) == expected


def test_the_family_comes_before_the_hardware() -> None:
    assert dispatchers("qwen3-30b", "gb200", expert_parallel=16) == [("deepep", 20), ("hybridep", 16), ("hybridep", 32)]


def test_a_size_of_the_group_has_its_own_advice() -> None:
    assert dispatchers("mixtral-8x7b", "an-unknown-one", expert_parallel=8) == [("deepep", 20)]
    assert dispatchers("mixtral-8x7b", "an-unknown-one", expert_parallel=9) == []


def test_precision_is_a_condition() -> None:
    assert row("family-qwen3-next-bf16").when.holds("qwen3-next", "h100", "bf16", 64)
    assert not row("family-qwen3-next-bf16").when.holds("qwen3-next", "h100", "fp8_mxfp8", 64)


def test_every_suggestion_captures_what_suits_dropless_experts_unless_they_are_recomputed() -> None:
    base = {"expert_parallel": 64}
    for one in suggestions(load_guide(), "dsv3", "gb300", "bf16", base):
        assert one["cuda_graph_modules"] == ["attn", "moe_router", "moe_preprocess"]
    for recompute in ({"recompute_modules": ["moe"]}, {"recompute_granularity": "full"}):
        for one in suggestions(load_guide(), "dsv3", "gb300", "bf16", {**base, **recompute}):
            assert "cuda_graph_modules" not in one


@pytest.mark.parametrize(
    ("when", "holds"),
    [
        ({}, True),
        ({"model": ["a"]}, True),
        ({"model": ["b"]}, False),
        ({"cluster": ["c"]}, True),
        ({"other_clusters": ["c"]}, False),
        ({"other_clusters": ["d"]}, True),
        ({"expert_parallel": [8, 8]}, True),
        ({"expert_parallel": [9, None]}, False),
        ({"expert_parallel": [None, 7]}, False),
        ({"precision": ["fp32"]}, False),
    ],
)
def test_conditions(when: dict[str, list[object]], holds: bool) -> None:
    assert When.model_validate(when).holds("a", "c", "bf16", 8) is holds


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("what: hardware", "what: hardwear", "rows[0].what: input should be"),
        ("prefer: [{dispatcher: deepep}]", "prefer: [{dispatcher: deep}]", "dispatcher='deep' is not legal"),
        ("when: {cluster", "when: {clusters", "unknown key 'rows[0].when.clusters'"),
        ("id: hardware-b200", "id: hardware-h100", "row id 'hardware-h100' stands twice"),
    ],
)
def test_a_wrong_guide_is_named_with_file_and_line(tmp_path: Path, old: str, new: str, says: str) -> None:
    assert old in TEXT
    path = tmp_path / "guide.yaml"
    path.write_text(TEXT.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(SpaceError, match=r"^guide\.yaml:\d+: ") as caught:
        validation.load(path, Guide)
    assert says in caught.value.message
