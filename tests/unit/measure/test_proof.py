"""A trial counts only when every rank shows that it ran what was asked for."""

from dataclasses import replace

import pytest

from autotune.measure.outcome import TrialState, judge
from autotune.measure.run import GangRun, RankExit
from autotune_policies.settings import resolve
from autotune_trials.claims import Claim, merged
from autotune_trials.events import StepRecord
from autotune_trials.spec import Contract, GangShape, ModelShape, TrialSpec

SPEC = TrialSpec(
    study="tiny",
    trial=7,
    model=ModelShape("tiny", 4, 64, 4, 128, 128, num_experts=4),
    contract=Contract(seq_length=16, global_batch_size=8, steps=6, warmup_steps=2),
    settings=resolve({"expert_parallel": 2, "dispatcher": "deepep", "num_sms": 20}),
    gang=GangShape(2, 2, "cuda"),
    env={"NVSHMEM_IB_SL": "1"},
)
SHOWN = {
    "settings": dict(SPEC.settings),
    "dispatcher_class": "MoEFlexTokenDispatcher(DeepepManager)",
    "precision": "bf16",
    "schedule": "forward_backward_no_pipelining",
    "environment": {},
    "graphs_captured": 0,
    "graph_replays": 0,
}


def run_with(*claims, spec=SPEC):
    return GangRun(
        ending="finished",
        ranks=tuple(RankExit(rank, rank // 2, 0, False, "finished", 6, 1000) for rank in range(4)),
        steps=tuple(StepRecord(step, 0.1, 4.0, 1.0, 128) for step in range(1, 7)),
        resolved={**SHOWN, "settings": dict(spec.settings), "world_size": 4},
        hosts=("one", "two"),
        claims=claims,
    )


def shown(**changes):
    settings = {**SHOWN["settings"], **changes.pop("settings", {})}
    return {**SHOWN, **changes, "settings": settings}


def test_all_ranks_alike_are_complete():
    assert judge(SPEC, run_with(Claim((0, 1, 2, 3), SHOWN))).state is TrialState.COMPLETE


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"settings": {"dispatcher": "alltoall"}}, "rank 3: dispatcher asked deepep, built alltoall"),
        ({"settings": {"num_sms": 24}}, "rank 3: num_sms asked 20, built 24"),
        ({"settings": {"ep_overlap": True}}, "rank 3: ep_overlap asked false, built true"),
        ({"precision": "fp32"}, "rank 3: precision is fp32, rank 0 has bf16"),
        ({"environment": {"NVSHMEM_IB_SL": None}}, "rank 3: environment NVSHMEM_IB_SL asked 1, in force null"),
        (
            {"dispatcher_class": "MoEAlltoAllTokenDispatcher"},
            "rank 3: dispatcher_class is MoEAlltoAllTokenDispatcher, rank 0 has MoEFlexTokenDispatcher(DeepepManager)",
        ),
    ],
)
def test_one_rank_that_differs_is_a_fallback_with_field_and_rank(changes, reason):
    outcome = judge(SPEC, run_with(Claim((0, 1, 2), SHOWN), Claim((3,), shown(**changes))))
    assert (outcome.state, outcome.cause, outcome.reason) == (TrialState.FALLBACK, "built_differently", reason)
    assert outcome.step_time_s is None


def test_a_rank_that_shows_nothing_proves_nothing():
    outcome = judge(SPEC, run_with(Claim((0, 2), SHOWN)))
    assert (outcome.state, outcome.cause) == (TrialState.FALLBACK, "unproven")
    assert outcome.reason.startswith("ranks 1, 3 showed nothing")


@pytest.mark.parametrize(
    ("captured", "replays", "reason"),
    [
        (0, 0, "cuda_graph_impl asked local, but no rank captured a graph"),
        (12, 0, "ranks 0-3: cuda_graph_impl asked local: 12 graphs captured, none replayed"),
        (12, 48, ""),
    ],
)
def test_a_graph_must_be_captured_and_replayed(captured, replays, reason):
    spec = replace(SPEC, settings={**SPEC.settings, "cuda_graph_impl": "local"})
    claim = shown(settings={"cuda_graph_impl": "local"}, graphs_captured=captured, graph_replays=replays)
    outcome = judge(spec, run_with(Claim((0, 1, 2, 3), claim), spec=spec))
    assert outcome.reason == reason
    assert (outcome.state is TrialState.COMPLETE) == (not reason)


def test_equal_claims_are_merged():
    claims = [Claim((rank,), SHOWN) for rank in range(999)] + [Claim((999,), shown(precision="fp32"))]
    assert [len(claim.ranks) for claim in merged(claims)] == [999, 1]
