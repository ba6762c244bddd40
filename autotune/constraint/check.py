"""Asks every rule."""

from collections.abc import Sequence

from autotune.constraint.rule import Candidate, Rule, Violation
from autotune.constraint.rules import RULES

_REFUSING = tuple(rule for rule in RULES if rule.severity == "refuse")
_WARNING = tuple(rule for rule in RULES if rule.severity == "warn")


def check(candidate: Candidate) -> list[Violation]:
    """All rules that do not hold, in the order of the rule list; empty = legal as far as we know.

    Suspect rules are among them: they are avoided until somebody wants to know better (:mod:`.probing`).
    """
    return _ask(_REFUSING, candidate)


def first_violation(candidate: Candidate) -> Violation | None:
    """The first rule that refuses it, done there; None = legal."""
    return next((found for rule in _REFUSING if (found := rule.judge(candidate)) is not None), None)


def is_legal(candidate: Candidate) -> bool:
    """Whether no rule refuses it: as :func:`check`, but done at the first violation."""
    return all(rule.judge(candidate) is None for rule in _REFUSING)


def warnings(candidate: Candidate) -> list[Violation]:
    """What can run, but is known to do badly or to have no effect."""
    return _ask(_WARNING, candidate)


def only_suspect(violations: Sequence[Violation]) -> bool:
    """Whether there are violations, and all of them of rules that may be wrong."""
    return bool(violations) and all(violation.certainty == "suspect" for violation in violations)


def _ask(rules: Sequence[Rule], candidate: Candidate) -> list[Violation]:
    return [violation for rule in rules if (violation := rule.judge(candidate)) is not None]
