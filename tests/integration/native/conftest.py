"""Runs the native trial program for real: gangs of 2 and 4 ranks on CPUs, started as a node starts them."""

import importlib.metadata
import importlib.util
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from autotune_trials.events import StepRecord, step_record
from autotune_trials.node import NodeRanks, free_port
from autotune_trials.spec import TrialSpec, spec_from

MODEL = {
    "name": "tiny", "num_layers": 4, "hidden_size": 64, "num_attention_heads": 4, "num_query_groups": 2,
    "vocab_size": 512, "ffn_hidden_size": 128, "num_experts": 8, "router_topk": 2, "moe_ffn_hidden_size": 64,
    "aux_loss_coeff": 0.01,
}  # fmt: skip
CONTRACT = {"seq_length": 32, "global_batch_size": 4, "steps": 3, "warmup_steps": 1, "precision": "fp32"}
NATURAL = {"source": "natural"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    missing = [name for name in ("torch", "megatron") if importlib.util.find_spec(name) is None]
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.trial)
            if missing:
                item.add_marker(pytest.mark.skip(reason=f"{' and '.join(missing)} not installed (extra: trial)"))


@dataclass(frozen=True)
class Run:
    """What a gang of ranks left behind."""

    spec: TrialSpec
    exit_codes: list[int]
    events: list[list[dict[str, Any]]]
    logs: list[str]

    def named(self, event: str, rank: int = 0) -> list[dict[str, Any]]:
        return [item for item in self.events[rank] if item["event"] == event]

    @property
    def records(self) -> list[StepRecord]:
        return [record for record in map(step_record, self.named("step")) if record is not None]

    @property
    def losses(self) -> list[float]:
        return [record.loss for record in self.records]

    @property
    def grad_norms(self) -> list[float]:
        return [record.grad_norm for record in self.records]

    @property
    def resolved(self) -> dict[str, Any]:
        return self.named("built")[0]["resolved"]

    @property
    def failures(self) -> list[dict[str, Any]]:
        return [item for rank in self.events for item in rank if item["event"] == "failed"]


Launch = Callable[..., Run]


@pytest.fixture(scope="session")
def release() -> tuple[int, int]:
    """The installed Megatron-Core release."""
    major, minor = importlib.metadata.version("megatron-core").split(".")[:2]
    return int(major), int(minor)


@pytest.fixture(scope="session")
def launch(tmp_path_factory: pytest.TempPathFactory) -> Launch:
    """``launch(ranks, model={}, contract={}, routing={}, env={}, **settings)``; equal calls run once."""
    known: dict[str, Run] = {}

    def run(
        ranks: int,
        *,
        model: dict[str, Any] | None = None,
        contract: dict[str, Any] | None = None,
        routing: dict[str, Any] | None = None,
        env: dict[str, str] | None = None,
        **settings: Any,
    ) -> Run:
        raw = {
            "study": "test", "trial": 0, "settings": settings, "env": env or {}, "deadline_s": 240.0,
            "model": MODEL | (model or {}),
            "contract": CONTRACT | (contract or {}) | {"routing": NATURAL if routing is None else routing},
            "gang": {"num_nodes": 1, "ranks_per_node": ranks, "device": "cpu"},
        }  # fmt: skip
        key = json.dumps(raw, sort_keys=True)
        if key not in known:
            known[key] = _run(spec_from(raw), tmp_path_factory.mktemp("gang"))
        return known[key]

    return run


@pytest.fixture(scope="session")
def trained(launch: Launch) -> Launch:
    """Like ``launch``, for runs that must succeed: checks what holds for every one of them."""

    def run(ranks: int, **options: Any) -> Run:
        result = launch(ranks, **options)
        assert result.exit_codes == [0] * ranks, f"{result.failures}\n{result.logs[0][-3000:]}"
        assert result.resolved["settings"] == result.spec.settings
        assert result.resolved["precision"] == result.spec.contract.precision
        assert result.resolved["world_size"] == ranks
        assert [record.step for record in result.records] == list(range(1, result.spec.contract.steps + 1))
        return result

    return run


def _run(spec: TrialSpec, folder: Path) -> Run:
    ranks = NodeRanks(spec, node_rank=0, work_dir=folder, master=("127.0.0.1", free_port("127.0.0.1")))
    ranks.start()
    try:
        while not (status := ranks.poll()).ended:
            time.sleep(0.05)
    finally:
        ranks.kill()
    world = range(spec.gang.world_size)
    return Run(
        spec,
        [-99 if rank.exit_code is None else rank.exit_code for rank in status.ranks],
        [_events(folder / f"rank-{rank}.events.jsonl") for rank in world],
        [ranks.logs(rank) for rank in world],
    )


def _events(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
