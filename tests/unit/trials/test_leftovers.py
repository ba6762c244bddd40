"""What a gang leaves on a node is bounded, however its worker ended."""

import os
import subprocess
import sys

import pytest

from autotune_trials.leftovers import MOST_KEPT, claim, tidy
from autotune_trials.rank_log import HEAD_BYTES, TAIL_BYTES

HOLDER = """
import fcntl, sys
owner = open(sys.argv[1] + "/owner", "wb")
fcntl.flock(owner, fcntl.LOCK_EX)
print("up", flush=True)
sys.stdin.read()
"""
READER = "import sys; print('up', flush=True); sys.stdin.read()"


@pytest.fixture
def gang(tmp_path):
    def make(name):
        folder = tmp_path / "gangs" / name
        folder.mkdir(parents=True)
        (folder / "rank-0.log").write_text("a line\n" * 9)
        return folder

    return make


def test_nothing_stays_of_a_gang_that_ended_well(gang):
    folder, running = gang("one"), gang("two")
    tidy(folder, failed=False)
    assert not folder.exists()
    assert running.exists()
    tidy(folder, failed=False)


def test_the_newest_failed_ones_stay_and_running_ones_are_not_touched(gang):
    running = gang("running")
    failed = [gang(f"failed-{number:02d}") for number in range(MOST_KEPT + 3)]
    for age, folder in enumerate(failed):
        tidy(folder, failed=True)
        os.utime(folder / "ended", ns=(age, age))
    last = gang("last")
    tidy(last, failed=True)
    assert sorted(running.parent.iterdir()) == sorted([*failed[-MOST_KEPT + 1 :], last, running])
    assert (last / "rank-0.log").read_text() == "a line\n" * 9


@pytest.fixture
def process():
    """Starts a program and waits until it is up; killed at the end."""
    started = []

    def start(*words, **env):
        pipe = subprocess.PIPE
        started.append(subprocess.Popen([sys.executable, "-I", "-S", "-c", *words], stdin=pipe, stdout=pipe, env=env))
        assert started[-1].stdout.readline() == b"up\n"
        return started[-1]

    yield start
    for each in started:
        each.kill()
        each.communicate()


def test_the_folder_of_a_worker_that_was_killed_is_tidied_by_the_next_one(gang, process):
    dead = gang("dead")
    with (dead / "rank-0.log").open("wb") as log:
        log.truncate(HEAD_BYTES + TAIL_BYTES + (1 << 30))  # a hole: nothing was written
    worker = process(HOLDER, str(dead))
    with claim(dead.parent / "one"):
        assert not (dead / "ended").exists()
    worker.kill()
    worker.wait()
    with claim(dead.parent / "two"):
        assert (dead / "ended").exists()
        assert (dead / "rank-0.log").stat().st_size < HEAD_BYTES + TAIL_BYTES + 100


def test_of_many_dead_workers_only_the_newest_stay(gang):
    dead = [gang(f"dead-{number:02d}") for number in range(MOST_KEPT + 3)]
    for age, folder in enumerate(dead):
        os.utime(folder, ns=(age, age))
    with claim(dead[0].parent / "mine"):
        assert sorted(path.name for path in dead[0].parent.iterdir() if path.is_dir()) == [
            *(folder.name for folder in dead[3:]), "mine",
        ]  # fmt: skip


def test_a_folder_in_which_a_rank_still_writes_is_not_touched(gang, process):
    folder = gang("orphaned")
    rank = process(READER, AUTOTUNE_EVENTS=str(folder / "rank-0.events.jsonl"))
    claim(folder.parent / "one").close()
    assert not (folder / "ended").exists()
    rank.kill()
    rank.wait()
    claim(folder.parent / "two").close()
    assert (folder / "ended").exists()


def test_a_folder_that_is_held_cannot_be_had_and_one_that_is_not_is_emptied(gang):
    folder = gang("same")
    with claim(folder):
        assert not (folder / "rank-0.log").exists()
        with pytest.raises(FileExistsError):
            claim(folder)
    claim(folder).close()
