"""The run, top to bottom.

    request -> preflight -> (ask -> launch -> judge -> tell)* -> finalists again -> winner -> profiled -> policy

Ray Tune turns the loop in the middle; what it hands on is in ``search/searcher.py`` and ``scheduling/trainable.py``.
"""

import os
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from autotune.errors import ClusterError, RunError
from autotune.export.confirmed import finalists_of, missing_run
from autotune.export.result import Result, conclude, profiled_trials
from autotune.files import write_atomically
from autotune.measure.account import remaining_s
from autotune.measure.outcome import TrialOutcome, TrialState
from autotune.measure.profile import CAVEAT, is_made, is_profiled, profile_folder
from autotune.measure.surroundings import Surroundings
from autotune.monitor.progress import Progress
from autotune.request import TuneRequest
from autotune.scheduling.environment import prepare
from autotune.search.epochs import Epoch, difference
from autotune.search.proposal import Proposal, require_legal_baseline, require_runnable
from autotune.search.storage import StudyLock, leaving_no_empty_study, storage_errors
from autotune.search.study import Study

if TYPE_CHECKING:
    from autotune.scheduling.session import Session


def tune(request: TuneRequest, *, address: str, progress: Progress) -> Result:
    """Run a study until its budget is used, and write its result; a finished study only writes it again.

    Raises:
        StudyError: the stored study is of another request, or another process runs it.
        ClusterError: the machines cannot run it.
        RunError: it was interrupted; what had finished is kept.
    """
    began_s = time.monotonic()
    stop_at_s = None if request.deadline_s is None else time.time() + request.deadline_s
    require_legal_baseline(request)
    with leaving_no_empty_study(request.folder), StudyLock(request.folder), storage_errors():
        study = Study(request)
        write_atomically(request.folder / "request.yaml", request.to_yaml().encode())
        progress.done(study.launched(), study.outcomes())
        searching = study.launched() < request.trials
        stopped = study.account().refusal() if searching else None
        stacks = len(study.epochs())  # of several, nothing but a look says which one is here
        if (searching and stopped is None) or _runs_missing(request, study) or stacks > 1:
            with _interruptible(request):
                stopped = _run_trials(request, study, address, progress, stop_at_s)
        elif study.surroundings is not None:
            progress.say(f"measured on stack {study.surroundings.fingerprint}, which was not probed again")
        if stopped is not None:
            progress.say(f"no further trial: {stopped}")
        return conclude(
            request, study.outcomes(), study.surroundings,
            wall_s=time.monotonic() - began_s, spent_gpu_hours=study.account().spent_gpu_hours, stopped=stopped,
        )  # fmt: skip


@dataclass(frozen=True)
class _Run:
    """A study at work: what every part of the run needs."""

    request: TuneRequest
    study: Study
    surroundings: Surroundings
    progress: Progress
    stop_at_s: float | None

    def refusal(self, steps: int) -> str | None:
        """Why a run of so many steps must not be launched any more; None when it may."""
        left_s = remaining_s(time.time(), self.stop_at_s, os.environ)
        return self.study.account().refusal_of_run(steps, self.request.contract.steps, remaining_s=left_s)


def _run_trials(
    request: TuneRequest, study: Study, address: str, progress: Progress, stop_at_s: float | None
) -> str | None:
    """Search, then confirm and profile; returns why the search stopped early, if it did."""
    prepare()
    from autotune.scheduling.preflight import preflight_ray
    from autotune.scheduling.session import ray_session

    with ray_session(request, address) as session:
        signal.signal(signal.SIGTERM, _interrupt)  # Ray has put a handler of its own there
        progress.say(f"ray dashboard: {session.dashboard_url or 'not running'}")
        surroundings = preflight_ray(request, session.node_ids)
        for backend, reason in surroundings.unavailable.items():
            progress.say(f"preflight: {backend} is unavailable: {reason}")
        run = _Run(replace(request, pinned=surroundings.pinned), study, surroundings, progress, stop_at_s)
        require_runnable(run.request, surroundings)
        _enter(run, session)
        stopped = _search(run, session) if study.launched() < request.trials else None
        _confirm(run)
        _profile(run)
    return stopped


def _enter(run: _Run, session: "Session") -> None:
    before, here = run.study.epochs(), run.surroundings
    known = {epoch.fingerprint for epoch in before}
    run.study.enter(here, session.hosts)
    run.progress.done(run.study.launched(), run.study.outcomes())
    if before and before[-1].fingerprint != here.fingerprint:
        changed = difference(before[-1], Epoch(here.fingerprint, here.stack, {}))
        what = "back on an earlier stack, whose epoch goes on" if here.fingerprint in known else "a new epoch"
        run.progress.say(f"{what}; nothing is compared with the trials of another stack: {changed}")


