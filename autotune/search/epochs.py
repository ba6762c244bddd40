"""The epochs of a study: one per stack. A changed stack is probed again, its baseline measured again."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from optuna.trial import FrozenTrial

SURROUNDINGS = "surroundings:"
"""Study attribute of what preflight found, followed by the fingerprint."""


@dataclass(frozen=True)
class Epoch:
    """The trials of a study on one stack; nothing is ranked across epochs.

    Attributes:
        fingerprint: Digest of the stack.
        stack: Versions by distribution name.
        counts: Ended trials by state.
    """

    fingerprint: str
    stack: Mapping[str, str]
    counts: Mapping[str, int]


def epochs_of(attributes: Mapping[str, Any], trials: Iterable[FrozenTrial]) -> list[Epoch]:
    """The epochs in which trials have ended, in the order in which they began.

    Args:
        attributes: User attributes of the study.
        trials: All its trials.
    """
    counts: dict[str, Counter[str]] = {}
    for trial in trials:
        if "outcome" in trial.user_attrs:
            found = counts.setdefault(trial.user_attrs["fingerprint"], Counter())
            found[trial.user_attrs["outcome"]["state"]] += 1
    return [
        Epoch(fingerprint, attributes[SURROUNDINGS + fingerprint]["stack"], dict(found))
        for fingerprint, found in counts.items()
    ]


def difference(before: Epoch, after: Epoch) -> str:
    """What changed from one epoch to the next, in words."""
    names = sorted({*before.stack, *after.stack})
    changed = [
        f"{name} {before.stack.get(name, 'none')} -> {after.stack.get(name, 'none')}"
        for name in names
        if before.stack.get(name) != after.stack.get(name)
    ]
    return ", ".join(changed) or "same versions, other machines, drivers or container"
