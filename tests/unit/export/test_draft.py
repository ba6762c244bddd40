"""A predicted policy: what it says, for which releases, and why there is none."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from autotune import resources
from autotune.cli.main import main
from autotune.errors import RequestError
from autotune.export.draft import ALTERNATIVES, STACK, draft_text, make_draft, ranked, releases
from autotune.export.drafts import INDEX, Draft, draft, write_drafts
from autotune.predict.rank import Ranking
from autotune.request import TuneRequest, load_request
from autotune_policies.policy import load_policy, parse_policy


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Qwen3-30B with few parameters, so that ranking takes no time."""
    document = yaml.safe_load(resources.locate("models", "qwen3-30b").read_text(encoding="utf-8"))
    names = ("dispatcher", "num_sms", "expert_parallel", "micro_batch_size", "recompute_granularity")
    document["parameters"] = {name: document["parameters"][name] for name in names}
    document["parameters"]["num_sms"]["choices"] = [16, 32]
    document["fixed"] |= {"permute_fusion": True}
    document["recipes"], document["baseline"] = {}, {"dispatcher": "alltoall", "expert_parallel": 8}
    path = tmp_path_factory.mktemp("model") / "small.yaml"
    path.write_text(yaml.safe_dump(document))
    return str(path)


@pytest.fixture(scope="module")
def request_(model: str) -> TuneRequest:
    return load_request(model, "gb300", gpus=8)


@pytest.fixture(scope="module")
def ranking(request_: TuneRequest) -> Ranking:
    return ranked(request_, STACK, 10)


def test_it_says_what_is_predicted_and_nothing_else(request_: TuneRequest, ranking: Ranking) -> None:
    policy = make_draft(request_, ranking)
    first = ranking.best[0]
    evidence = policy.evidence
    assert policy.settings == first.settings
    assert evidence["kind"] == "predicted"
    assert evidence["predicted_step_time_s"]["value"] == pytest.approx(first.time.step_time_s, rel=5e-3)
    assert evidence["predicted_peak_memory_bytes"]["value"] == pytest.approx(first.memory.peak_memory_bytes, rel=5e-3)
    assert not {"step_time_s", "tokens_per_s_per_gpu", "peak_memory_bytes", "mfu", "trial"} & set(evidence)
    assert policy.fallback is None
    assert policy.env["NVLINK_DOMAIN_SIZE"] == "72"
    assert [entry["settings"] for entry in policy.alternatives] == [
        item.settings for item in [one for one in ranking.best if one is not ranking.recommended][:ALTERNATIVES]
    ]


def test_it_holds_for_the_releases_that_can_run_it(request_: TuneRequest, ranking: Ranking) -> None:
    settings = ranking.best[0].settings
    assert releases(request_, settings)[-1] == "0.19"
    newest = {**settings, "dispatcher": "ncclep", "num_sms": 16}
    assert "0.16" not in releases(request_, newest), "the dispatcher came later"
    illegal = {**settings, "expert_parallel": 3}
    assert releases(request_, illegal) == []


def test_nothing_that_fits_is_said(request_: TuneRequest, ranking: Ranking) -> None:
    with pytest.raises(
        RequestError, match="legal configurations of qwen3-30b that were looked at fits into the memory"
    ):
        make_draft(request_, replace(ranking, best=(), recommended=None))
    unfit = replace(ranking.best[0], settings={**ranking.best[0].settings, "expert_parallel": 3})
    with pytest.raises(RequestError, match="no Megatron-Core release"):
        make_draft(request_, replace(ranking, best=(unfit,), recommended=unfit))


def plan(capsys: pytest.CaptureFixture[str], model: str, *words: str) -> tuple[int, dict[str, Any], str]:
    status = main(["plan", "--model", model, "--cluster", "gb300", "--gpus", "8", "--json", *words])
    captured = capsys.readouterr()
    return status, json.loads(captured.out or "{}"), captured.err


def test_plan_writes_it(capsys: pytest.CaptureFixture[str], model: str, tmp_path: Path) -> None:
    path = tmp_path / "drafts" / "one.yaml"
    status, document, _ = plan(capsys, model, "--top", "1", "--policy", str(path))
    assert (status, len(document["ranking"])) == (0, 1)
    policy = load_policy(path)
    assert policy.settings == document["ranking"][0]["settings"]
    assert len(policy.alternatives) == ALTERNATIVES
    text = path.read_text(encoding="utf-8")
    assert text.startswith(
        "# PREDICTED, not measured: the fastest that `autotune plan` expects to fit, for qwen3-30b on 8 gb300 GPUs.\n"
    )
    plan(capsys, model, "--policy", str(path))
    assert path.read_text(encoding="utf-8") == text, "the same every time"


def test_a_draft_that_cannot_be_written(capsys: pytest.CaptureFixture[str], model: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    status, _, talk = plan(capsys, model, "--policy", str(tmp_path / "file" / "one.yaml"))
    assert status == 2
    assert talk.startswith(f"error: policy {tmp_path}/file/one.yaml cannot be written: ")


def test_nothing_is_written_where_nothing_fits(capsys: pytest.CaptureFixture[str], model: str, tmp_path: Path) -> None:
    status, _, _ = plan(capsys, model, "--memory-limit-gib", "1", "--policy", str(tmp_path / "one.yaml"))
    assert (status, list(tmp_path.iterdir())) == (1, [])


def test_a_pair_without_a_draft_has_a_reason(tmp_path: Path) -> None:
    none = draft("tiny-moe", "h100")
    assert (none.text, "no default number of GPUs" in none.reason) == ("", True)
    (tmp_path / none.file).write_text("an old one")
    write_drafts(tmp_path, [none, Draft("a", "b", "text\n", "")])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a-b.yaml", INDEX]
    assert (tmp_path / INDEX).read_text(encoding="utf-8").splitlines()[2:] == [
        none.line.rstrip("\n"),
        "a\tb\ta-b.yaml\t",
    ]


def test_the_shipped_form_of_a_draft_is_a_policy(request_: TuneRequest, ranking: Ranking, tmp_path: Path) -> None:
    assert parse_policy(draft_text(request_, ranking)) == make_draft(request_, ranking)
