"""A share of the launches may break suspect rules; the others never do, and certain rules hold always."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.constraint.probing import may_probe
from autotune.errors import RequestError
from autotune.measure.outcome import TrialOutcome, TrialState
from autotune.measure.surroundings import Surroundings
from autotune.request import TuneRequest, load_request
from autotune.search.proposal import Proposal, screen
from autotune.search.study import Study
from autotune.space.parameters import Parameter, SearchSpace
from autotune_trials.spec import GangShape

STACK = {"megatron_core": "0.19.2", "torch": "2.9.0", "transformer_engine": "2.14.0", "deep_ep": "1.2.1"}
HERE = Surroundings("stack-gpu", STACK, {})

Requests = Callable[[float], TuneRequest]

# Nodes of four GPUs: every group of DeepEP between nodes is suspect there, and 33 SMs are never legal.
SPACE = SearchSpace(
    parameters=(
        Parameter("dispatcher", ("alltoall", "deepep")),
        Parameter("num_sms", (20, 33), {"dispatcher": ("deepep",)}),
        Parameter("router_fusion", (False, True)),
        Parameter("permute_fusion", (False, True)),
        Parameter("grouped_gemm", (False, True)),
        Parameter("overlap_grad_reduce", (False, True)),
    ),
    fixed={"expert_parallel": 16},
    baseline={
        "dispatcher": "alltoall", "router_fusion": False, "permute_fusion": False, "grouped_gemm": False,
        "overlap_grad_reduce": False,
    },
)  # fmt: skip
SUSPECT = {**SPACE.baseline, "dispatcher": "deepep", "num_sms": 20}
ILLEGAL = {**SUSPECT, "num_sms": 33}


@pytest.fixture
def gpu_request(tmp_path: Path) -> Requests:
    def make(share: float) -> TuneRequest:
        asked = load_request("tiny-moe", "local", home=tmp_path, study="study", probe_rules=share)
        asked.folder.mkdir(parents=True, exist_ok=True)
        return replace(
            asked,
            gang=GangShape(num_nodes=4, ranks_per_node=4, device="cuda"),
            shape=replace(asked.shape, hidden_size=256, num_experts=16),
            contract=replace(asked.contract, global_batch_size=16),
            space=SPACE,
        )

    return make


def run(study: Study, launches: int) -> list[Proposal]:
    launched = []
    for _ in range(launches):
        proposal = study.next()
        assert proposal is not None
        study.tell(
            TrialOutcome(
                proposal.trial, TrialState.COMPLETE, proposal.settings,
                tokens_per_s_per_gpu=1000.0, peak_memory_bytes=10**9, step_time_s=1.0, steps_used=7,
            )
        )  # fmt: skip
        launched.append(proposal)
    return launched


def test_without_a_share_suspect_settings_are_refused_with_the_word(gpu_request: Requests) -> None:
    request = gpu_request(0.0)
    study = Study(request)
    study.enter(HERE)

    launched = run(study, 8)
    refused = screen(request, Proposal(0, SUSPECT, request.settings(SUSPECT)), HERE)

    assert {proposal.settings["dispatcher"] for proposal in launched} == {"alltoall"}
    assert refused is not None
    assert refused.state is TrialState.REFUSED
    assert refused.reason.startswith("AT020 (suspect): dispatcher=deepep")


def test_certain_rules_hold_even_while_probing(gpu_request: Requests) -> None:
    request = gpu_request(1.0)

    assert screen(request, Proposal(0, SUSPECT, request.settings(SUSPECT)), HERE, probing=True) is None
    refused = screen(request, Proposal(1, ILLEGAL, request.settings(ILLEGAL)), HERE, probing=True)
    assert refused is not None
    assert "MC067" in refused.reason


def test_a_share_of_the_launches_probes_and_says_so(gpu_request: Requests) -> None:
    study = Study(gpu_request(0.25))
    study.enter(HERE)

    launched = run(study, 16)

    probing = [bool(proposal.probes) for proposal in launched]
    assert 2 <= sum(probing) <= 4
    assert all(sum(probing[:count]) <= 0.25 * count for count in range(1, 17))
    assert {proposal.probes for proposal in launched} == {(), ("AT020",)}
    assert all(proposal.settings["num_sms"] in (None, 20) for proposal in launched)


def test_a_resumed_study_counts_the_probes_of_before(gpu_request: Requests) -> None:
    request = gpu_request(0.25)
    study = Study(request)
    study.enter(HERE)
    before = run(study, 8)

    resumed = Study(request)
    resumed.enter(HERE)
    after = run(resumed, 8)

    assert sum(bool(proposal.probes) for proposal in (*before, *after)) <= 4
    assert not {proposal.digest for proposal in before} & {proposal.digest for proposal in after}


@given(share=st.floats(0, 1), eager=st.lists(st.booleans(), max_size=60))
def test_probes_never_exceed_their_share(share: float, eager: list[bool]) -> None:
    probes = 0
    for launched, wants in enumerate(eager):
        probes += wants and may_probe(share, launched, probes)
        assert probes <= share * (launched + 1) + 1e-6


def test_the_whole_share_can_be_used() -> None:
    probes = 0
    for launched in range(100):
        probes += may_probe(0.29, launched, probes)
    assert probes == 29


@pytest.mark.parametrize("share", [-0.1, 1.5, float("nan")])
def test_a_share_is_between_zero_and_one(share: float) -> None:
    with pytest.raises(RequestError, match="probe-rules must be a share from 0 to 1"):
        load_request("tiny-moe", "local", probe_rules=share)
