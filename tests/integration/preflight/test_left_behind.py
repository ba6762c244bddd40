"""What a probe started ends with whoever made the probe, however that one dies."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from autotune_trials.processes import living

ROOT = Path(__file__).resolve().parents[3]
PROBED = """
import pathlib, subprocess, time
child = subprocess.Popen(["sleep", "600"], start_new_session=True)
pathlib.Path(__file__).with_name("child").write_text(f"{child.pid}.")
time.sleep(600)
"""
MAKER = """
import time
from autotune_trials.preflight.process import Probe
probe = Probe("deepep", ["probed"], {})
time.sleep(600)
"""


def wait_until(condition, seconds):
    end_s = time.monotonic() + seconds
    while not condition() and time.monotonic() < end_s:
        time.sleep(0.02)
    return condition()


def test_a_child_in_a_session_of_its_own_does_not_outlive_a_killed_maker(tmp_path):
    (tmp_path / "probed.py").write_text(PROBED)
    paths = os.pathsep.join(str(path) for path in (tmp_path, ROOT, ROOT / "trials", ROOT / "policies"))
    maker = subprocess.Popen([sys.executable, "-c", MAKER], env={**os.environ, "PYTHONPATH": paths})
    told = tmp_path / "child"
    try:
        assert wait_until(lambda: told.exists() and told.read_text().endswith("."), 30)
        child = int(told.read_text().rstrip("."))
        assert child in {process.pid for process in living()}
    finally:
        maker.send_signal(signal.SIGKILL)
        maker.wait()
    assert wait_until(lambda: child not in {process.pid for process in living()}, 10)
