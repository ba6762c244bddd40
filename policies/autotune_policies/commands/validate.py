"""``policy validate FILE``: is this a policy v1, and what kind of evidence does it rest on?"""

import argparse
from collections.abc import Mapping
from typing import Any

from autotune_policies.errors import PolicyError
from autotune_policies.policy import Policy, load_policy
from autotune_policies.streams import json_line, put, reason


def add(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("file", metavar="FILE", help="policy YAML")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(options: Any) -> int:
    """Check the file; 0 = a policy, 2 = not."""
    try:
        policy = load_policy(options.file)
    except (PolicyError, OSError) as error:
        if not options.json:
            raise
        message, hint = (error.message, error.hint) if isinstance(error, PolicyError) else (reason(error), None)
        put(json_line({"valid": False, "error": message, "hint": hint}))
        return 2
    if options.json:
        put(json_line({"valid": True, "file": options.file, "evidence": policy.evidence["kind"]}))
    else:
        put(f"{options.file}: ok, a {policy.evidence['kind']} policy for {_subject(policy)}\n")
    return 0


def _subject(policy: Policy) -> str:
    model, cluster = (policy.applies_to[name] for name in ("model", "cluster"))
    return " on ".join(str(item["exact"]) if isinstance(item, Mapping) else str(item) for item in (model, cluster))