def _search(run: _Run, session: "Session") -> str | None:
    """Launch trials until one more is refused; returns why it stopped early, if it did."""
    from ray import tune as ray_tune

    from autotune.scheduling.trainable import placement, run_trial
    from autotune.search.searcher import StudySearcher

    searcher = StudySearcher(
        run.study, run.request, run.surroundings,
        on_launch=partial(_announce, run.progress), on_end=run.progress.ended, stop_at_s=run.stop_at_s,
    )  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="autotune-") as scratch:
        ray_tune.Tuner(
            ray_tune.with_resources(run_trial, placement),
            tune_config=ray_tune.TuneConfig(
                search_alg=searcher, num_samples=-1, max_concurrent_trials=session.concurrency, reuse_actors=True
            ),
            # Tune's own record is disposable: the study and the trial folders have everything.
            run_config=ray_tune.RunConfig(name=run.request.study, storage_path=scratch, verbose=0),
        ).fit()
    if searcher.problem:
        raise searcher.problem
    if searcher.exhausted:
        run.progress.say("the space has no further point that can run here")
    return searcher.stopped


def _confirm(run: _Run) -> None:
    """Run the finalists again; where that cannot be finished the search's own numbers stand, and say so."""
    from autotune.scheduling.confirm import confirm

    finalists = {outcome.trial: outcome for outcome in finalists_of(run.request, run.study.outcomes())}
    if missing_run(run.request, run.study.outcomes(), run.surroundings) is None:
        return
    trials = ", ".join(f"{trial:04d}" for trial in finalists)
    run.progress.say(f"confirming trials {trials}: {run.request.effort.confirm.repeats} runs each, in turns")
    try:
        stopped = confirm(
            run.request, finalists, run.surroundings.fingerprint,
            baseline=run.study.baseline, refusal=run.refusal, on_end=run.progress.repeated,
        )  # fmt: skip
    except (ClusterError, RunError) as error:
        stopped = error.message
    if stopped:
        run.progress.say(f"confirmation stopped: {stopped}")


def _profile(run: _Run) -> None:
    """Run baseline and winner once more under a profiler; the result stands without it."""
    from autotune.scheduling.profile import profile

    subjects = _profiles_missing(run.request, run.study, run.surroundings)
    if not subjects:
        return

    def ended(outcome: TrialOutcome) -> None:
        if outcome.state is not TrialState.COMPLETE:
            run.progress.say(f"profiled run of trial {outcome.trial:04d}: {outcome.state} {outcome.reason}")

    run.progress.say(f"profiling baseline and winner ({CAVEAT})")
    try:
        stopped = profile(run.request, subjects, run.surroundings.fingerprint, refusal=run.refusal, on_end=ended)
    except ClusterError as error:
        stopped = error.message
    if stopped:
        run.progress.say(f"profiling stopped: {stopped}")


def _runs_missing(request: TuneRequest, study: Study) -> bool:
    """Whether finalists are still to be run again, or profiled, and the budget has room for it."""
    if study.surroundings is None:
        return False
    run = missing_run(request, study.outcomes(), study.surroundings)
    steps = [] if run is None else [run.steps]
    steps += [request.contract.steps] if _profiles_missing(request, study, study.surroundings) else []
    return any(study.account().refusal_of_run(each, request.contract.steps) is None for each in steps)


def _profiles_missing(request: TuneRequest, study: Study, surroundings: Surroundings) -> dict[str, TrialOutcome]:
    """All trials to be profiled, by role; empty where none of them is still to be run."""
    subjects = profiled_trials(request, study.outcomes(), surroundings) if is_profiled(request) else {}
    folders = [profile_folder(request, surroundings.fingerprint, subject.trial) for subject in subjects.values()]
    return {} if all(map(is_made, folders)) else subjects


def _announce(progress: Progress, proposal: Proposal) -> None:
    progress.launched(proposal.trial, proposal.settings)
    if proposal.probes:
        progress.say(f"trial {proposal.trial:04d} breaks suspect rules to find out: {', '.join(proposal.probes)}")


def _interrupt(*_: Any) -> None:
    raise KeyboardInterrupt


@contextmanager
def _interruptible(request: TuneRequest) -> Iterator[None]:
    """Ctrl-C and SIGTERM end the run in one line; leaving the Ray session has ended the gang by then."""
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        yield
    except KeyboardInterrupt as error:
        raise RunError(
            f"interrupted; study {request.study!r} keeps what had finished", hint="the same command goes on from there"
        ) from error
    finally:
        signal.signal(signal.SIGTERM, before)
