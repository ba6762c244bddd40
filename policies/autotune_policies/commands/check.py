"""``policy check FILE``: here only its line of help; it runs trials, so the head side does it."""

import argparse
from typing import Any

from autotune_policies.errors import PolicyError


def add(parser: argparse.ArgumentParser) -> None:
    """Add the arguments: whatever the head side takes."""
    parser.add_argument(
        "words", nargs=argparse.REMAINDER, metavar="FILE ...", help="see `autotune policy check --help`"
    )


def run(options: Any) -> None:
    """Say where it is.

    Raises:
        PolicyError: always; ``autotune policy check`` does not come this way.
    """
    words = " ".join(["autotune policy check", *options.words])
    raise PolicyError("check runs trials, which this command cannot", hint=words)
