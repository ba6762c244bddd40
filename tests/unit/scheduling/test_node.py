"""What a node hands its ranks and how it keeps its books; whole gangs are tested in tests/conformance."""

import dataclasses
import json
import os
import socket
import sys
import time
from pathlib import Path

import pytest

from autotune_trials.node import NodeRanks, free_port
from autotune_trials.processes import describe_exit
from autotune_trials.scratch import scratch
from autotune_trials.spec import Contract, GangShape, ModelShape, TrialSpec

MODEL = ModelShape(name="none", num_layers=1, hidden_size=8, num_attention_heads=1, vocab_size=16, ffn_hidden_size=8)
SHOW_ENVIRONMENT = [sys.executable, "-c", "import os, json; print(json.dumps(dict(os.environ)))"]


def spec_of(ranks=1, nodes=1, **env):
    return TrialSpec("study", 7, MODEL, Contract(8, 2), {}, GangShape(nodes, ranks, "cpu"), env=env)


@pytest.fixture
def run(tmp_path):
    """Runs a program as the ranks of one node to its end; returns the node."""
    opened = []

    def start(argv, spec, node_rank=0, **options):
        node = NodeRanks(spec, node_rank=node_rank, work_dir=tmp_path, master=("10.0.0.1", 1234), argv=argv, **options)
        opened.append(node)
        node.start()
        while not node.poll().ended:
            pass
        return node

    yield start
    for node in opened:
        assert node.kill()


def environment(node, rank):
    return json.loads(node.logs(rank))


def test_launch_variables_are_global_on_every_node(run, tmp_path):
    node = run(SHOW_ENVIRONMENT, spec_of(ranks=2, nodes=3), node_rank=2)
    env = environment(node, 5)
    expected = {
        "RANK": "5", "LOCAL_RANK": "1", "WORLD_SIZE": "6", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "10.0.0.1",
        "MASTER_PORT": "1234", "AUTOTUNE_EVENTS": str(tmp_path / "rank-5.events.jsonl"),
    }  # fmt: skip
    assert {name: env[name] for name in expected} == expected
    assert [rank.rank for rank in node.poll().ranks] == [4, 5]


def test_a_rank_is_bound_to_its_numa_node(run, tmp_path, monkeypatch):
    folder = tmp_path / "bin"
    folder.mkdir()
    numactl = folder / "numactl"
    numactl.write_text('#!/bin/sh\necho "$@"\n', encoding="utf-8")
    numactl.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    spec = dataclasses.replace(spec_of(ranks=2), settings={"gpus_per_numa_node": 1})
    node = run(["train", "x"], spec)
    assert [node.logs(rank) for rank in range(2)] == [f"--cpunodebind={n} --membind={n} train x\n" for n in range(2)]


