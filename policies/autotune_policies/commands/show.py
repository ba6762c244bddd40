"""``policy show FILE``: what it sets, where it holds, and how far its numbers can be trusted."""

import argparse
from typing import Any

from autotune_policies.policy import load_policy
from autotune_policies.show import policy_text
from autotune_policies.streams import json_line, put


def add(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("file", metavar="FILE", help="policy YAML")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(options: Any) -> None:
    """Print the policy."""
    policy = load_policy(options.file)
    put(json_line(policy.to_dict()) if options.json else policy_text(policy))
