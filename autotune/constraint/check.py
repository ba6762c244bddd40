"""Asks every rule."""

from autotune.constraint.rule import Candidate, Violation
from autotune.constraint.rules import RULES


def check(candidate: Candidate) -> list[Violation]:
    """All rules that do not hold, in the order of the rule list; empty = legal as far as we know."""
    violations = []
    for rule in RULES:
        verdict = rule.check(candidate)
        if verdict is not None:
            amount, message = verdict
            violations.append(Violation(rule.id, amount, message))
    return violations
