"""Nothing survives a kill: of a rank, of a node's worker, of the driver."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from autotune.scheduling.gang import run_gang
from autotune_trials.leftovers import claim

DRIVER = Path(__file__).with_name("drive_gang.py")
ROOT = Path(__file__).parents[2]


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def owner_of(family, rank: int) -> int:
    """The process whose direct child the rank is; children of a rank inherit its variables and are skipped."""
    pids = family.pids(f"RANK={rank}")
    [owner] = {parent(pid) for pid in pids} - {*pids, 1}
    return owner


def start_time(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]


def still_runs(pid: int, born: str) -> bool:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except FileNotFoundError:
        return False
    return fields[19] == born and fields[0] != "Z"


class Assassin(threading.Thread):
    """Kills somebody once the gang trains; the main thread is busy following the gang."""

    def __init__(self, family, victim, ready):
        super().__init__()
        self.family, self.victim, self.ready = family, victim, ready

    def run(self):
        if self.family.wait(lambda: len(self.family.pids()) >= self.ready, 20):
            os.kill(self.victim(), signal.SIGKILL)


def test_a_killed_rank_takes_the_gang_with_it(open_gang, make_spec, family):
    spec = make_spec(dict.fromkeys(range(4), "run_on"), nodes=2)
    assassin = Assassin(family, lambda: family.pids("RANK=2")[0], ready=4)
    assassin.start()
    run = run_gang(open_gang(spec), spec)
    assassin.join()
    assert (run.ending, run.message) == ("rank_died", "rank 2 was ended by SIGKILL")
    assert [(rank.exit_code, rank.killed) for rank in run.ranks] == [(-9, True), (-9, True), (-9, False), (-9, True)]
    assert family.pids() == []


@pytest.mark.service
@pytest.mark.parametrize("open_gang", ["ray"], indirect=True)
def test_a_killed_worker_takes_its_ranks_with_it_and_the_gang_is_lost(open_gang, make_spec, family):
    spec = make_spec({0: "run_on", 1: "grandchildren"}, nodes=2, ranks=1)
    assassin = Assassin(family, lambda: owner_of(family, rank=1), ready=4)
    assassin.start()
    run = run_gang(open_gang(spec), spec)
    assassin.join()
    assert run.ending == "lost"
    assert run.message.startswith("node 1 of the gang: ActorDiedError")
    assert "\n" not in run.message
    assert family.gone()


@pytest.mark.parametrize("kind", ["local", pytest.param("ray", marks=pytest.mark.service)])
def test_a_killed_driver_leaves_nothing(make_spec, family, tmp_path, kind):
    spec_file = tmp_path / "spec.json"
    spec_file.write_text(make_spec({0: "run_on", 1: "grandchildren"}).to_json())
    folders = [str(ROOT), str(ROOT / "trials"), str(ROOT / "policies")]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(folders), "AUTOTUNE_SCRATCH": str(tmp_path)}
    with (tmp_path / "driver.log").open("wb") as log:
        driver = subprocess.Popen(
            [sys.executable, str(DRIVER), kind, str(spec_file), str(tmp_path)], env=env, stdout=log, stderr=log
        )
    try:
        assert family.wait(lambda: len(family.pids()) >= 4, 40), (tmp_path / "driver.log").read_text()
        owner = owner_of(family, rank=0)
        born = start_time(owner)
        assert (owner == driver.pid) == (kind == "local")
    finally:
        driver.kill()
        driver.wait()
    assert family.gone()
    assert family.wait(lambda: not still_runs(owner, born), 10)
    if kind == "ray":
        [left] = (tmp_path / "gangs").glob("test-*")

        def seen_by_the_next_worker() -> bool:
            claim(tmp_path / "gangs" / "next").close()
            return (left / "ended").exists()

        # A process counts as a zombie once its first thread has ended, but holds its locks until the last one has.
        assert family.wait(seen_by_the_next_worker, 10), "the next worker of the node sees that nobody holds it"