def test_binding_without_numactl_starts_nothing(run, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    spec = dataclasses.replace(spec_of(), settings={"gpus_per_numa_node": 1})
    with pytest.raises(OSError, match="needs numactl"):
        run(SHOW_ENVIRONMENT, spec)


def test_the_environment_comes_from_this_process_and_the_specification_wins(run, monkeypatch):
    monkeypatch.setenv("FROM_HERE", "yes")
    monkeypatch.setenv("OMP_NUM_THREADS", "99")
    monkeypatch.setenv("NVTE_FLAG", "0")
    monkeypatch.setenv("RANK", "77")
    env = environment(run(SHOW_ENVIRONMENT, spec_of(NVTE_FLAG="1")), 0)
    assert (env["FROM_HERE"], env["NVTE_FLAG"], env["RANK"]) == ("yes", "1", "0")
    assert env["OMP_NUM_THREADS"] == str(len(os.sched_getaffinity(0)))
    assert environment(run(SHOW_ENVIRONMENT, spec_of(OMP_NUM_THREADS="3")), 0)["OMP_NUM_THREADS"] == "3"


def test_compile_caches_are_keyed_by_fingerprint_unless_the_user_chose_a_place(run, tmp_path, monkeypatch):
    monkeypatch.setenv("AUTOTUNE_SCRATCH", str(tmp_path / "scratch"))
    monkeypatch.setenv("TRITON_CACHE_DIR", "/my/place")
    monkeypatch.delenv("HYBRID_EP_CACHE_DIR", raising=False)
    env = environment(run(SHOW_ENVIRONMENT, spec_of(), fingerprint="abc123"), 0)
    assert env["HYBRID_EP_CACHE_DIR"] == str(tmp_path / "scratch" / "cache" / "abc123" / "hybridep")
    assert env["TRITON_CACHE_DIR"] == "/my/place"
    assert "HYBRID_EP_CACHE_DIR" not in environment(run(SHOW_ENVIRONMENT, spec_of()), 0)


def test_a_rank_can_import_our_packages_from_a_checkout(run):
    node = run([sys.executable, "-c", "import autotune_trials.spec; print(autotune_trials.spec.SCHEMA)"], spec_of())
    assert node.logs(0) == "autotune.trial/v1\n"


def test_the_specification_lies_beside_the_events(run, tmp_path):
    run(SHOW_ENVIRONMENT, spec_of())
    assert TrialSpec.from_json((tmp_path / "spec.json").read_text()).trial == 7


def test_a_log_is_cut_at_the_front(run):
    node = run([sys.executable, "-c", "print('x' * 1000 + 'end')"], spec_of())
    assert node.logs(0, max_bytes=6) == "xxend\n"
    assert node.logs(3, max_bytes=6) == ""


def test_a_rank_that_prints_without_end_does_not_fill_the_disk_while_it_runs(tmp_path):
    program = (
        "import os, time\nfor _ in range(64): os.write(1, b'x' * (1 << 20))\nos.write(1, b'the end')\ntime.sleep(60)"
    )
    node = NodeRanks(spec_of(), node_rank=0, work_dir=tmp_path, master=("", 0), argv=[sys.executable, "-c", program])
    node.start()
    log = tmp_path / "rank-0.log"
    end_s = time.monotonic() + 20.0
    while not (node.logs(0, 7) == "the end" and log.stat().st_blocks * 512 < 40 << 20) and time.monotonic() < end_s:
        time.sleep(0.01)
    [rank] = node.poll().ranks
    assert rank.exit_code is None
    assert log.stat().st_blocks * 512 < 40 << 20
    node.kill()
    assert log.stat().st_size < 18 << 20
    assert node.logs(0, 8) == "xthe end"


def test_a_second_run_in_the_same_folder_forgets_the_first(run, tmp_path):
    (tmp_path / "rank-0.events.jsonl").write_text('{"event": "finished", "peak_memory_bytes": 1}\n')
    [rank] = run([sys.executable, "-c", "print('again')"], spec_of()).poll().ranks
    assert (rank.last_event, rank.peak_memory_bytes) == (None, None)


def test_steps_and_resolved_are_handed_out_once(run, tmp_path):
    lines = [
        {"event": "built", "resolved": {"world_size": 1}},
        {"event": "step", "step": 1, "step_time_s": 0.5, "loss": 2.0, "grad_norm": 1.0, "tokens": 16},
    ]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    program = f"import os; open(os.environ['AUTOTUNE_EVENTS'], 'w').write({text!r})"
    node = NodeRanks(spec_of(), node_rank=0, work_dir=tmp_path, master=("", 0), argv=[sys.executable, "-c", program])
    node.start()
    seen = [node.poll()]
    while not seen[-1].ended:
        seen.append(node.poll())
    node.kill()
    assert [record.step for status in seen for record in status.steps] == [1]
    assert [status.resolved for status in seen if status.resolved] == [{"world_size": 1}]
    assert node.poll().steps == ()


def test_a_start_that_fails_leaves_nothing(tmp_path):
    (tmp_path / "file").write_text("")
    node = NodeRanks(spec_of(), node_rank=0, work_dir=tmp_path / "file" / "x", master=("", 0), argv=["true"])
    with pytest.raises(NotADirectoryError):
        node.start()
    assert node.poll().ranks == ()
    assert node.kill()


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (0, "exited with status 0"),
        (3, "exited with status 3"),
        (-9, "was ended by SIGKILL"),
        (-99, "was ended by signal 99"),
    ],
)
def test_exits_in_words(code, words):
    assert describe_exit(code) == words


def test_scratch_is_private_to_the_user(tmp_path, monkeypatch):
    monkeypatch.setenv("AUTOTUNE_SCRATCH", str(tmp_path / "a" / "b"))
    assert scratch() == Path(tmp_path / "a" / "b")
    assert scratch().stat().st_mode & 0o777 == 0o700


def test_a_scratch_folder_of_somebody_else_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("AUTOTUNE_SCRATCH", str(tmp_path))
    owner = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: owner + 1)
    with pytest.raises(PermissionError, match="belongs to user"):
        scratch()


def test_a_free_port_can_be_bound():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", free_port("127.0.0.1")))
