"""Where the time of a step goes in baseline and winner: records of unscored runs under a profiler.

A profiler slows steps, so nothing here is ever ranked, confirmed or predicted from. A run leaves its record in
``profile/<fingerprint>/<trial>/`` of the study's folder; what it showed is in ``profile/baseline.json`` and
``profile/winner.json``.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from autotune.files import write_atomically
from autotune.measure.outcome import TrialOutcome, TrialState
from autotune.measure.outcome_file import read_outcome
from autotune.request import TuneRequest

FOLDER = "profile"
ROLES = ("baseline", "winner")
CAVEAT = "unscored: a profiler slows steps by up to 20 %"

_PARTS = {
    "experts_s": "experts", "permute_s": "permute", "exposed_dispatch_s": "exposed dispatch",
    "exposed_combine_s": "exposed combine", "exposed_other_communication_s": "other exposed communication",
    "optimizer_s": "optimizer", "other_s": "other", "host_s": "host",
}  # fmt: skip


def is_profiled(request: TuneRequest) -> bool:
    """Whether baseline and winner are to be profiled: as asked, else where trials run on GPUs; a command never is."""
    asked = request.effort.profile
    return request.program != "command" and (request.gang.device == "cuda" if asked is None else asked)


def profile_folder(request: TuneRequest, fingerprint: str, trial: int) -> Path:
    """Where the profiled run of a trial on one stack leaves its record."""
    return request.folder / FOLDER / fingerprint / f"{trial:04d}"


def is_made(folder: Path) -> bool:
    """Whether a profiled run has ended there, and running it again would show nothing else."""
    outcome = read_outcome(folder / "outcome.json")
    return outcome is not None and ((folder / "profile.json").exists() or not outcome.state.runs_again)


def profiles_of(
    request: TuneRequest, fingerprint: str, subjects: Mapping[str, TrialOutcome]
) -> dict[str, dict[str, Any]]:
    """What the profiled runs of these trials showed, by role; a role whose run failed or was not made is left out.

    Args:
        request: Names the study's folder.
        fingerprint: Of the present epoch.
        subjects: Trials by role, ``baseline`` and ``winner``.
    """
    found = {role: _shown(request, fingerprint, subject.trial) for role, subject in subjects.items()}
    return {role: shown for role, shown in found.items() if shown is not None}


def write_profiles(request: TuneRequest, profiles: Mapping[str, Mapping[str, Any]]) -> None:
    """Write what was shown under the name of each role; a role that has nothing keeps no file of an earlier one.

    Raises:
        OSError: a file cannot be written.
    """
    for role in ROLES:
        path = request.folder / FOLDER / f"{role}.json"
        if role in profiles:
            write_atomically(path, json.dumps(profiles[role], indent=1).encode())
        else:
            path.unlink(missing_ok=True)


def profile_gpu_s(request: TuneRequest) -> float:
    """GPU-seconds that all profiled runs of a study have spent."""
    outcomes = (read_outcome(path) for path in (request.folder / FOLDER).glob("*/*/outcome.json"))
    return sum(outcome.gpu_s for outcome in outcomes if outcome is not None)


def sentences(profiles: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """One line for a person per profiled run: the parts of a step in percent, the largest first."""
    for role, found in profiles.items():
        step_s = float(found["step_time_s"])
        parts = sorted(((float(found[name]), label) for name, label in _PARTS.items()), reverse=True)
        shown = ", ".join(f"{label} {seconds / step_s:.0%}" for seconds, label in parts if seconds >= 0.005 * step_s)
        yield f"profile of {role} (trial {found['trial']:04d}, {CAVEAT}): {shown}"


def _shown(request: TuneRequest, fingerprint: str, trial: int) -> dict[str, Any] | None:
    """What a run showed, with where it comes from; None when it failed or was not made."""
    folder = profile_folder(request, fingerprint, trial)
    outcome = read_outcome(folder / "outcome.json")
    # A profiler disturbs a run by itself, so that it looks contaminated does not matter here.
    if outcome is None or outcome.state not in (TrialState.COMPLETE, TrialState.CONTAMINATED):
        return None
    try:
        shown = json.loads((folder / "profile.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return {"trial": trial, "fingerprint": fingerprint, "note": CAVEAT, **shown}
