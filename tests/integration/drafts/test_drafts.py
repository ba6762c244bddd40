"""The drafts in the repository are what the predictor says today, and cannot be taken for measurements."""

from pathlib import Path

import pytest

from autotune.export.drafts import CLUSTERS, INDEX, MODELS, draft, drafts, write_drafts
from autotune_policies.policy import load_policy

FOLDER = Path(__file__).parents[3] / "policies" / "drafts"
FILES = sorted(FOLDER.glob("*.yaml"))
QUICK = [("qwen3-30b", "b200"), ("gpt-oss-120b", "h100")]
AGAIN = "make drafts writes them again"


def test_every_pair_has_a_file_or_a_reason() -> None:
    lines = [line.split("\t") for line in (FOLDER / INDEX).read_text(encoding="utf-8").splitlines()[2:]]
    assert [(model, cluster) for model, cluster, *_ in lines] == [(m, c) for m in MODELS for c in CLUSTERS]
    for model, cluster, file, reason in lines:
        assert (file == f"{model}-{cluster}.yaml") != bool(reason)
    assert sorted(file for *_, file, _ in lines if file) == [path.name for path in FILES]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_draft_never_looks_like_a_measurement(path: Path) -> None:
    assert path.read_text(encoding="utf-8").startswith("# PREDICTED, not measured: ")
    policy = load_policy(path)
    assert policy.evidence["kind"] == "predicted"
    numbers = {name for name, value in policy.evidence.items() if isinstance(value, dict | int | float)}
    assert {name for name in numbers if not name.startswith("predicted_")} == {"num_gpus", "contract"}
    for entry in policy.alternatives:
        assert {name for name in entry if name.endswith(("_s", "_bytes", "_per_gpu"))} <= {
            "predicted_step_time_s", "predicted_peak_memory_bytes", "predicted_tokens_per_s_per_gpu",
        }  # fmt: skip
    assert policy.fallback is None
    low, high = policy.evidence["predicted_step_time_s"]["two_in_three_within"]
    assert low < policy.evidence["predicted_step_time_s"]["value"] < high


@pytest.mark.parametrize(("model", "cluster"), QUICK)
def test_a_draft_is_what_is_predicted_today(model: str, cluster: str) -> None:
    found = draft(model, cluster)
    assert found.text == (FOLDER / found.file).read_text(encoding="utf-8"), AGAIN


@pytest.mark.slow
def test_all_drafts_are_what_is_predicted_today(tmp_path: Path) -> None:
    write_drafts(tmp_path, drafts())
    assert [path.name for path in sorted(tmp_path.iterdir())] == [path.name for path in sorted(FOLDER.iterdir())]
    stale = [path.name for path in sorted(tmp_path.iterdir()) if path.read_bytes() != (FOLDER / path.name).read_bytes()]
    assert stale == [], AGAIN
