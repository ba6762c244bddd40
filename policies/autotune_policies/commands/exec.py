"""``policy exec FILE -- COMMAND``: run a command under the policy's environment and launch settings."""

import argparse
from typing import Any

from autotune_policies.errors import PolicyError
from autotune_policies.launch import execute
from autotune_policies.policy import load_policy
from autotune_policies.streams import say


def add(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("file", metavar="FILE", help="policy YAML")


def run(options: Any) -> None:
    """Become the command."""
    if not options.command:
        raise PolicyError("exec needs '--' and a command", hint=f"{options.prog} exec FILE -- COMMAND")
    execute(load_policy(options.file), options.file, options.command, say)
