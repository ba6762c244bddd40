import os
import subprocess
import sys
from pathlib import Path

from autotune_trials.stacks import collect

PROGRAM = """
from autotune_trials.stacks import register
register()
def wait_here():
    print("ready", flush=True)
    input()
wait_here()
"""
FOLDERS = [str(Path(__file__).parents[3] / name) for name in ("trials", "policies")]


def test_a_waiting_process_shows_where_it_waits_and_lives_on(tmp_path):
    stacks = tmp_path / "stacks"
    env = {**os.environ, "AUTOTUNE_STACKS": str(stacks), "PYTHONPATH": os.pathsep.join(FOLDERS)}
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env
    ) as child:
        assert child.stdout.readline() == b"ready\n"
        found = collect({3: (child.pid, stacks), 4: (child.pid, tmp_path / "absent")}, wait_s=20.0)
        child.communicate(b"\n")
    assert child.returncode == 0
    assert "in wait_here" in found[3]
    assert found[4].startswith("not started yet; ")


def test_a_process_that_is_gone_gives_none(tmp_path):
    (tmp_path / "stacks").write_text("")
    assert collect({0: (2**22 + 1, tmp_path / "stacks")}, wait_s=0.0) == {0: "not started yet; nothing is known\n"}
