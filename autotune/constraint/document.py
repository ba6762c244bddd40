"""``python -m autotune.constraint.document`` prints ``docs/rules.md``: all rules, and where each published row went."""

from autotune.constraint.coverage import ELSEWHERE, ROWS
from autotune.constraint.rule import Rule
from autotune.constraint.rules import RULES

_INTRODUCTION = """\
# Legality rules

Written by `python -m autotune.constraint.document`; a test holds it to the code.

`MC` numbers are rows of a table of Megatron-Core's validation code (file and line of 0.19.2 unless a release is named);
`AT` numbers are rules that upstream lacks although the run would die, or the setting would have no effect.
*Suspect* rules are derived from code that nobody ran, or were taken back upstream: they are avoided, and
`autotune start --probe-rules SHARE` lets a share of the launches break them. *Warn* rules never refuse.
The numbers of the dispatcher backends are in `policies/autotune_policies/backends.py`.
"""


def document() -> str:
    """The page, as Markdown."""
    rules = {rule.id: rule for rule in RULES}
    lines = [_INTRODUCTION, "## Rules", "", "| id | holds when | kind | versions | source |", "|---|---|---|---|---|"]
    lines += [_rule_row(rule) for rule in RULES]
    lines += ["", "## The published table, row by row", "", "| row | where it went |", "|---|---|"]
    lines += [f"| {row} | {'a rule' if row in rules else _elsewhere(row)} |" for row in ROWS]
    return "\n".join(lines) + "\n"


def _rule_row(rule: Rule) -> str:
    holds = rule.check.__name__.strip("_").replace("_", " ")
    kind = ", ".join(word for word in (rule.severity, rule.certainty) if word != "certain")
    versions = "; ".join(f"{name} {versions}" for name, versions in rule.applies.items()) or "all"
    cells = (rule.id, holds, kind, versions, rule.source)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _elsewhere(row: str) -> str:
    reason, why = ELSEWHERE[row]
    return f"{reason}: {why}".replace("|", "\\|")


if __name__ == "__main__":
    print(document(), end="")  # noqa: T201
