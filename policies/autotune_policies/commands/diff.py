"""``policy diff A B``: what two policies do differently, and whether their numbers may be compared."""

import argparse
from dataclasses import asdict
from typing import Any

from autotune_policies.difference import compare_policies, difference_text
from autotune_policies.policy import load_policy
from autotune_policies.streams import json_line, put


def add(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("a", metavar="A", help="policy YAML")
    parser.add_argument("b", metavar="B", help="policy YAML")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(options: Any) -> int:
    """Print the difference; 0 = both make the same run, 1 = they do not."""
    a, b = load_policy(options.a), load_policy(options.b)
    difference = compare_policies(a, b)
    if options.json:
        evidence = {"a": a.evidence, "b": b.evidence}
        put(json_line({"same": difference.same, "a": a.name, "b": b.name, **asdict(difference), "evidence": evidence}))
    else:
        put(difference_text(difference, a, b))
    return 0 if difference.same else 1
