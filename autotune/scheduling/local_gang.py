"""A gang on this machine, without Ray."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from autotune.scheduling.gang import GangLost
from autotune_trials.node import NodeRanks, free_port
from autotune_trials.spec import TrialSpec
from autotune_trials.status import NodeStatus

_LOOPBACK = "127.0.0.1"


class LocalGang:
    """All ranks are subprocesses of this process; several "nodes" are only several groups of them.

    Call ``launch`` from a thread that outlives the gang: the kernel ties the ranks to it.

    Args:
        work_dir: Folder for each node's events and logs.
        argv: Program of a rank; default: the native trial program.
        fence_s: A node whose state nobody asks for so long kills its ranks; None = never.
        fingerprint: Key of the compile caches in node-local scratch; None = the libraries' own places.
        nvml: Binding to watch the GPUs with; None = the installed one, for a gang that runs on GPUs.
    """

    def __init__(
        self,
        work_dir: Path,
        *,
        argv: Sequence[str] | None = None,
        fence_s: float | None = None,
        fingerprint: str | None = None,
        nvml: Any = None,
    ) -> None:
        self._work_dir = work_dir
        self._argv = argv
        self._fence_s = fence_s
        self._fingerprint = fingerprint
        self._nvml = nvml
        self._ranks_per_node = 1
        self._nodes: list[NodeRanks] = []

    def launch(self, spec: TrialSpec) -> None:
        """Start all ranks.

        Raises:
            GangLost: the work folder cannot be written, or the machine starts no more processes.
        """
        master = (_LOOPBACK, free_port(_LOOPBACK))
        self._ranks_per_node = spec.gang.ranks_per_node
        for node in range(spec.gang.num_nodes):
            ranks = NodeRanks(
                spec,
                node_rank=node,
                work_dir=self._work_dir / f"node-{node}",
                master=master,
                argv=self._argv,
                fence_s=self._fence_s,
                fingerprint=self._fingerprint,
                nvml=self._nvml,
            )
            self._nodes.append(ranks)
            try:
                ranks.start()
            except OSError as error:
                raise GangLost(f"node {node} cannot start its ranks: {error}") from error

    def poll(self) -> list[NodeStatus]:
        """How things stand, one entry per node."""
        return [node.poll() for node in self._nodes]

    def kill(self, *, stacks: bool = False) -> None:
        """Kill all ranks and wait until they are gone."""
        for node in self._nodes:
            node.kill(stacks=stacks)

    def logs(self, rank: int, max_bytes: int) -> str:
        """The end of what a rank printed."""
        node = rank // self._ranks_per_node
        return self._nodes[node].logs(rank, max_bytes) if node < len(self._nodes) else ""

    def close(self) -> None:
        """Kill what still runs."""
        self.kill()
