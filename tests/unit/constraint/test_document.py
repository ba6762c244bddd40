"""Every row of the published rule table is a rule or has a reason; the page says the same as the code."""

import os
from pathlib import Path

from autotune.constraint.coverage import ELSEWHERE, ROWS
from autotune.constraint.document import document
from autotune.constraint.rules import RULES

PAGE = Path(__file__).parents[3] / "docs" / "rules.md"
IDS = {rule.id for rule in RULES}


def test_every_row_is_a_rule_or_has_a_reason() -> None:
    assert {identifier for identifier in IDS if identifier.startswith("MC")} | set(ELSEWHERE) == set(ROWS)
    assert not IDS & set(ELSEWHERE)
    assert len(ROWS) == 182


def test_what_covers_a_row_is_a_rule() -> None:
    for row, (reason, why) in ELSEWHERE.items():
        if reason == "covered":
            named = {word.strip(",:;") for word in why.split() if word.startswith("MC")}
            assert named, row
            assert named <= IDS, row


def test_the_page_is_up_to_date() -> None:
    if os.environ.get("UPDATE_GOLDEN") == "1":
        PAGE.write_text(document(), encoding="utf-8")
    assert PAGE.read_text(encoding="utf-8") == document(), "UPDATE_GOLDEN=1 writes it again"
