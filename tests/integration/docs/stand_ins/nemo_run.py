"""Stands for NeMo-Run: the parts that docs/recipes.md uses, with the fields that release 0.12 has.

What Slurm would do is done for task 0 of the first node, in place.
"""

import os
import subprocess
import sys
from dataclasses import dataclass, field


@dataclass(kw_only=True)
class LocalTunnel:
    job_dir: str


@dataclass(kw_only=True)
class SlurmExecutor:
    account: str
    tunnel: LocalTunnel
    partition: str | None = None
    time: str = "00:10:00"
    nodes: int = 1
    ntasks_per_node: int = 1
    gpus_per_node: int | None = None
    container_image: str | None = None
    segment: int | None = None
    env_vars: dict[str, str] = field(default_factory=dict)


@dataclass
class Script:
    path: str = ""
    inline: str = ""

    def __post_init__(self) -> None:
        assert self.path or self.inline


class Experiment:
    def __init__(self, title: str) -> None:
        self.title = title
        self._tasks: list[tuple[Script, SlurmExecutor, str]] | None = None

    def __enter__(self) -> "Experiment":
        self._tasks = []
        return self

    def __exit__(self, *_: object) -> None:
        self._tasks = None

    def add(self, task: Script, executor: SlurmExecutor, name: str) -> str:
        assert self._tasks is not None, "only inside the context"
        self._tasks.append((task, executor, name))
        return name

    def run(self, detach: bool = False) -> None:
        assert self._tasks is not None, "only inside the context"
        for task, executor, name in self._tasks:
            options = {"nodes": executor.nodes, "ntasks-per-node": executor.ntasks_per_node}
            options |= {} if executor.segment is None else {"segment": executor.segment}
            words = ("sbatch", *(f"--{key}={value}" for key, value in options.items()), name)
            sys.stdout.write(" ".join(words) + "\n")
            sys.stdout.flush()
            subprocess.run(["bash", "-c", task.inline], env=_environment(executor), check=True)


def _environment(executor: SlurmExecutor) -> dict[str, str]:
    tasks = executor.nodes * executor.ntasks_per_node
    variables = {"PROCID": 0, "LOCALID": 0, "NTASKS": tasks, "NNODES": executor.nodes, "JOB_ID": 1}
    named = {f"SLURM_{name}": str(value) for name, value in variables.items()}
    return {**os.environ, **executor.env_vars, **named, "SLURM_NODELIST": "localhost"}
