"""The account of a study: what it has cost, what its next trial will, and whether that may and should be launched."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autotune.measure.ledger import TrialCost, cost_of, expected_gain, pays_back, predict_cost, refusal
from autotune.measure.outcome import TrialOutcome, TrialState
from autotune.request import TuneRequest

_LEARNING = 3.0
"""A sampler that learns finds so many times the gain that chance would; see ``expected_gain``."""

_ENOUGH_TO_JUDGE = 4
"""Completed trials before the gain to be expected is believed."""

_SECONDS_PER_HOUR = 3600.0


@dataclass(frozen=True)
class Account:
    """What is known before the next launch.

    Attributes:
        gpus: GPUs of every trial.
        spent_gpu_hours: Of all epochs and confirmations; trials that run are not in it.
        budget_gpu_hours: None = no limit.
        next_trial: What the next trial will cost; None before any has ended.
        confirmation_s: Wall time that confirming the finalists will take; 0.0 where nothing is known or asked.
        gain: Share of the best step time that one more trial is expected to save.
        pays: Whether that gain pays for the trial; True where nobody asked.
    """

    gpus: int
    spent_gpu_hours: float
    budget_gpu_hours: float | None
    next_trial: TrialCost | None
    confirmation_s: float
    gain: float
    pays: bool

    def refusal(self, *, running: int = 0, remaining_s: float | None = None) -> str | None:
        """Why the search must not launch another trial, in one line; None when it may.

        Half of what is left, at most, is kept for confirming the finalists.

        Args:
            running: Trials that run now; each is taken to cost what the next one will.
            remaining_s: Wall time left to the deadline or the allocation; None = no limit.
        """
        if not self.pays:
            return f"one more trial is expected to save {self.gain:.2%} of a step, which does not pay for it"
        each = self.next_trial.gpu_hours(self.gpus) if self.next_trial else 0.0
        spent, kept_s = self.spent_gpu_hours + running * each, self.confirmation_s
        if self.budget_gpu_hours is not None:
            left_s = max(0.0, self.budget_gpu_hours - spent) * _SECONDS_PER_HOUR / self.gpus
            spent += min(kept_s, left_s / 2.0) * self.gpus / _SECONDS_PER_HOUR
        if remaining_s is not None:
            remaining_s -= min(kept_s, max(0.0, remaining_s) / 2.0)
        return self._refusal(self.next_trial, spent, remaining_s, " beside what confirming takes" if kept_s else "")

    def refusal_of_run(self, steps: int, per_trial: int, *, remaining_s: float | None = None) -> str | None:
        """Why a confirming run must not be launched; None when it may.

        Args:
            steps: Its steps.
            per_trial: Steps of a trial of the search, from which its cost is known.
            remaining_s: As for :meth:`refusal`.
        """
        known = self.next_trial
        run = known and TrialCost(known.start_s, 0.0, known.steps_s * steps / per_trial)
        return self._refusal(run, self.spent_gpu_hours, remaining_s, "")

    def _refusal(self, cost: TrialCost | None, spent: float, remaining_s: float | None, kept: str) -> str | None:
        said = refusal(
            cost, self.gpus,
            spent_gpu_hours=spent, budget_gpu_hours=self.budget_gpu_hours, remaining_s=remaining_s,
        )  # fmt: skip
        return said and said + kept

    def to_dict(self) -> dict[str, Any]:
        """A JSON-able mapping, as ``autotune status --json`` prints it."""
        trial = self.next_trial
        return {
            "spent_gpu_hours": self.spent_gpu_hours,
            "budget_gpu_hours": self.budget_gpu_hours,
            "next_trial": trial
            and {
                "start_s": trial.start_s, "compile_s": trial.compile_s, "steps_s": trial.steps_s,
                "gpu_hours": trial.gpu_hours(self.gpus),
            },
            "confirmation_s": self.confirmation_s,
            "expected_gain": self.gain,
            "pays": self.pays,
        }  # fmt: skip


def account_of(request: TuneRequest, outcomes: Sequence[TrialOutcome], spent_gpu_hours: float) -> Account:
    """The account of a study as it stands.

    Args:
        request: Limits, gang and contract.
        outcomes: How the trials of the present epoch ended.
        spent_gpu_hours: What the study has spent so far, in all epochs and confirmations.
    """
    steps, effort, gpus = request.contract.steps, request.effort, request.gang.world_size
    launched = [outcome for outcome in outcomes if outcome.state.launched]
    past = [
        cost_of(outcome.startup_s, outcome.step_times_s, request.contract.warmup_steps, outcome.wall_s)
        for outcome in launched
    ]
    complete = [outcome for outcome in launched if outcome.state is TrialState.COMPLETE]
    fastest = sorted(outcome.step_time_s for outcome in complete if outcome.step_time_s is not None)
    trial = predict_cost(past)
    runs = min(effort.confirm.finalists, len(complete)) * effort.confirm.repeats
    gain = expected_gain(fastest)
    pays = True
    if effort.pays_back_after_steps is not None and trial is not None and len(fastest) >= _ENOUGH_TO_JUDGE:
        likely = min(1.0, _LEARNING * gain)
        pays = pays_back(likely, fastest[0], gpus, effort.pays_back_after_steps, trial.gpu_hours(gpus))
    return Account(
        gpus=gpus,
        spent_gpu_hours=spent_gpu_hours,
        budget_gpu_hours=effort.budget_gpu_hours,
        next_trial=trial,
        confirmation_s=runs * (trial.start_s + trial.steps_s * effort.confirm.steps / steps) if trial else 0.0,
        gain=gain,
        pays=pays,
    )


def remaining_s(now_s: float, stop_at_s: float | None, environment: Mapping[str, str]) -> float | None:
    """Wall time left to a deadline and to the allocation of a batch system; None = no limit.

    Args:
        now_s: Unix time.
        stop_at_s: The deadline as Unix time; None = there is none.
        environment: Where Slurm says when the job ends (``SLURM_JOB_END_TIME``, Unix time).
    """
    ends = [stop_at_s] if stop_at_s is not None else []
    said = environment.get("SLURM_JOB_END_TIME", "")
    if said.isascii() and said.isdigit():
        ends.append(float(said))
    return min(ends) - now_s if ends else None
