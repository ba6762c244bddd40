"""The study: what was tried, how it ended, and what to try next. Its storage is the source of truth of a run.

Every trial is told, whatever its end. Only COMPLETE ones carry values; what cannot run is told as Optuna's PRUNED with
a constraint above zero, from which the sampler learns to stay away. Optuna's FAIL, which samplers ignore, is kept for
ends that say nothing about the settings (LOST, CONTAMINATED); the same point is then queued again, a few times.

The baseline comes first, and alone: what is compared with it is launched when its end is known.
"""

import random
from collections.abc import Iterable, Iterator
from dataclasses import asdict, replace
from typing import Any

import optuna
from optuna.trial import FrozenTrial
from optuna.trial import TrialState as OptunaState

from autotune.constraint.probing import may_probe
from autotune.measure.account import Account, account_of
from autotune.measure.confirmation import confirmation_gpu_s
from autotune.measure.outcome import TrialOutcome, TrialState
from autotune.measure.outcome_file import read_outcome
from autotune.measure.profile import profile_gpu_s
from autotune.measure.settle import Reference, completed, settled
from autotune.measure.surroundings import Surroundings
from autotune.request import TuneRequest
from autotune.search.epochs import SURROUNDINGS, Epoch, epochs_of
from autotune.search.identity import check_identity
from autotune.search.proposal import Proposal, digest, probes, screen, untried, violations
from autotune.search.sampler import PointSampler, decode, distribution, encode
from autotune.search.storage import open_storage
from autotune.space.parameters import Point

DIRECTIONS = (optuna.study.StudyDirection.MAXIMIZE, optuna.study.StudyDirection.MINIMIZE)
"""Tokens per second per GPU up, peak memory down."""

_VIOLATION = "violation"  # the one constraint key: Optuna wants the same keys in every trial
_REFUSED_PER_LAUNCH = 3  # so many refusals teach the sampler; after them it draws again until a point is legal
_LEAST_VIOLATION = 1e-9


