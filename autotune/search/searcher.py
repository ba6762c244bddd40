"""The study as Ray Tune wants it: suggest a configuration, take its result."""

import json
import os
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from ray.tune.search import Searcher

from autotune.errors import RunError
from autotune.files import write_atomically
from autotune.measure.account import remaining_s
from autotune.measure.outcome import TrialOutcome, TrialState
from autotune.measure.settle import hosts_to_avoid
from autotune.measure.surroundings import Surroundings
from autotune.request import TuneRequest
from autotune.search.proposal import Proposal, digest
from autotune.search.study import Study

_MOST_LOST = 3  # different points; more is the cluster's fault, and would burn its hours


class StudySearcher(Searcher):
    """Hands the study's proposals to Tune as trial specifications, and Tune's results back to the study.

    Tune's own snapshots of it are empty on purpose: a restart builds a new one on the same study.

    Attributes:
        exhausted: Whether the space had no further point.
        stopped: Why no further trial was launched though the study wanted one: budget, wall time, no expected gain.
        problem: Why the run cannot go on: a failure outside the gang, or too many points in a row that were lost.

    Args:
        study: The study, entered.
        request: What is tuned.
        surroundings: Where it runs.
        on_launch: Called with every proposal that is handed to Tune.
        on_end: Called with every outcome, launched or not.
        clock: Unix time, for the deadline of the run.
        stop_at_s: The deadline as Unix time; None = there is none.
    """

    def __init__(
        self,
        study: Study,
        request: TuneRequest,
        surroundings: Surroundings,
        *,
        on_launch: Callable[[Proposal], None] = lambda _: None,
        on_end: Callable[[TrialOutcome], None] = lambda _: None,
        clock: Callable[[], float] = time.time,
        stop_at_s: float | None = None,
    ) -> None:
        super().__init__(metric=None, mode=None)
        self._study = study
        self._request = request
        self._surroundings = surroundings
        self._on_launch = on_launch
        self._on_end = on_end
        self._clock = clock
        self._stop_at_s = stop_at_s
        self._running: dict[str, Proposal] = {}
        self._reported = {outcome.trial for outcome in study.outcomes()}
        self._recorded: dict[int, TrialOutcome] = {}
        self._lost: dict[str, TrialOutcome] = {}  # since the last trial that was not, by point
        self.exhausted = False
        self.stopped: str | None = None
        self.problem: RunError | None = None
        self._record_settled()

    def suggest(self, trial_id: str) -> Any:
        """The configuration of the next Tune trial, or FINISHED when the budget or the space is used up."""
        enough = self._study.launched() + len(self._running) >= self._request.trials
        self.stopped = None if enough or self.problem else self._refusal()
        if enough or self.stopped or self.problem:
            # While trials run, one of them may be lost and have to be launched again, or cost less than predicted.
            return None if self._running else Searcher.FINISHED
        proposal = self._study.next()
        self._report_new()
        if proposal is None:
            self.exhausted = not self._running
            return None if self._running else Searcher.FINISHED
        self._running[trial_id] = proposal
        folder = self._request.trial_folder(proposal.trial)
        folder.mkdir(parents=True, exist_ok=True)
        self._on_launch(proposal)
        return {
            "spec": asdict(self._request.spec(proposal.trial, proposal.point)),
            "trial_dir": str(folder),
            "fingerprint": self._surroundings.fingerprint,
            "avoid_hosts": hosts_to_avoid(self._study.outcomes(), proposal.settings),
        }

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        """Tell the study how a Tune trial ended; one without an outcome was lost with its node or its worker."""
        proposal = self._running.pop(trial_id, None)
        if proposal is None:
            return
        if result and "outcome" in result and not error:
            outcome = TrialOutcome.from_dict(json.loads(result["outcome"]))
        else:
            failure = (result or {}).get("failure")
            if failure:
                self.problem = RunError(failure, hint=(result or {}).get("hint"))
            reason = failure.strip().splitlines()[-1] if failure else "the trial's worker died with its outcome"
            outcome = TrialOutcome(proposal.trial, TrialState.LOST, proposal.settings, reason=reason)
        if outcome.state is not TrialState.LOST:
            self._lost.clear()
        elif outcome.cause != "sick_node":  # that one is in quarantine, and the others are well
            self._lost[digest(outcome.settings)] = outcome
        if len(self._lost) >= _MOST_LOST and self.problem is None:
            hosts = sorted({host for lost in self._lost.values() for host in lost.hosts})
            self.problem = RunError(
                f"{len(self._lost)} different points in a row were lost (on {', '.join(hosts) or 'unknown hosts'}), "
                f"the last one because {outcome.reason}",
                hint="the study keeps what had finished; look at the nodes in the Ray dashboard",
            )
        self._study.tell(outcome)
        self._report_new()

    def save(self, checkpoint_path: str) -> None:
        """Nothing: the study's storage has everything."""

    def restore(self, checkpoint_path: str) -> None:
        """Nothing: see :meth:`save`."""

    def __getstate__(self) -> dict[str, Any]:
        # Tune pickles its configuration for its own restore, which is not used here.
        return {}

    def _refusal(self) -> str | None:
        left_s = remaining_s(self._clock(), self._stop_at_s, os.environ)
        return self._study.account().refusal(running=len(self._running), remaining_s=left_s)

    def _report_new(self) -> None:
        for outcome in self._study.outcomes():
            if outcome.trial not in self._reported:
                self._reported.add(outcome.trial)
                self._on_end(outcome)
        self._record_settled()

    def _record_settled(self) -> None:
        """What the study made of outcomes, into the trials' records: a gang's own word is judged beside the others'."""
        for outcome in self._study.outcomes():
            if self._recorded.get(outcome.trial) == outcome:
                continue
            self._recorded[outcome.trial] = outcome
            path = self._request.trial_folder(outcome.trial) / "outcome.json"
            text = json.dumps(outcome.to_dict(), indent=1).encode()
            if path.exists() and path.read_bytes() != text:
                write_atomically(path, text)
