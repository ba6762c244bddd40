"""Replaces this process by a command under the policy's environment and launch settings."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from autotune_policies.errors import PolicyError
from autotune_policies.policy import Policy
from autotune_policies.surroundings import numa_words, stale_variables

POLICY_VARIABLE = "AUTOTUNE_POLICY"
"""Names the policy file to the program that runs under it."""


def execute(policy: Policy, path: str, command: list[str], say: Callable[[str], None]) -> NoReturn:
    """Become the command; returns only by raising.

    Args:
        policy: What to run under.
        path: The policy's file.
        command: Program and arguments.
        say: Receives one line per thing that the user should know.

    Raises:
        PolicyError: a launch setting that cannot be had here, or a program that does not exist.
    """
    if not command[0]:
        raise PolicyError("the command is empty: ''", hint="exec FILE -- COMMAND")
    environment = dict(os.environ)
    for name, value in policy.env.items():
        if environment.get(name, value) != value:
            say(f"{name}: the policy's {value} replaces {environment[name]}")
        environment[name] = value
    for name in stale_variables(policy.settings):
        if name in environment:
            say(f"{name}: unset, since dispatcher is {policy.settings['dispatcher']}")
            del environment[name]
    environment[POLICY_VARIABLE] = str(Path(path).resolve())
    if "segment" in policy.launch:
        say(f"launch.segment={policy.launch['segment']} is for the scheduler, nothing is done about it here")
    binding = policy.launch.get("numa_binding")
    words = numa_words(binding["gpus_per_numa_node"], environment) if binding else []
    argv = [*words, *command]
    try:
        os.execvpe(argv[0], argv, environment)  # noqa: S606 - no shell is the point
    except OSError as error:
        raise PolicyError(f"cannot run {argv[0]!r}: {error.strerror}") from error


def runs_under(path: str) -> bool:
    """Whether this process runs under ``exec`` with the policy in that file, its launch settings in force."""
    return os.environ.get(POLICY_VARIABLE) == str(Path(path).resolve())
