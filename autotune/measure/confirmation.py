"""Finalists measured again in turns: what was run, what is still to be run, and what the runs say.

The runs of one set of finalists on one stack have a folder of their own, ``confirm/<fingerprint>/<trials>/<run>``, so
that a resumed study runs only what is missing, and another set of finalists begins anew: runs are comparable because
they took turns.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp, fsum, log
from pathlib import Path
from statistics import median

from autotune.measure.confirm import Objection, TieSet, confirmation_schedule, tie_set
from autotune.measure.dependence import student_quantile
from autotune.measure.objective import tokens_per_s_per_gpu
from autotune.measure.outcome import TrialOutcome, TrialState
from autotune.measure.outcome_file import read_outcome
from autotune.measure.settle import Reference, against_baseline
from autotune.measure.steady import FEWEST_STEPS
from autotune.measure.stopping import MIN_STEPS, enough
from autotune.request import TuneRequest
from autotune.space.effort import ConfirmPlan
from autotune_trials.spec import Contract, GangShape

FOLDER = "confirm"

_MOST_ROUNDS = 2
"""Rounds at most, as a multiple of the planned ones."""

_USELESS_WIDTH = 0.4
"""Half the width of a ratio's interval, in logarithms, at which the runs say nothing."""


@dataclass(frozen=True)
class NextRun:
    """One run to be made.

    Attributes:
        index: Its place in the order of all runs, from 0.
        trial: Whose settings it runs.
        steps: Optimizer steps, warm-up included.
    """

    index: int
    trial: int
    steps: int


@dataclass(frozen=True)
class Confirmation:
    """What repeated runs say of the finalists.

    Attributes:
        finalists: Trial numbers, fastest in the search first.
        runs: Per finalist that held, its completed runs in the order of the rounds.
        dropped: Per finalist that did not, why.
        tied: Winner or tie set; None when no finalist held, or no round is complete.
        missing: Whether runs of the plan are still to be made.
    """

    finalists: tuple[int, ...]
    runs: Mapping[int, tuple[TrialOutcome, ...]]
    dropped: Mapping[int, str]
    tied: TieSet | None
    missing: bool

    @property
    def repeats(self) -> int:
        """Complete rounds."""
        return min((len(of) for of in self.runs.values()), default=0)

    @property
    def members(self) -> tuple[int, ...]:
        """Trials that may be the fastest, fastest first; a single one is the winner."""
        return tuple(int(name) for name in self.tied.members) if self.tied else ()

    @property
    def chosen(self) -> int | None:
        """The trial to take: the winner, or the member of the tie set that ``TieSet.chosen`` names."""
        return int(self.tied.chosen) if self.tied else None

    def peak_memory_bytes(self, trial: int) -> int | None:
        """The most that any run of a finalist needed."""
        known = [outcome.peak_memory_bytes for outcome in self.runs[trial] if outcome.peak_memory_bytes is not None]
        return max(known, default=None)

    def step_time_s(self, trial: int) -> float:
        """Geometric mean of the runs' median steady steps, in seconds."""
        return exp(fsum(map(log, self.run_medians_s(trial))) / len(self.runs[trial]))

    def mean_step_time_s(self, trial: int) -> float:
        """Geometric mean of the runs' mean steps after warm-up, pauses included, in seconds."""
        assert self.tied is not None
        return self.tied.mean_step_time_s[str(trial)]

    @property
    def objections(self) -> tuple[Objection, ...]:
        """Why members of the tie set are no losers though their medians are slower beyond chance."""
        return self.tied.objections if self.tied else ()

    def run_medians_s(self, trial: int) -> list[float]:
        """Median steady step of each run, in seconds."""
        return [median(outcome.counted_step_times_s) for outcome in self.runs[trial]]

    def ci95(self, trial: int) -> tuple[float, float]:
        """95 % interval of a finalist's step time in seconds: from the scatter between runs, of all finalists."""
        assert self.tied is not None
        half = student_quantile(0.975, self.tied.degrees) * self.tied.between_runs / len(self.runs[trial]) ** 0.5
        return self.step_time_s(trial) * exp(-half), self.step_time_s(trial) * exp(half)


def confirmation_folder(request: TuneRequest, fingerprint: str, finalists: Sequence[int]) -> Path:
    """Where the runs of a set of finalists on one stack are kept."""
    return request.folder / FOLDER / fingerprint / "-".join(f"{trial:04d}" for trial in finalists)


def recorded_runs(folder: Path) -> dict[int, TrialOutcome]:
    """The runs that have ended and say something, by place in the order; a damaged record counts as none."""
    ended = {path.parent.name: read_outcome(path) for path in sorted(folder.glob("[0-9]*/outcome.json"))}
    return {
        int(place): outcome
        for place, outcome in ended.items()
        if place.isdecimal() and outcome is not None and not outcome.state.runs_again
    }


def confirmation_gpu_s(request: TuneRequest) -> float:
    """GPU-seconds that all confirmations of a study have spent, with the runs that were lost, disturbed or dropped."""
    ended = map(read_outcome, sorted((request.folder / FOLDER).glob("*/*/*/outcome.json")))
    return fsum(outcome.gpu_s for outcome in ended if outcome is not None)


