"""What a trial costs beside its own training: from the proposal to its recorded outcome, minus its ranks' life-time."""

import os
import statistics
import subprocess
import sys
from pathlib import Path

import optuna
import pytest

pytestmark = [pytest.mark.bench, pytest.mark.service, pytest.mark.trial]

ROOT = Path(__file__).parents[2]
TRIALS = 6
MOST_OVERHEAD_S = 3.0


def test_overhead_of_a_trial(tmp_path, capsys):
    folders = [ROOT, ROOT / "trials", ROOT / "policies"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, folders)), "AUTOTUNE_HOME": str(tmp_path)}
    command = [sys.executable, "-m", "autotune.cli.main", "start", "--model", "tiny-moe", "--cluster", "local"]
    subprocess.run([*command, "--trials", str(TRIALS), "--study", "bench"], env=environment, check=True)
    rows = []
    study = optuna.load_study(study_name="bench", storage=f"sqlite:///{tmp_path}/bench/study.db")
    for trial in study.get_trials(deepcopy=False):
        lifetime_s = trial.user_attrs.get("outcome", {}).get("rank_lifetime_s", 0.0)
        if lifetime_s:
            total_s = (trial.datetime_complete - trial.datetime_start).total_seconds()
            rows.append((trial.number, total_s, lifetime_s))
    assert len(rows) >= TRIALS
    overheads_s = [total_s - lifetime_s for _, total_s, lifetime_s in rows]
    ratio = sum(total_s for _, total_s, _ in rows) / sum(lifetime_s for *_, lifetime_s in rows)
    with capsys.disabled():
        print(f"\n{'trial':>5} {'total_s':>8} {'ranks_s':>8} {'overhead_s':>10} {'ratio':>6}")
        for number, total_s, lifetime_s in rows:
            overhead_s = total_s - lifetime_s
            print(f"{number:5} {total_s:8.2f} {lifetime_s:8.2f} {overhead_s:10.2f} {total_s / lifetime_s:6.3f}")
        print(f"median overhead {statistics.median(overheads_s):.2f} s")
        print(f"from proposal to outcome / life-time of the ranks = {ratio:.3f}")
    assert all(overhead_s > 0 for overhead_s in overheads_s)
    assert statistics.median(overheads_s) <= MOST_OVERHEAD_S