class Study:
    """One study, open. Only :meth:`tell` changes what is known; a second driver is kept out by a lock.

    Args:
        request: What to tune; the stored study must have been opened for the same thing.
        create: Whether to make the study when there is none; a reader does not.

    Raises:
        StudyError: the storage cannot be used, or holds a study of another request (the field is named).
    """

    def __init__(self, request: TuneRequest, *, create: bool = True) -> None:
        self._request = request
        self._surroundings: Surroundings | None = None
        self._masked: set[str] = set()
        self._random = random.Random(request.seed)  # noqa: S311 - no secret
        # What this epoch knows, kept in memory because the lock makes us the only writer.
        self._outcomes: dict[int, TrialOutcome] = {}
        self._baseline = request.settings(request.space.baseline)
        self._tried: dict[str, int] = {}
        self._running: dict[int, bool] = {}  # launched and not ended; whether it probes suspect rules
        self._open: dict[int, optuna.trial.Trial] = {}
        self._hosts: tuple[str, ...] = ()
        self._only_legal = False
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._study = optuna.create_study(
            storage=open_storage(request.storage_url, create=create),
            study_name=request.study,
            load_if_exists=True,
            directions=DIRECTIONS,
            sampler=PointSampler(
                request.space.parameters, request.seed, self._worth_a_trial, self._untried, self._in_epoch
            ),
        )
        check_identity(self._study, request)
        self._read(self._last_fingerprint())

    def enter(self, surroundings: Surroundings, hosts: Iterable[str] = ()) -> None:
        """Continue on these machines with this software.

        Trials that were running when the last driver died are settled: from their recorded outcome if they got that
        far, else they are queued again. A fingerprint that the study has not seen opens a new epoch, which begins
        with the baseline and one start for each further dispatcher.

        Args:
            surroundings: What preflight found.
            hosts: Where trials may run: a crash of a first sighting runs again on another of them.
        """
        self._surroundings = surroundings
        self._hosts = tuple(hosts)
        self._request = replace(self._request, pinned=surroundings.pinned)
        self._baseline = self._request.settings(self._request.space.baseline)
        self._study.set_user_attr(SURROUNDINGS + surroundings.fingerprint, asdict(surroundings))
        self._settle()
        self._read(surroundings.fingerprint)
        recorded = {
            str(outcome.settings["dispatcher"])
            for outcome in self.outcomes()
            if outcome.state is TrialState.UNAVAILABLE
        }
        self._masked = recorded & set(surroundings.unavailable)
        if not any(trial.user_attrs.get("fingerprint") == surroundings.fingerprint for trial in self._trials()):
            marks = {"fingerprint": surroundings.fingerprint}
            self._queue_first([(point, marks) for point in self._first_points(surroundings)])

    def next(self) -> Proposal | None:
        """The next point to launch; None when the space has nothing more that can run and was not tried.

        None while the baseline runs, too. Points that need no launch are answered on the way: refused by a rule,
        unavailable here, or known already.
        """
        if self._tried.get(digest(self._baseline)) in self._running:
            return None
        refused = 0
        while True:
            self._only_legal = refused >= _REFUSED_PER_LAUNCH
            proposal = self._ask()
            original = self._tried.setdefault(proposal.digest, proposal.trial)
            if original != proposal.trial:
                self._answer(proposal.trial, original)
                if not self._queued() and self._untried() is None:
                    return None
            elif (outcome := screen(self._request, proposal, self._here, self._probing())) is not None:
                self.tell(outcome)
                refused += outcome.state is TrialState.REFUSED
            else:
                self._running[proposal.trial] = bool(proposal.probes)
                return proposal

    def tell(self, outcome: TrialOutcome) -> None:
        """Record how a trial ended; telling it again changes nothing."""
        trial = self._open.pop(outcome.trial, None)
        if trial is None:
            return
        self._running.pop(outcome.trial, None)
        request = self._request
        reference = Reference(self._baseline, request.contract, request.program, request.gang.device)
        outcome = settled(outcome, self.outcomes(), reference, self._hosts)
        trial.set_user_attr("outcome", outcome.to_dict())
        self._outcomes[outcome.trial] = outcome
        if outcome.state is TrialState.UNAVAILABLE:
            self._masked.add(str(outcome.settings["dispatcher"]))
        self._close(trial, outcome)
        if outcome.runs_again:
            self._tried = {found: number for found, number in self._tried.items() if number != outcome.trial}
            point, marks = decode(self._request.space.parameters, trial.params), {"retry_of": outcome.trial}
            if outcome.settings == self._baseline:
                self._queue_first([(point, marks)])
            else:
                self._enqueue(point, marks)

    def outcomes(self) -> list[TrialOutcome]:
        """How the trials of the present epoch ended, in order; answered duplicates are not among them."""
        return [self._outcomes[number] for number in sorted(self._outcomes)]

    @property
    def baseline(self) -> TrialOutcome | None:
        """The baseline's measurement; None where it has not completed."""
        return completed(self.outcomes(), self._baseline)

    def launched(self) -> int:
        """Launched trials of the present epoch that count: ended, and not to be run again."""
        return sum(outcome.state.launched and not outcome.runs_again for outcome in self._outcomes.values())

    def account(self) -> Account:
        """What the study has cost, in all epochs, and what its next trial will."""
        ended = (trial.user_attrs["outcome"] for trial in self._trials() if "outcome" in trial.user_attrs)
        gpu_s = sum(float(outcome["gpu_s"]) for outcome in ended)
        gpu_s += confirmation_gpu_s(self._request) + profile_gpu_s(self._request)
        return account_of(self._request, self.outcomes(), gpu_s / 3600)

    def epochs(self) -> list[Epoch]:
        """The stacks on which trials have ended, the oldest first; nothing is ranked across them."""
        return epochs_of(self._study.user_attrs, self._trials())

    @property
    def surroundings(self) -> Surroundings | None:
        """Where the trials of :meth:`outcomes` ran; None before the first one."""
        if self._surroundings is not None:
            return self._surroundings
        raw = self._study.user_attrs.get(SURROUNDINGS + self._last_fingerprint())
        return Surroundings(**raw) if raw else None

    # -- asking ----------------------------------------------------------------------------------------------------

    def _ask(self) -> Proposal:
        trial = self._study.ask()
        self._open[trial.number] = trial
        trial.set_user_attr("fingerprint", self._here.fingerprint)
        codes: dict[str, Any] = {}
        for parameter in self._request.space.parameters:
            if parameter.active(decode(self._request.space.parameters, codes)):
                choices = distribution(parameter).choices
                codes[parameter.name] = trial.suggest_categorical(parameter.name, choices)
        point = decode(self._request.space.parameters, codes)
        settings = self._request.settings(point)
        proposal = Proposal(trial.number, point, settings, probes(self._request, settings, self._here.stack))
        trial.set_user_attr("digest", proposal.digest)
        return proposal

    def _worth_a_trial(self, point: Point) -> bool:
        settings = self._request.settings(point)
        if settings["dispatcher"] in self._masked or digest(settings) in self._tried:
            return False
        if self._request.probe_rules and probes(self._request, settings, self._here.stack):
            return self._probing()  # refused now, it would never be tried
        return not self._only_legal or not violations(self._request, settings, self._here.stack)

    def _in_epoch(self, trial: FrozenTrial) -> bool:
        return bool(trial.user_attrs.get("fingerprint") == self._here.fingerprint)

    def _untried(self) -> Point | None:
        return untried(self._request, self._here, self._tried, self._random, self._probing())

    def _probing(self) -> bool:
        """Whether the next launch may break suspect rules."""
        if not self._request.probe_rules:
            return False
        counted = [
            bool(probes(self._request, outcome.settings, self._here.stack))
            for outcome in self._outcomes.values()
            if outcome.state.launched and not outcome.runs_again
        ]
        launches = [*counted, *self._running.values()]
        return may_probe(self._request.probe_rules, len(launches), sum(launches))

    def _queued(self) -> bool:
        return bool(self._study.get_trials(deepcopy=False, states=(OptunaState.WAITING,)))

    def _answer(self, number: int, original: int) -> None:
        """Tell a point that was proposed before what is known of it, or nothing while the original still runs."""
        trial = self._open.pop(number)
        trial.set_user_attr("duplicate_of", original)
        outcome = self._outcomes.get(original)
        if outcome is None:
            self._study.tell(number, state=OptunaState.FAIL)
        else:
            self._close(trial, outcome)

    def _close(self, trial: optuna.trial.Trial, outcome: TrialOutcome) -> None:
        if outcome.state.runs_again:
            self._study.tell(trial.number, state=OptunaState.FAIL)
            return
        trial.set_constraint(_VIOLATION, self._violation(outcome))
        if outcome.state is TrialState.COMPLETE:
            assert outcome.tokens_per_s_per_gpu is not None
            assert outcome.peak_memory_bytes is not None
            self._study.tell(trial.number, [outcome.tokens_per_s_per_gpu, float(outcome.peak_memory_bytes)])
        else:
            self._study.tell(trial.number, state=OptunaState.PRUNED)

    def _violation(self, outcome: TrialOutcome) -> float:
        """How far outside the feasible region, <= 0 inside: GiB over the memory limit for a trial that completed."""
        if outcome.state is not TrialState.COMPLETE:
            return max(outcome.violation, _LEAST_VIOLATION)
        limit, peak = self._request.memory_limit_bytes, outcome.peak_memory_bytes
        return -1.0 if limit is None or peak is None else (peak - limit) / 2**30

    # -- starting points and resuming ------------------------------------------------------------------------------

    def _first_points(self, surroundings: Surroundings) -> Iterator[Point]:
        """Baseline and seeds; of an unavailable dispatcher only the first seed, which records why."""
        seen: set[str] = set()
        for point in (self._request.space.baseline, *self._request.space.seeds):
            backend = str(self._request.settings(point)["dispatcher"])
            if backend in surroundings.unavailable and backend in seen:
                continue
            seen.add(backend)
            yield point

    def _settle(self) -> None:
        """Give every trial that was running when the last driver died an end."""
        lost: list[tuple[Point, dict[str, Any]]] = []
        for trial in self._study.get_trials(deepcopy=False, states=(OptunaState.RUNNING,)):
            recorded = self._request.trial_folder(trial.number) / "outcome.json"
            outcome = read_outcome(recorded)
            if outcome is None:
                self._study.tell(trial.number, state=OptunaState.FAIL)
                if trial.params:
                    marks = {name: trial.user_attrs[name] for name in ("fingerprint",) if name in trial.user_attrs}
                    point = decode(self._request.space.parameters, trial.params)
                    lost.append((point, {**marks, "retry_of": trial.number}))
            else:
                self._read(str(trial.user_attrs.get("fingerprint", "")))  # it is judged beside those of its own epoch
                self._open[trial.number] = optuna.trial.Trial(self._study, trial._trial_id)
                self.tell(outcome)
        if lost:
            self._queue_first(lost)

    def _queue_first(self, points: list[tuple[Point, dict[str, Any]]]) -> None:
        """Queue points before those that wait: a lost baseline still comes before what is compared with it.

        Optuna's queue only grows at its end, so what waits is taken out and queued again.
        """
        waiting = []
        while self._queued():
            trial = self._study.ask()
            queued = trial.storage.get_trial(trial._trial_id).system_attrs["fixed_params"]
            waiting.append((decode(self._request.space.parameters, queued), dict(trial.user_attrs)))
            self._study.tell(trial.number, state=OptunaState.FAIL)
        for point, marks in [*points, *waiting]:
            self._enqueue(point, marks)

    def _enqueue(self, point: Point, marks: dict[str, Any]) -> None:
        self._study.enqueue_trial(encode(point), user_attrs=marks)

    # -- reading ---------------------------------------------------------------------------------------------------

    @property
    def _here(self) -> Surroundings:
        assert self._surroundings is not None, "enter() comes first"
        return self._surroundings

    def _trials(self) -> list[FrozenTrial]:
        return self._study.get_trials(deepcopy=False)

    def _last_fingerprint(self) -> str:
        found = [trial.user_attrs["fingerprint"] for trial in self._trials() if "outcome" in trial.user_attrs]
        return str(found[-1]) if found else ""

    def _read(self, fingerprint: str) -> None:
        """Take what the storage knows of an epoch into memory."""
        self._outcomes, self._tried = {}, {}
        for trial in self._trials():
            raw = trial.user_attrs.get("outcome")
            if raw is None or trial.user_attrs["fingerprint"] != fingerprint:
                continue
            outcome = TrialOutcome.from_dict(raw)
            self._outcomes[trial.number] = outcome
            if not outcome.runs_again:
                self._tried.setdefault(trial.user_attrs["digest"], trial.number)
