"""What every kind of gang promises. The ranks are real processes running a stand-in program."""

import os
import sys
import time
from pathlib import Path

import pytest

from autotune.measure.run import GangRun
from autotune.scheduling.gang import run_gang


def endings(run: GangRun) -> list[tuple[int | None, bool]]:
    return [(rank.exit_code, rank.killed) for rank in run.ranks]


def test_a_gang_that_finishes_reports_everything(open_gang, make_spec):
    spec = make_spec()
    seen = []
    run = run_gang(open_gang(spec), spec, on_step=seen.append)
    assert (run.ending, run.message) == ("finished", "")
    assert endings(run) == [(0, False), (0, False)]
    assert [rank.rank for rank in run.ranks] == [0, 1]
    assert [rank.last_event for rank in run.ranks] == ["finished", "finished"]
    assert [rank.last_step for rank in run.ranks] == [5, 5]
    assert [rank.peak_memory_bytes for rank in run.ranks] == [1000, 1001]
    assert [record.step for record in run.steps] == [1, 2, 3, 4, 5]
    assert run.steps[1].loss == 2.0
    assert seen == list(run.steps)
    assert run.resolved == {"world_size": 2}
    assert "rank 0 will finish" in run.ranks[0].log_tail
    assert "rank 1 will finish" in run.ranks[1].log_tail, "programs print on the first or the last rank"
    assert 0.05 < run.rank_lifetime_s < run.wall_s
    assert len(run.hosts) == 1


def test_one_rank_that_fails_ends_the_gang(open_gang, make_spec):
    spec = make_spec({0: "run_on", 1: "exit_3"})
    run = run_gang(open_gang(spec), spec)
    assert run.ending == "rank_died"
    assert run.message == "rank 1 exited with status 3"
    assert endings(run) == [(-9, True), (3, False)]
    assert run.ranks[1].failure == {"kind": "exception", "error": "ValueError", "message": "asked to fail"}
    assert "rank 1 will exit_3" in run.ranks[1].log_tail


def test_a_segmentation_fault_is_named(open_gang, make_spec):
    spec = make_spec({0: "segv", 1: "run_on"})
    run = run_gang(open_gang(spec), spec)
    assert (run.ending, run.message) == ("rank_died", "rank 0 was ended by SIGSEGV")
    assert endings(run) == [(-11, False), (-9, True)]
    assert run.ranks[0].last_step == 2


def test_a_rank_that_never_says_anything_is_a_stall(open_gang, make_spec):
    spec = make_spec({0: "hang_at_once", 1: "run_on"}, stall_s=0.7)
    run = run_gang(open_gang(spec), spec)
    assert run.ending == "stall"
    assert "rank 0 reported nothing for 0.7 s after its start" in run.message
    assert endings(run) == [(-9, True), (-9, True)]


def test_a_rank_that_falls_silent_is_a_stall(open_gang, make_spec):
    spec = make_spec({0: "stall_after_3", 1: "run_on"}, stall_s=0.7)
    run = run_gang(open_gang(spec), spec)
    assert run.ending == "stall"
    assert "after step 3" in run.message
    assert [record.step for record in run.steps] == [1, 2, 3]


def test_a_gang_that_runs_on_meets_its_deadline(open_gang, make_spec):
    spec = make_spec({0: "run_on", 1: "ignore_sigterm"}, deadline_s=0.7)
    run = run_gang(open_gang(spec), spec)
    assert run.ending == "deadline"
    assert "after 0.7 s" in run.message
    assert endings(run) == [(-9, True), (-9, True)]
    assert 0.6 < run.rank_lifetime_s < 3


def test_garbage_in_the_log_and_among_the_events_changes_nothing(open_gang, make_spec):
    spec = make_spec({0: "garbage", 1: "garbage"})
    run = run_gang(open_gang(spec), spec)
    assert run.ending == "finished"
    assert [record.step for record in run.steps] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("behaviour", ["grandchildren", "hidden_grandchild", "orphan"])
def test_descendants_die_with_the_gang(open_gang, make_spec, family, behaviour):
    spec = make_spec({1: behaviour}, deadline_s=1.5)
    run = run_gang(open_gang(spec), spec)
    assert run.ending == ("finished" if behaviour == "orphan" else "deadline")
    assert family.pids() == []  # not soon: already


def test_a_gang_can_be_cancelled(open_gang, make_spec):
    spec = make_spec({0: "run_on", 1: "run_on"})
    seen = []
    run = run_gang(open_gang(spec), spec, on_step=seen.append, should_stop=lambda: len(seen) >= 2)
    assert run.ending == "cancelled"
    assert endings(run) == [(-9, True), (-9, True)]
    assert len(run.steps) >= 2


