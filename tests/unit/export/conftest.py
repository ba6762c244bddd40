"""A small finished study, as values: six COMPLETE trials and at least one of each other end."""

import json
import os
from dataclasses import dataclass
from pathlib import Path

import pytest

from autotune.export.pareto import front
from autotune.export.policy import StudyFacts
from autotune.measure.outcome import TrialOutcome, TrialState
from autotune_policies.settings import resolve
from autotune_trials.spec import Contract, GangShape, ModelShape, Routing

GOLDEN = Path(__file__).parents[2] / "golden" / "export"
MIB = 2**20
STEP_SHARES = (9.0, 2.0, 1.5, 0.97, 0.98, 0.99, 1.0, 1.01, 1.02, 1.3)


@dataclass(frozen=True)
class Study:
    facts: StudyFacts
    outcomes: tuple[TrialOutcome, ...]

    @property
    def front(self):
        return front(self.outcomes)


def complete(trial, step_time_s, peak_memory_bytes, **settings):
    resolved = resolve(settings)
    losses = [7.0 - 0.125 * step + trial / 1024 for step in range(10)]
    return TrialOutcome(
        trial=trial,
        state=TrialState.COMPLETE,
        settings=resolved,
        step_time_s=step_time_s,
        tokens_per_s_per_gpu=8 * 128 / step_time_s / 4,
        peak_memory_bytes=peak_memory_bytes,
        loss=losses[-1],
        losses=losses,
        step_times_s=[step_time_s * share for share in STEP_SHARES],
        steps_used=7,
        resolved={
            "settings": dict(resolved),
            "dispatcher_class": f"Moe{str(resolved['dispatcher']).capitalize()}TokenDispatcher",
            "schedule": "forward_backward_no_pipelining",
            "stages": [["embedding", "decoder", "decoder", "loss"]],
            "world_size": 4,
        },
        rank_lifetime_s=18.0,
        gpu_s=72.0,
        hosts=["one"],
    )


def ended(trial, state, reason, violation=1.0, **settings):
    return TrialOutcome(trial, state, resolve(settings), reason=reason, violation=violation)


@pytest.fixture(scope="session")
def study():
    no_deep_ep = "No module named 'deep_ep'"
    too_few = "expert_parallel=8 needs 8 ranks, the gang has 4"
    selective = {"recompute_granularity": "selective", "recompute_modules": ["moe"]}
    return Study(
        StudyFacts(
            study="tiny-moe-local",
            model="tiny-moe",
            shape=ModelShape("tiny-moe", 4, 128, 4, 1024, 256, num_experts=8, moe_ffn_hidden_size=128),
            cluster="local",
            contract=Contract(128, 8, steps=10, warmup_steps=3, routing=Routing("natural", "mock_random")),
            gang=GangShape(1, 4, "cpu"),
            stack={"torch": "2.13.0+cpu", "megatron_core": "0.16.1", "python": "3.11"},
            fingerprint="0123456789abcdef",
            created_at="2026-01-02T03:04:05+00:00",
            gpu_hours=0.125,
            env={"OMP_NUM_THREADS": "1"},
        ),
        (
            complete(0, 0.5, 200 * MIB),
            complete(1, 0.4, 220 * MIB, expert_parallel=2),
            complete(2, 0.3, 300 * MIB, expert_parallel=2, micro_batch_size=2),
            complete(3, 0.6, 120 * MIB, expert_parallel=4, **selective),
            complete(4, 0.6, 310 * MIB, dispatcher="allgather"),
            complete(5, 0.45, 150 * MIB, expert_parallel=4, dispatcher="allgather"),
            ended(6, TrialState.UNAVAILABLE, f"deepep: {no_deep_ep}", dispatcher="deepep", num_sms=16),
            ended(7, TrialState.UNAVAILABLE, f"hybridep: {no_deep_ep}", dispatcher="hybridep", num_sms=16),
            ended(8, TrialState.REFUSED, too_few, expert_parallel=8),
            ended(
                9,
                TrialState.INFEASIBLE,
                "out of host memory: MemoryError (rank 1, node 0, after step 2)",
                1.8,
            ),
            ended(10, TrialState.FALLBACK, "ep_overlap asked true, built false", ep_overlap=True),
            ended(11, TrialState.LOST, "lost: node 0 is gone", 0.0),
            ended(12, TrialState.REFUSED, too_few, expert_parallel=8),
        ),
    )


@pytest.fixture(scope="session")
def golden():
    """Compares a text or JSON-able value with a file; UPDATE_GOLDEN=1 writes the file instead."""

    def check(name, value):
        text = value if isinstance(value, str) else json.dumps(value, indent=1) + "\n"
        path = GOLDEN / name
        if os.environ.get("UPDATE_GOLDEN") == "1":
            path.write_text(text, encoding="utf-8")
        assert path.exists(), f"golden file {name} is missing; UPDATE_GOLDEN=1 writes it"
        assert text == path.read_text(encoding="utf-8")

    return check
