"""The run, top to bottom.

    request -> preflight -> (ask -> launch -> judge -> tell)* -> front -> winner -> policy

Ray Tune turns the loop in the middle; what it hands on is in ``search/searcher.py`` and ``scheduling/trainable.py``.
"""

import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from autotune.errors import ClusterError, RequestError, RunError
from autotune.export.result import Result, conclude
from autotune.files import write_atomically
from autotune.measure.surroundings import Surroundings
from autotune.monitor.progress import Progress
from autotune.request import TuneRequest
from autotune.scheduling.environment import prepare
from autotune.search.proposal import Proposal, require_legal_baseline
from autotune.search.storage import StudyLock, storage_errors
from autotune.search.study import Study
from autotune_trials.probe import MODULE_PREFIX


def tune(request: TuneRequest, *, address: str, progress: Progress) -> Result:
    """Run a study until its budget is used, and write its result; a finished study only writes it again.

    Raises:
        StudyError: the stored study is of another request, or another process runs it.
        ClusterError: the machines cannot run it.
        RunError: it was interrupted; what had finished is kept.
    """
    began_s = time.monotonic()
    require_legal_baseline(request)
    with _leaving_no_empty_study(request), StudyLock(request.folder), storage_errors():
        study = Study(request)
        write_atomically(request.folder / "request.yaml", request.to_yaml().encode())
        progress.done(study.launched())
        if study.launched() < request.trials:
            with _interruptible(request):
                _run_trials(request, study, address, progress)
        return conclude(request, study.outcomes(), study.surroundings, wall_s=time.monotonic() - began_s)


def _run_trials(request: TuneRequest, study: Study, address: str, progress: Progress) -> None:
    prepare()
    from ray import tune as ray_tune

    from autotune.scheduling.preflight import preflight_ray
    from autotune.scheduling.session import ray_session
    from autotune.scheduling.trainable import placement, run_trial
    from autotune.search.searcher import StudySearcher

    with ray_session(request, address) as session, tempfile.TemporaryDirectory(prefix="autotune-") as scratch:
        signal.signal(signal.SIGTERM, _interrupt)  # Ray has put a handler of its own there
        progress.say(f"ray dashboard: {session.dashboard_url or 'not running'}")
        surroundings = preflight_ray(request, session.node_ids)
        _require_recipe(request, surroundings)
        for backend, reason in surroundings.unavailable.items():
            progress.say(f"preflight: {backend} is unavailable: {reason}")
        request = replace(request, pinned=surroundings.pinned)
        _require_baseline(request, surroundings)
        require_legal_baseline(request, surroundings.stack)
        study.enter(surroundings)
        searcher = StudySearcher(
            study, request, surroundings,
            on_launch=partial(_announce, progress), on_end=progress.ended,
        )  # fmt: skip
        ray_tune.Tuner(
            ray_tune.with_resources(run_trial, placement),
            tune_config=ray_tune.TuneConfig(
                search_alg=searcher, num_samples=-1, max_concurrent_trials=session.concurrency, reuse_actors=True
            ),
            # Tune's own record is disposable: the study and the trial folders have everything.
            run_config=ray_tune.RunConfig(name=request.study, storage_path=scratch, verbose=0),
        ).fit()
        if searcher.problem:
            raise searcher.problem
        if searcher.exhausted:
            progress.say("the space has no further point that can run here")


def _announce(progress: Progress, proposal: Proposal) -> None:
    progress.launched(proposal.trial, proposal.settings)
    if proposal.probes:
        progress.say(f"trial {proposal.trial:04d} breaks suspect rules to find out: {', '.join(proposal.probes)}")


def _require_recipe(request: TuneRequest, surroundings: Surroundings) -> None:
    """A bridge trial imports its recipe and its training loop on every rank."""
    for name in request.recipe.modules if request.recipe is not None else ():
        reason = surroundings.unavailable.get(f"{MODULE_PREFIX}{name}")
        if reason is not None:
            raise ClusterError(
                f"the recipe cannot run here: {name} cannot be imported: {reason}",
                hint="install megatron-bridge, and the recipe's own package, on every node",
            )


def _require_baseline(request: TuneRequest, surroundings: Surroundings) -> None:
    """Everything is compared with the baseline, so nothing can be tuned without it."""
    dispatcher = str(request.settings(request.space.baseline)["dispatcher"])
    if dispatcher in surroundings.unavailable:
        raise ClusterError(
            f"the baseline's dispatcher {dispatcher} cannot run here: {surroundings.unavailable[dispatcher]}",
            hint="pip install 'moe-autotune[trial]' on every node",
        )


@contextmanager
def _leaving_no_empty_study(request: TuneRequest) -> Iterator[None]:
    """A request that is refused leaves no study behind."""
    existed = request.folder.exists()
    try:
        yield
    except (ClusterError, RequestError):
        if not existed:
            shutil.rmtree(request.folder, ignore_errors=True)
        raise


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