def next_run(plan: ConfirmPlan, finalists: Sequence[int], runs: Mapping[int, TrialOutcome]) -> NextRun | None:
    """The next run of the plan; None when all are made. A finalist that failed once is not run again.

    A round takes as many steps as the one before it, or twice as many where a run's interval was not tight enough yet.
    Beyond the planned rounds there are further ones, as many again at most, while an interval is too wide to be of use.
    """
    order = _order(finalists, _MOST_ROUNDS * plan.repeats)
    failed = {runs[index].trial for index in runs if runs[index].state is not TrialState.COMPLETE}
    for index, trial in enumerate(order):
        planned, new_round = index < len(finalists) * plan.repeats, index % len(finalists) == 0
        if not planned and new_round and not _too_wide(_without_plan(plan, finalists, runs, None)):
            return None
        if index not in runs and trial not in failed:
            return NextRun(index, trial, _steps(plan, len(finalists), index // len(finalists), runs))
    return None


def confirmation_of(
    plan: ConfirmPlan,
    finalists: Sequence[int],
    runs: Mapping[int, TrialOutcome],
    *,
    limit_bytes: int | None = None,
) -> Confirmation:
    """What the runs say; rounds that are not complete are left out.

    Args:
        plan: How finalists are measured again.
        finalists: Trial numbers, fastest in the search first.
        runs: The runs that have ended, by place in the order.
        limit_bytes: Peak memory that no run may exceed; None = no limit.
    """
    found = _without_plan(plan, finalists, runs, limit_bytes)
    return replace(found, missing=next_run(plan, finalists, runs) is not None)


def _without_plan(
    plan: ConfirmPlan,
    finalists: Sequence[int],
    runs: Mapping[int, TrialOutcome],
    limit_bytes: int | None,
) -> Confirmation:
    """What the runs say, whatever is still to come."""
    order = _order(finalists, _MOST_ROUNDS * plan.repeats)
    ended = {index: runs[index] for index in range(len(order)) if index in runs}
    dropped = {
        outcome.trial: f"{outcome.state.value}: {outcome.reason}"
        for outcome in reversed(ended.values())
        if outcome.state is not TrialState.COMPLETE
    }
    for outcome in ended.values():
        if limit_bytes is not None and (outcome.peak_memory_bytes or 0) > limit_bytes:
            said = f"{outcome.peak_memory_bytes} bytes are over the limit of {limit_bytes}"
            dropped.setdefault(outcome.trial, said)
    held = [trial for trial in finalists if trial not in dropped]
    by_trial: dict[int, list[TrialOutcome]] = {trial: [] for trial in held}
    for outcome in ended.values():
        if outcome.trial in by_trial:
            by_trial[outcome.trial].append(outcome)
    rounds = min((len(of) for of in by_trial.values()), default=0)
    complete = {trial: tuple(of[:rounds]) for trial, of in by_trial.items()} if rounds else {}
    found = Confirmation(tuple(finalists), complete, dropped, None, missing=False)
    if not complete:
        return found
    peaks = {str(trial): found.peak_memory_bytes(trial) for trial in complete}
    series = {str(trial): [outcome.measured_step_times_s for outcome in of] for trial, of in complete.items()}
    return replace(found, tied=tie_set(series, peaks))


def in_parity(
    request: TuneRequest, outcome: TrialOutcome, runs: Iterable[TrialOutcome], baseline: TrialOutcome | None
) -> TrialOutcome:
    """A run as INFEASIBLE where it trained to other numbers than the baseline; any other unchanged.

    It is compared with a run of the baseline that is as long, among those of the confirmation or in the search. The
    native program trains alike however long the run is, so there the search's run will do for the steps that it has; a
    recipe's learning rate may depend on the number of steps.

    Args:
        request: What is tuned.
        outcome: How the run ended.
        runs: The runs of the confirmation before it.
        baseline: The baseline's run in the search; None where it did not complete.
    """
    if baseline is None:
        return outcome
    known = [*runs, baseline]
    as_long = [other for other in known if len(other.losses) == len(outcome.losses)]
    references = [*as_long, *(known if request.program == "native" else ())]
    reference = Reference(baseline.settings, request.contract, request.program, request.gang.device)
    return against_baseline(outcome, references, reference)


def with_confirmed_numbers(
    outcome: TrialOutcome, found: Confirmation, contract: Contract, gang: GangShape
) -> TrialOutcome:
    """A finalist with the numbers of its repeated runs instead of the one run of the search, which won by luck too."""
    step_time_s = found.step_time_s(outcome.trial)
    return replace(
        outcome,
        step_time_s=step_time_s,
        tokens_per_s_per_gpu=tokens_per_s_per_gpu(
            contract.global_batch_size * contract.seq_length, step_time_s, gang.world_size
        ),
        peak_memory_bytes=max(found.peak_memory_bytes(outcome.trial) or 0, outcome.peak_memory_bytes or 0),
    )


def _order(finalists: Sequence[int], repeats: int) -> list[int]:
    return [int(name) for name in confirmation_schedule([str(trial) for trial in finalists], repeats)]


def _steps(plan: ConfirmPlan, width: int, turn: int, runs: Mapping[int, TrialOutcome]) -> int:
    steps = plan.steps
    for previous in range(turn):
        places = range(previous * width, (previous + 1) * width)
        ended = [runs[index].measured_step_times_s for index in places if index in runs]
        known = [series for series in ended if len(series) >= FEWEST_STEPS]
        if not all(_tight(plan, series) for series in known):
            steps = min(2 * steps, plan.most_steps)
    return steps


def _too_wide(found: Confirmation) -> bool:
    """Looks at the width only, never at who leads."""
    ratios = found.tied.ci95.values() if found.tied else ()
    return any(log(high / low) / 2.0 > _USELESS_WIDTH for low, high in ratios)


def _tight(plan: ConfirmPlan, series: Sequence[float]) -> bool:
    return enough(series, min_steps=min(MIN_STEPS, plan.most_steps), max_steps=max(plan.most_steps, FEWEST_STEPS))
