"""What one setting alone gains: only ever said of two trials that differ in nothing else.

Two whole configurations say nothing of a setting: "dispatcher X gains n %" needs a pair of the same stack (trials of
one epoch are), routing (the contract's), layout, graph scope and everything else. Each ran once, so what runs of one
configuration may differ by is a tie: more of it where they ran on different nodes.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from autotune.measure.compare import TIE_WITHIN, Comparison, compare_series
from autotune.measure.drift import CROSS_ALLOCATION_NOISE
from autotune.measure.outcome import TrialOutcome, TrialState
from autotune.measure.steady import FEWEST_STEPS
from autotune_policies.settings import SETTINGS, Settings

_TOKEN_POLICY = ("rank_capacity_factor", "paged_stash")
"""They belong to a dispatcher, but drop tokens: with them it is other work."""


@dataclass(frozen=True)
class MatchedPair:
    """Two trials that differ in one setting, and in those that exist only with its value.

    Attributes:
        setting: Its name.
        values: Its value in A and in B.
        trials: Trial numbers of A and B.
        comparison: Their step times.
        tie_within: What runs of one configuration may differ by, as a share: more of it on different nodes.
    """

    setting: str
    values: tuple[Any, Any]
    trials: tuple[int, int]
    comparison: Comparison
    tie_within: float = TIE_WITHIN

    @property
    def reason(self) -> str:
        """Why the two tie although the interval leaves out 1, or is not believed; empty where nothing is to be said."""
        found = self.comparison
        if found.reason:
            return with_trials(found.reason, *self.trials)
        low, high = found.ci95
        if found.verdict == "tie" and not low <= 1.0 <= high:
            where = "the same" if self.tie_within == TIE_WITHIN else "different"
            return f"two runs of one configuration on {where} nodes may differ by {self.tie_within:.0%}"
        return ""

    def to_dict(self) -> dict[str, Any]:
        """A JSON-able mapping."""
        found = self.comparison
        return {
            "setting": self.setting,
            "values": list(self.values),
            "trials": list(self.trials),
            "verdict": found.verdict,
            "step_time_ratio": found.ratio,
            "ci95": list(found.ci95),
            "reason": self.reason,
        }

    def sentence(self) -> str:
        """What the pair says, for a person: the first value against the second."""
        (one, other), found = self.values, self.comparison
        low, high = found.ci95
        where = f"trials {self.trials[0]} and {self.trials[1]}, which differ in nothing else"
        interval = f"{found.ratio:.3f} x, 95 %: {low:.3f} to {high:.3f}"
        if found.verdict == "tie":
            why = f": {self.reason}" if self.reason else ""
            return f"{self.setting} {one} and {other} tie ({interval}; {where}){why}."
        if found.verdict == "b_faster":
            return f"{self.setting} {other} is faster than {one}: a step of {one} takes {interval} ({where})."
        return f"{self.setting} {one} is faster than {other}: a step of {one} takes {interval} ({where})."


def matched_pairs(outcomes: Sequence[TrialOutcome], setting: str = "dispatcher") -> list[MatchedPair]:
    """Every pair of completed trials that differ in one setting only, in order of their numbers.

    Args:
        outcomes: Trials of one epoch of one study, so that stack, routing, data and contract are the same.
        setting: Which setting.
    """
    complete = [outcome for outcome in outcomes if outcome.state is TrialState.COMPLETE]
    return list(_pairs(sorted(complete, key=lambda outcome: outcome.trial), setting))


def fastest_pairs(outcomes: Sequence[TrialOutcome], setting: str = "dispatcher") -> list[MatchedPair]:
    """Of the pairs with the same two values only the one with the fastest trial in it."""
    step_time_s = {outcome.trial: outcome.step_time_s or 0.0 for outcome in outcomes}
    best: dict[frozenset[Any], MatchedPair] = {}
    for pair in matched_pairs(outcomes, setting):
        known = best.setdefault(frozenset(pair.values), pair)
        if min(step_time_s[trial] for trial in pair.trials) < min(step_time_s[trial] for trial in known.trials):
            best[frozenset(pair.values)] = pair
    return list(best.values())


def with_trials(reason: str, a: int, b: int) -> str:
    """A reason of ``compare``, with the trials that its letters stand for."""
    return f"{reason} (A is trial {a}, B is trial {b})"


def only_difference(one: Settings, other: Settings) -> str | None:
    """The one setting that two whole configurations differ in, but for those that exist only with its values.

    None where they differ in several, or in nothing; only of a single one can a difference in speed be said.
    """
    changed = [name for name in SETTINGS if one.get(name) != other.get(name)]
    return next((name for name in changed if _others(one, name) == _others(other, name)), None)


def _pairs(ordered: Sequence[TrialOutcome], setting: str) -> Iterator[MatchedPair]:
    for place, two in enumerate(ordered):
        for one in ordered[:place]:
            values = one.settings[setting], two.settings[setting]
            if values[0] == values[1] or _others(one.settings, setting) != _others(two.settings, setting):
                continue
            series = [outcome.measured_step_times_s for outcome in (one, two)]
            if min(map(len, series)) >= FEWEST_STEPS:
                margin = TIE_WITHIN if set(one.hosts) == set(two.hosts) else CROSS_ALLOCATION_NOISE
                found = compare_series(*series, tie_within=margin)
                yield MatchedPair(setting, values, (one.trial, two.trial), found, margin)


def _others(settings: Settings, setting: str) -> dict[str, Any]:
    """All other settings, but for those that exist only with certain values of this one."""
    return {name: value for name, value in settings.items() if name != setting and not _belongs(name, setting)}


def _belongs(name: str, setting: str) -> bool:
    if name in _TOKEN_POLICY:
        return False
    if (name, setting) == ("num_sms", "dispatcher"):
        return True
    owners = SETTINGS[name].only_with
    return setting in owners or any(_belongs(owner, setting) for owner in owners)
