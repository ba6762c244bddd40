"""What a gang leaves on a node is bounded."""

import os

import pytest

from autotune_trials.leftovers import MOST_KEPT, cut, tidy


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


def test_a_long_log_keeps_its_end(tmp_path):
    log = tmp_path / "rank-3.log"
    log.write_bytes(b"x" * 1000 + b"the end")
    cut(log, 107)
    assert log.read_bytes() == b"[the first 900 bytes are cut off]\n" + b"x" * 100 + b"the end"
    before = log.read_bytes()
    cut(log, len(before))
    assert log.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["rank-3.log"]
