"""What a study makes of an outcome that it cannot see from one run alone: pure functions of the study's outcomes.

A crash or a hang counts against the settings only when it was seen on other nodes too, where there are others. And a
run that finished is complete only if it trained to the baseline's numbers.
"""

from collections.abc import Iterable
from dataclasses import replace

from autotune.measure.outcome import TrialOutcome, TrialState
from autotune.measure.parity import out_of_parity
from autotune_policies.settings import Settings


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


def against_baseline(outcome: TrialOutcome, outcomes: Iterable[TrialOutcome], baseline: Settings, precision: str,
                     ) -> TrialOutcome:  # fmt: skip
    """A complete outcome as INFEASIBLE where it trained to other numbers than the baseline; any other unchanged.

    Args:
        outcome: How the trial ended.
        outcomes: The study's outcomes, the baseline's among them if it has ended.
        baseline: The baseline's settings.
        precision: The contract's.
    """
    if outcome.state is not TrialState.COMPLETE or outcome.settings == baseline:
        return outcome
    reference = next(
        (other for other in outcomes if other.settings == baseline and other.state is TrialState.COMPLETE), None
    )
    if reference is None:
        return outcome
    difference = out_of_parity(precision, outcome.losses, outcome.grad_norms, reference.losses, reference.grad_norms)
    if not difference:
        return outcome
    return outcome.because("out_of_parity", TrialState.INFEASIBLE, f"out of parity: {difference}", 1.0)


def _suspects(outcome: TrialOutcome) -> list[str]:
    return [outcome.blamed_host] if outcome.blamed_host else outcome.hosts


def _noted(outcome: TrialOutcome, note: str) -> TrialOutcome:
    return replace(outcome, notes=[*outcome.notes, note])
