"""A gang on a Ray cluster: one worker actor per node, each owning its node's ranks."""

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import ray
from ray.exceptions import RayError, RayTaskError
from ray.util import placement_group_table
from ray.util.placement_group import get_current_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from autotune.scheduling.gang import GangLost
from autotune_trials.leftovers import claim, tidy
from autotune_trials.node import NodeRanks, free_port
from autotune_trials.scratch import scratch
from autotune_trials.spec import TrialSpec
from autotune_trials.status import NodeStatus

RANK_RESOURCE = "rank"
"""Custom Ray resource that stands for a GPU on a machine without any: one per rank."""

FENCE_S = 30.0
"""A node that hears nothing from the head for so long kills its ranks; a call to it is given up after as long."""

LAUNCH_TIMEOUT_S = 120.0
_KILL_TIMEOUT_S = 15.0


def node_bundle(spec: TrialSpec) -> dict[str, float]:
    """What one node of the gang holds, as a Ray resource bundle: its GPUs, with one CPU core each."""
    ranks = float(spec.gang.ranks_per_node)
    return {"GPU": ranks, "CPU": ranks} if spec.gang.device == "cuda" else {RANK_RESOURCE: ranks}


class NodeWorker:
    """The ranks of one node. Its methods run on the actor's main thread, to which the ranks are tied."""

    def __init__(self) -> None:
        self._ranks: NodeRanks | None = None
        self._work_dir: Path | None = None
        self._owner: IO[bytes] | None = None

    def endpoint(self) -> tuple[str, int]:
        """Address and free port for rank 0's rendezvous."""
        return ray.util.get_node_ip_address(), free_port()

    def start(self, spec_json: str, node_rank: int, master: tuple[str, int], options: dict[str, Any]) -> None:
        """Start the ranks; ``options`` go to NodeRanks."""
        spec = TrialSpec.from_json(spec_json)
        name = f"{spec.study}-{spec.trial:04d}-{os.getpid()}-node-{node_rank}"
        self._work_dir = scratch() / "gangs" / name
        self._owner = claim(self._work_dir)
        self._ranks = NodeRanks(spec, node_rank=node_rank, work_dir=self._work_dir, master=master, **options)
        self._ranks.start()

    def poll(self) -> dict[str, Any]:
        """How the ranks stand."""
        assert self._ranks is not None
        return self._ranks.poll().to_dict()

    def kill(self, stacks: bool) -> None:
        """Kill the ranks, if they were started, and wait until they are gone."""
        if self._ranks is not None:
            self._ranks.kill(stacks=stacks)

    def logs(self, rank: int, max_bytes: int) -> str:
        """The end of what a rank printed."""
        return self._ranks.logs(rank, max_bytes) if self._ranks is not None else ""

    def clear(self, failed: bool) -> None:
        """Kill what still runs and put this node's scratch in order; what anybody wanted of it has been fetched."""
        self.kill(stacks=False)
        if self._work_dir is not None:
            tidy(self._work_dir, failed=failed)
        if self._owner is not None:
            self._owner.close()


_Actor: Any = ray.remote(num_cpus=0, max_restarts=0, max_task_retries=0)(NodeWorker)


