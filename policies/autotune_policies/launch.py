"""Replaces this process by a command under the policy's environment and launch settings."""

import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NoReturn

from autotune_policies.errors import PolicyError
from autotune_policies.policy import Policy

POLICY_VARIABLE = "AUTOTUNE_POLICY"
"""Names the policy file to the program that runs under it."""

_LOCAL_RANK = ("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK")


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
    environment = dict(os.environ)
    for name, value in policy.env.items():
        if environment.get(name, value) != value:
            say(f"{name}: the policy's {value} replaces {environment[name]}")
        environment[name] = value
    environment[POLICY_VARIABLE] = str(Path(path).resolve())
    if "segment" in policy.launch:
        say(f"launch.segment={policy.launch['segment']} is for the scheduler, nothing is done about it here")
    argv = [*_numa_words(policy, environment), *command]
    try:
        os.execvpe(argv[0], argv, environment)  # noqa: S606 - no shell is the point
    except OSError as error:
        raise PolicyError(f"cannot run {argv[0]!r}: {error.strerror}") from error


def _numa_words(policy: Policy, environment: Mapping[str, str]) -> list[str]:
    binding = policy.launch.get("numa_binding")
    if binding is None:
        return []
    if shutil.which("numactl", path=environment.get("PATH")) is None:
        raise PolicyError("launch.numa_binding needs numactl, which is not here", hint="install numactl")
    ranks = [environment[name] for name in _LOCAL_RANK if environment.get(name, "").isdecimal()]
    if not ranks:
        raise PolicyError(
            f"launch.numa_binding needs the local rank, but none of {', '.join(_LOCAL_RANK)} is set",
            hint="start exec once per rank, such as by srun",
        )
    node = int(ranks[0]) // binding["gpus_per_numa_node"]
    return ["numactl", f"--cpunodebind={node}", f"--membind={node}"]
