"""Every planted fault is called by its name, none is ranked, and nothing is left running.

The ranks are real processes; most faults are planted in a stand-in program, some in the native one.
"""

import importlib.util
import json
import os
import shutil
import sys
import time
import uuid
from pathlib import Path

import pytest

from autotune.measure.outcome import TrialState
from autotune.measure.settle import Reference, against_baseline
from autotune.scheduling.local_gang import LocalGang
from autotune_policies.settings import resolve
from autotune_trials.spec import Contract, GangShape, ModelShape, TrialSpec
from tests.support.faults import IMPORTS, MARKER_VARIABLE, run_to_nothing_left, throttled_nvml

pytestmark = pytest.mark.service

PLANTED = [sys.executable, str(Path(__file__).with_name("planted_rank.py"))]
STALL_S = 10.0
MODEL = ModelShape(
    "tiny", num_layers=2, hidden_size=32, num_attention_heads=4, vocab_size=128, ffn_hidden_size=64, num_experts=4,
    router_topk=2, moe_ffn_hidden_size=32,
)  # fmt: skip
ASKED = {"expert_parallel": 2, "dispatcher": "deepep", "num_sms": 20, "cuda_graph_impl": "local",
         "cuda_graph_modules": ["attn"]}  # fmt: skip


@pytest.fixture
def run(tmp_path):
    """``run({rank: fault})`` -> (outcome, trial folder); checks that nothing is left of it."""
    marker = uuid.uuid4().hex
    numbers = iter(range(100))

    def run_planted(faults, *, nvml=None, argv=PLANTED, settings=ASKED, ranks=4):
        libraries = tmp_path / "libraries"
        for fault in faults.values():
            if fault in IMPORTS:
                (libraries / "deep_ep").mkdir(parents=True, exist_ok=True)
                (libraries / "deep_ep" / "__init__.py").write_text(IMPORTS[fault] + "\n")
        paths = [str(Path(__file__).parents[3] / name) for name in ("trials", "policies")]
        spec = TrialSpec(
            study="faults",
            trial=next(numbers),
            model=MODEL,
            contract=Contract(seq_length=16, global_batch_size=4, steps=6, warmup_steps=2),
            settings=resolve(settings),
            gang=GangShape(2, ranks // 2, "cpu"),
            env={
                "PLANTED": json.dumps({str(rank): fault for rank, fault in faults.items()}),
                MARKER_VARIABLE: marker,
                "PYTHONPATH": os.pathsep.join([str(libraries), *paths]),
            },
            deadline_s=90.0,
            stall_s=STALL_S if "hang" in " ".join(faults.values()) else 60.0,
        )
        folder = tmp_path / "trials" / f"{spec.trial:04d}"
        gang = LocalGang(tmp_path / "gang" / f"{spec.trial}", argv=argv, nvml=nvml)
        return run_to_nothing_left(gang, spec, folder, marker), folder

    return run_planted


def test_without_a_fault_it_is_complete(run):
    outcome, folder = run({})
    assert (outcome.state, outcome.reason) == (TrialState.COMPLETE, "")
    assert not (folder / "stacks.txt").exists()


@pytest.mark.parametrize(
    ("faults", "state", "cause", "words"),
    [
        ({3: "missing_package"}, TrialState.UNAVAILABLE, "missing_package", "No module named 'deep_ep' (rank 3"),
        ({1: "abi_error"}, TrialState.UNAVAILABLE, "abi_mismatch", "undefined symbol"),
        ({2: "import_segfault"}, TrialState.UNAVAILABLE, "import_crash", "crashed by SIGSEGV (rank 2, node 1, during"),
        ({1: "downgraded_dispatcher"}, TrialState.FALLBACK, "built_differently",
         "rank 1: dispatcher asked deepep, built alltoall"),
        ({3: "graph_never_replayed"}, TrialState.FALLBACK, "built_differently", "rank 3: cuda_graph_impl asked local"),
        ({2: "ignored_sms"}, TrialState.FALLBACK, "built_differently", "rank 2: num_sms asked 20, built 24"),
        ({3: "oom@2"}, TrialState.INFEASIBLE, "device_memory", "(rank 3, node 1, after step 1)"),
        ({1: "dead_rank"}, TrialState.INFEASIBLE, "crash", "crashed by SIGSEGV (rank 1, node 0, after step 2)"),
        ({0: "nan_loss"}, TrialState.INFEASIBLE, "not_a_number", "loss is nan in step 3"),
    ],
)  # fmt: skip
def test_a_planted_fault_is_called_by_its_name(run, faults, state, cause, words):
    outcome, _ = run(faults)
    assert (outcome.state, outcome.cause) == (state, cause), outcome.reason
    assert words in outcome.reason
    assert outcome.advice
    assert outcome.tokens_per_s_per_gpu is None


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize(
    ("fault", "state", "cause", "words"),
    [
        ("missing_package", TrialState.UNAVAILABLE, "missing_package", "No module named 'deep_ep'"),
        ("import_segfault", TrialState.UNAVAILABLE, "import_crash", "during imports"),
        ("downgraded_dispatcher", TrialState.FALLBACK, "built_differently", "dispatcher asked deepep, built alltoall"),
        ("graph_never_replayed", TrialState.FALLBACK, "built_differently", "cuda_graph_impl asked local"),
        ("oom@1", TrialState.INFEASIBLE, "device_memory", "CUDA out of memory"),
        ("oom@6", TrialState.INFEASIBLE, "device_memory", "after step 5"),
        ("dead_rank@1", TrialState.INFEASIBLE, "crash", "crashed by SIGSEGV"),
        ("dead_rank@6", TrialState.INFEASIBLE, "crash", "after step 5"),
        ("nan_loss@1", TrialState.INFEASIBLE, "not_a_number", "loss is nan in step 1"),
        ("nan_loss@6", TrialState.INFEASIBLE, "not_a_number", "loss is nan in step 6"),
    ],
)
def test_a_fault_is_called_by_its_name_on_the_first_and_the_last_rank_in_the_first_and_the_last_step(
    run, fault, rank, state, cause, words
):
    outcome, _ = run({rank: fault}, ranks=2)
    assert (outcome.state, outcome.cause) == (state, cause), outcome.reason
    assert words in outcome.reason
    assert f"rank {rank}" in outcome.reason
    assert outcome.tokens_per_s_per_gpu is None


@pytest.mark.parametrize(
    ("faults", "state", "cause", "words"),
    [
        ({0: "hang@1"}, TrialState.INFEASIBLE, "hang", "rank 0 silent in step 1"),
        ({1: "hang@6"}, TrialState.INFEASIBLE, "hang", "silent after step 5 of 6"),
        ({3: "hang@5"}, TrialState.INFEASIBLE, "hang", "rank 3 silent after step 4 of 6"),
        ({1: "import_hang"}, TrialState.UNAVAILABLE, "import_hang", "rank 1 silent during imports"),
    ],
)
def test_a_hang_is_ended_in_time_and_its_stacks_are_kept(run, faults, state, cause, words):
    began_s = time.monotonic()
    outcome, folder = run(dict.fromkeys(range(4), "hang@5") | faults)
    assert time.monotonic() - began_s < STALL_S + 5.0
    assert (outcome.state, outcome.cause) == (state, cause), outcome.reason
    assert outcome.tokens_per_s_per_gpu is None
    stacks = (folder / "stacks.txt").read_text()
    assert [rank for rank in range(4) if f"==> rank {rank} <==" in stacks] == [0, 1, 2, 3]
    assert "in wait_for_ever" in stacks
    if cause == "import_hang":
        assert words in outcome.reason
        assert "deep_ep/__init__.py" in outcome.reason


def test_a_corrupted_loss_is_out_of_parity(run):
    baseline, _ = run({}, settings={"expert_parallel": 2})
    wrong, _ = run({0: "corrupted_loss"})
    sound, _ = run({})
    contract = Contract(seq_length=16, global_batch_size=4, precision="bf16")
    reference = Reference(baseline.settings, contract, "native", "cpu")
    judged = against_baseline(wrong, [baseline, wrong], reference)
    assert (judged.state, judged.cause) == (TrialState.INFEASIBLE, "out_of_parity")
    assert judged.tokens_per_s_per_gpu is None
    assert against_baseline(sound, [baseline], reference).state is TrialState.COMPLETE


@pytest.mark.parametrize(
    ("faults", "cause"),
    [
        ({1: "daemon@3"}, ""),
        ({0: "daemon_hang@3", 1: "hang@3"}, "hang"),
        ({0: "daemon@2", 1: "oom_after_daemon@3"}, "device_memory"),
    ],
)
def test_a_daemon_that_a_library_left_is_ended_with_the_rank(run, tmp_path, monkeypatch, faults, cause):
    monkeypatch.setattr(shutil, "rmtree", lambda *_, **__: None)  # the file that says which process it was
    outcome, _ = run(faults, ranks=2)
    assert outcome.cause == cause, outcome.reason
    [pid_file] = tmp_path.rglob("daemon.pid")
    stat = Path(f"/proc/{pid_file.read_text()}/stat")
    assert not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z"


def test_a_throttled_node_is_contaminated_and_runs_again(run):
    outcome, _ = run({}, nvml=throttled_nvml(1.0))
    assert (outcome.state, outcome.cause, outcome.retry) == (TrialState.CONTAMINATED, "disturbed", "again"), (
        outcome.reason
    )
    assert "GPU 0 was slowed (hardware thermal limit) in 100% of the samples, up to 91 C" in outcome.reason
    assert outcome.tokens_per_s_per_gpu is None
    assert run({}, nvml=throttled_nvml(0.0))[0].state is TrialState.COMPLETE


@pytest.mark.skipif(
    importlib.util.find_spec("torch") is None or importlib.util.find_spec("megatron") is None,
    reason="torch and megatron-core not installed (extra: trial)",
)
@pytest.mark.parametrize(
    ("fault", "state", "cause"),
    [
        ("none", TrialState.COMPLETE, ""),
        # Megatron-Core imports deep_ep whatever the dispatcher; here nobody asked for it.
        ("import_segfault", TrialState.INFEASIBLE, "import_crash"),
    ],
)
def test_the_native_program_is_proven_and_its_faults_are_named(run, fault, state, cause):
    outcome, _ = run({0: fault, 1: fault}, argv=None, settings={"expert_parallel": 2}, ranks=2)
    assert (outcome.state, outcome.cause) == (state, cause), outcome.reason