class RayGang:
    """The gang of one trial inside the current placement group, one bundle per node.

    Args:
        argv: Program of a rank; default: the native trial program.
        fence_s: A node that hears nothing for so long kills its ranks; also how long a silent node is waited for.
        fingerprint: Key of the compile caches in node-local scratch; None = the libraries' own places.
        placement_group: Where it runs; default: the placement group that the calling actor or task is in.
    """

    def __init__(
        self,
        *,
        argv: Sequence[str] | None = None,
        fence_s: float = FENCE_S,
        fingerprint: str | None = None,
        placement_group: Any = None,
    ) -> None:
        self._options = {"argv": argv, "fence_s": fence_s, "fingerprint": fingerprint}
        self._timeout_s = fence_s
        self._group = placement_group
        self._ranks_per_node = 1
        self._workers: list[Any] = []
        self._failed = True

    def launch(self, spec: TrialSpec) -> None:
        """Create one worker per bundle, agree on the rendezvous and start all ranks.

        Raises:
            GangLost: a worker could not be created or could not start its ranks.
        """
        self._ranks_per_node = spec.gang.ranks_per_node
        group = self._group or get_current_placement_group()
        assert group is not None, "a RayGang runs inside a placement group"
        nodes = placement_group_table(group)["bundles_to_node_id"]
        share = node_bundle(spec)
        for node, index in enumerate(sorted(nodes, key=lambda index: (nodes[index], index))):
            # Sorted by node: Ray's bundle order is arbitrary, neighbouring ranks should be neighbours.
            actor = _Actor.options(
                name=f"{spec.study}/trial-{spec.trial:04d}/node-{node}",
                num_gpus=share.get("GPU", 0),
                resources={RANK_RESOURCE: share[RANK_RESOURCE]} if RANK_RESOURCE in share else None,
                scheduling_strategy=PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=index),
            )
            self._workers.append(actor.remote())
        [master] = self._gather([self._workers[0].endpoint.remote()], LAUNCH_TIMEOUT_S)
        text = spec.to_json()
        self._gather(
            [worker.start.remote(text, node, master, self._options) for node, worker in enumerate(self._workers)],
            LAUNCH_TIMEOUT_S,
        )

    def poll(self) -> list[NodeStatus]:
        """How things stand, one entry per node.

        Raises:
            GangLost: a worker died, or its node cannot be reached.
        """
        answers = self._gather([worker.poll.remote() for worker in self._workers], self._timeout_s)
        statuses = [NodeStatus.from_dict(answer) for answer in answers]
        self._failed = any(rank.exit_code != 0 for status in statuses for rank in status.ranks)
        return statuses

    def kill(self, *, stacks: bool = False) -> None:
        """Kill all ranks that can be reached. A worker that does not answer is killed itself: its ranks follow."""
        self._end([(worker, worker.kill.remote(stacks)) for worker in self._workers])

    def logs(self, rank: int, max_bytes: int) -> str:
        """The end of what a rank printed; empty when its node cannot be reached."""
        node = rank // self._ranks_per_node
        if node >= len(self._workers):
            return ""
        try:
            return str(ray.get(self._workers[node].logs.remote(rank, max_bytes), timeout=self._timeout_s))
        except RayError:
            return ""

    def close(self) -> None:
        """Kill what still runs and clear its scratch, then the workers."""
        self._end([(worker, worker.clear.remote(self._failed)) for worker in self._workers])
        for worker in self._workers:
            with suppress(RayError):
                ray.kill(worker)
        self._workers = []

    def _end(self, asked: list[tuple[Any, Any]]) -> None:
        """Wait for workers that were asked to end their ranks; one that does not answer is killed."""
        end_s = time.monotonic() + _KILL_TIMEOUT_S
        for worker, answer in asked:
            try:
                ray.get(answer, timeout=max(0.0, end_s - time.monotonic()))
            except RayError:
                with suppress(RayError):
                    ray.kill(worker)

    def _gather(self, calls: list[Any], timeout_s: float) -> list[Any]:
        """The answers of all nodes, in order.

        Raises:
            GangLost: one did not answer; the message says which and why in one line.
        """
        end_s = time.monotonic() + timeout_s
        answers = []
        for node, call in enumerate(calls):
            try:
                answers.append(ray.get(call, timeout=max(0.0, end_s - time.monotonic())))
            except RayError as error:
                lines = str(error).strip().splitlines() or [""]
                # An error of the worker's own code is a traceback, which ends with the error.
                said = lines[-1] if isinstance(error, RayTaskError) else f"{type(error).__name__}: {lines[0]}"
                raise GangLost(f"node {node} of the gang: {said}") from error
        return answers