def test_an_exception_of_the_caller_leaves_nothing(open_gang, make_spec, family):
    spec = make_spec({0: "run_on", 1: "run_on"})

    def interrupt(_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_gang(open_gang(spec), spec, on_step=interrupt)
    assert family.pids() == []


def test_a_death_on_one_node_ends_all_nodes(open_gang, make_spec, family):
    spec = make_spec({0: "run_on", 1: "run_on", 2: "run_on", 3: "exit_3"}, nodes=2)
    run = run_gang(open_gang(spec), spec)
    assert run.ending == "rank_died"
    assert endings(run) == [(-9, True), (-9, True), (-9, True), (3, False)]
    assert [rank.node for rank in run.ranks] == [0, 0, 1, 1]
    assert family.pids() == []


def test_several_nodes_finish_together(open_gang, make_spec):
    spec = make_spec(nodes=2)
    run = run_gang(open_gang(spec), spec)
    assert run.ending == "finished"
    assert run.resolved == {"world_size": 4}
    assert [rank.peak_memory_bytes for rank in run.ranks] == [1000, 1001, 1002, 1003]
    assert len(run.hosts) == 2


def test_a_program_that_does_not_exist_is_a_rank_that_died(open_gang, make_spec):
    spec = make_spec()
    run = run_gang(open_gang(spec, argv=["no-such-program-anywhere"]), spec)
    assert run.ending == "rank_died"
    died = next(rank for rank in run.ranks if not rank.killed)  # which is first, the machine decides
    assert died.exit_code == 127
    assert "cannot run no-such-program-anywhere" in died.log_tail


def test_ranks_that_nobody_asks_for_end_themselves(open_gang, make_spec, family):
    spec = make_spec({0: "run_on", 1: "run_on"})
    gang = open_gang(spec, fence_s=0.6)
    gang.launch(spec)
    assert len(family.pids()) == 2
    assert family.gone()
    [status] = gang.poll()
    assert status.why == "fence"
    assert [rank.exit_code for rank in status.ranks] == [-9, -9]


def test_killing_twice_and_closing_twice_is_harmless(open_gang, make_spec, family):
    spec = make_spec({0: "run_on", 1: "run_on"})
    gang = open_gang(spec)
    gang.launch(spec)
    gang.kill()
    assert family.pids() == []
    gang.kill()
    [status] = gang.poll()
    assert (status.ended, status.why) == (True, "cancelled")
    gang.close()
    gang.close()


def test_ranks_get_the_launch_variables_and_the_specified_environment(open_gang, make_spec):
    spec = make_spec()
    show = "import os; print(sorted((k, v) for k, v in os.environ.items() if k in {names}))"
    names = {"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "STAND_IN"}
    argv = [sys.executable, "-c", show.format(names=names)]
    started = time.monotonic()
    run = run_gang(open_gang(spec, argv=argv), spec)
    assert run.ending == "finished"
    assert run.ranks[0].log_tail.strip() == str(
        [("LOCAL_RANK", "0"), ("LOCAL_WORLD_SIZE", "2"), ("RANK", "0"), ("STAND_IN", "{}"), ("WORLD_SIZE", "2")]
    )
    assert time.monotonic() - started >= run.wall_s


@pytest.mark.service
@pytest.mark.parametrize("open_gang", ["ray"], indirect=True)
def test_a_worker_that_cannot_start_its_ranks_is_lost_and_says_why_in_one_line(open_gang, make_spec):
    spec = make_spec(nodes=2)
    run = run_gang(open_gang(spec, argv=["no\0program"]), spec)
    assert (run.ending, run.message) == ("lost", "node 0 of the gang: ValueError: embedded null byte")
    assert endings(run) == [(None, False)] * 4


@pytest.mark.service
@pytest.mark.parametrize("open_gang", ["ray"], indirect=True)
def test_node_workers_are_named_after_study_and_trial(open_gang, make_spec):
    import ray

    spec = make_spec({0: "run_on", 1: "run_on"}, ranks=1, nodes=2, trial=7)
    gang = open_gang(spec)
    gang.launch(spec)
    for node in range(2):
        assert ray.get_actor(f"{spec.study}/trial-0007/node-{node}") is not None
    gang.close()


@pytest.mark.service
@pytest.mark.parametrize("open_gang", ["ray"], indirect=True)
@pytest.mark.parametrize(("behaviours", "kept"), [({}, False), ({1: "exit_3"}, True)])
def test_only_a_failed_gang_stays_in_scratch(open_gang, make_spec, behaviours, kept):
    spec = make_spec(behaviours)
    gang = open_gang(spec)
    run = run_gang(gang, spec)
    folders = list((Path(os.environ["AUTOTUNE_SCRATCH"]) / "gangs").glob(f"{spec.study}-*"))
    assert len(folders) == 1
    assert run.ranks[1].log_tail
    gang.close()
    assert folders[0].exists() == kept
