"""How every trial program begins, before anything heavy is imported."""

import argparse
import os
from pathlib import Path

from autotune_trials.events import EventWriter
from autotune_trials.processes import adopt_orphans
from autotune_trials.stacks import register


def begin(program: str, description: str | None) -> tuple[Path, EventWriter]:
    """Read the command line, answer requests for stacks from now on, and say that the rank has started.

    What the rank's libraries start stays below it from now on, so that it can be ended with it.

    Args:
        program: Module that was started, such as ``autotune_trials.native``.
        description: Its docstring; the first line is what ``--help`` prints.

    Returns:
        The trial specification's file, and where events go.
    """
    parser = argparse.ArgumentParser(prog=f"python -m {program}", description=(description or "").splitlines()[0])
    parser.add_argument("--spec", type=Path, required=True, help="trial specification (JSON)")
    path: Path = parser.parse_args().spec
    register()
    adopt_orphans()
    events = EventWriter()
    events.write("started", pid=os.getpid())
    return path, events
