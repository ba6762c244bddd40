"""What a study makes of an outcome that it cannot see from one run alone: pure functions of the study's outcomes.

A crash or a hang counts against the settings only when it was seen on other nodes too, where there are others. What
says nothing of the settings runs again, but not for ever. And a run that finished is complete only if it trained to the
baseline's numbers.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from autotune.measure.outcome import TrialOutcome, TrialState
from autotune.measure.parity import begin_alike, out_of_parity
from autotune_policies.settings import Settings
from autotune_trials.spec import Contract


@dataclass(frozen=True)
class Reference:
    """What a run must train like.

    Attributes:
        baseline: The baseline's settings.
        contract: What all trials hold fixed.
        program: Kind of trial program.
        device: What ranks run on, ``cpu`` or ``cuda``.
    """

    baseline: Settings
    contract: Contract
    program: str
    device: str


MOST_RUNS = {TrialState.LOST: 2, TrialState.CONTAMINATED: 3}
"""Runs of one point that ended so, and say nothing of it, after which it is given up."""


def settled(
    outcome: TrialOutcome, outcomes: Iterable[TrialOutcome], reference: Reference, hosts: Iterable[str]
) -> TrialOutcome:
    """What a study makes of how a gang ended.

    Args:
        outcome: How the trial ended, in its gang's own word.
        outcomes: The study's outcomes before it.
        reference: What a run must train like.
        hosts: All hosts that could have run it.
    """
    earlier = list(outcomes)
    in_question = given_up(in_doubt_lost(outcome, earlier, hosts), earlier)
    return against_baseline(in_question, earlier, reference)


def given_up(outcome: TrialOutcome, earlier: Iterable[TrialOutcome]) -> TrialOutcome:
    """An outcome that says nothing of its settings, never to be run again where too many runs of them ended so.

    Runs that somebody stopped are not counted: nothing went wrong there.
    """
    if not outcome.state.runs_again or outcome.cause == "cancelled":
        return outcome
    runs = [
        past.trial
        for past in earlier
        if past.trial != outcome.trial and past.state.runs_again and past.cause != "cancelled"
        and past.settings == outcome.settings
    ]  # fmt: skip
    if len(runs) + 1 < MOST_RUNS[outcome.state]:
        return outcome
    trials = ", ".join(map(str, [*runs, outcome.trial]))
    return replace(_noted(outcome, f"given up, no run of it was undisturbed (trials {trials})"), retry="never")


def seen_before(outcomes: Iterable[TrialOutcome], settings: Settings) -> list[TrialOutcome]:
    """Earlier ends of the same settings that may have been a node's fault."""
    return [
        outcome
        for outcome in outcomes
        if outcome.state is TrialState.LOST and outcome.retry == "elsewhere" and outcome.settings == settings
    ]


def hosts_to_avoid(outcomes: Iterable[TrialOutcome], settings: Settings) -> list[str]:
    """Where the same settings failed before: the next run of them is to be elsewhere."""
    return sorted({host for outcome in seen_before(outcomes, settings) for host in _suspects(outcome)})


def in_doubt_lost(outcome: TrialOutcome, earlier: Iterable[TrialOutcome], hosts: Iterable[str]) -> TrialOutcome:
    """A crash or hang of a first sighting as LOST, so that it is run again elsewhere; any other outcome unchanged.

    Args:
        outcome: How the trial ended.
        earlier: The study's outcomes before it.
        hosts: All hosts that could have run it.
    """
    if outcome.retry != "elsewhere" or outcome.state not in (TrialState.INFEASIBLE, TrialState.UNAVAILABLE):
        return outcome
    sightings = [past for past in seen_before(earlier, outcome.settings) if past.trial != outcome.trial]
    elsewhere = set(hosts).difference(_suspects(outcome))
    if sightings:
        where = ", ".join(sorted({host for past in sightings for host in _suspects(past)}))
        return _noted(outcome, f"seen before in trial {sightings[0].trial} ({where or 'unknown hosts'})")
    if len(elsewhere) < max(1, len(outcome.hosts)):
        return _noted(outcome, "seen on these nodes only; there are no others to run it on")
    return replace(
        outcome,
        state=TrialState.LOST,
        violation=0.0,
        reason=f"seen for the first time, runs again on other nodes: {outcome.reason}",
    )


def completed(outcomes: Iterable[TrialOutcome], settings: Settings) -> TrialOutcome | None:
    """The first complete run of these settings; None where there is none."""
    complete = (outcome for outcome in outcomes if outcome.state is TrialState.COMPLETE)
    return next((outcome for outcome in complete if outcome.settings == settings), None)


def against_baseline(outcome: TrialOutcome, outcomes: Iterable[TrialOutcome], reference: Reference) -> TrialOutcome:
    """A complete outcome as INFEASIBLE where it trained to other numbers than the baseline; any other unchanged.

    Args:
        outcome: How the trial ended.
        outcomes: Other outcomes, the baseline's among them if it has ended.
        reference: What a run must train like.
    """
    if outcome.state is not TrialState.COMPLETE or outcome.settings == reference.baseline:
        return outcome
    theirs = completed(outcomes, reference.baseline)
    if theirs is None:
        return outcome
    alike = begin_alike(outcome.settings, reference.baseline, reference.contract, reference.program, reference.device)
    difference = out_of_parity(
        reference.contract.precision,
        outcome.losses, outcome.grad_norms, theirs.losses, theirs.grad_norms, alike=alike,
        same_micro_batches=outcome.settings.get("micro_batch_size") == theirs.settings.get("micro_batch_size"),
    )  # fmt: skip
    if not difference:
        return outcome
    return outcome.because("out_of_parity", TrialState.INFEASIBLE, f"out of parity: {difference}", 1.0)


def _suspects(outcome: TrialOutcome) -> list[str]:
    return [outcome.blamed_host] if outcome.blamed_host else outcome.hosts


def _noted(outcome: TrialOutcome, note: str) -> TrialOutcome:
    return replace(outcome, notes=[*outcome.notes, note])
