"""One node's share of a gang: starts its ranks, watches them, and leaves nothing behind.

The Ray node worker, the local gang and ``autotune_trials.train`` all use it. Standard library only.

The caller polls; a watcher thread kills on its own account, because the caller may be far away or gone.
Ranks are started on the calling thread, which must outlive them: the kernel ties each rank to that thread.
"""

import os
import socket
import threading
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from autotune_policies.errors import PolicyError
from autotune_policies.surroundings import numa_words
from autotune_trials.caches import cache_variables, forget_stale_locks
from autotune_trials.checkout import import_path
from autotune_trials.claims import Claim, merged
from autotune_trials.events import EVENTS_VARIABLE, StepRecord, step_record
from autotune_trials.health import HealthSampler, visible_gpus
from autotune_trials.one_rank import Rank
from autotune_trials.processes import FAMILY_VARIABLE, Janitor, describe_exit, kill_family, spawn
from autotune_trials.programs import rank_argv
from autotune_trials.rank_log import LogKeeper, open_log, tail
from autotune_trials.scratch import scratch
from autotune_trials.spec import TrialSpec
from autotune_trials.stacks import STACKS_VARIABLE, collect
from autotune_trials.status import NodeStatus, Why

_WATCH_INTERVAL_S = 0.05


class NodeRanks:
    """The ranks of one gang on this node: fresh processes, watched, and killed together.

    Args:
        spec: The trial; its deadline_s and stall_s are enforced here.
        node_rank: Index of this node within the gang; decides the global ranks.
        work_dir: Folder on this node for specification, events and logs; made if missing.
        master: Address and port of rank 0's rendezvous.
        argv: Program of a rank; default: the specification's own trial program.
        fence_s: Kill everything when nobody called :meth:`poll` for so long; None = never. It stops an
            isolated node from running on while its trial is run again elsewhere.
        fingerprint: Key of the compile caches in node-local scratch; None = the libraries' own places.
        nvml: Binding to watch the GPUs with; None = the installed one, for a gang that runs on GPUs.
    """

    def __init__(
        self,
        spec: TrialSpec,
        *,
        node_rank: int,
        work_dir: Path,
        master: tuple[str, int],
        argv: Sequence[str] | None = None,
        fence_s: float | None = None,
        fingerprint: str | None = None,
        nvml: Any = None,
    ) -> None:
        self._spec = spec
        self._node_rank = node_rank
        self._work_dir = work_dir
        self._master = master
        self._argv = argv
        self._fence_s = fence_s
        self._fingerprint = fingerprint
        self._marker = uuid.uuid4().hex
        self._lock = threading.RLock()
        self._collecting = threading.Lock()
        self._collected = False
        self._done = threading.Event()
        self._ranks: list[Rank] = []
        self._janitor: Janitor | None = None
        first = node_rank * spec.gang.ranks_per_node
        self._logs = LogKeeper(self._file(rank, "log") for rank in range(first, first + spec.gang.ranks_per_node))
        self._new_steps: list[StepRecord] = []
        self._new_resolved: dict[str, Any] | None = None
        self._new_claims: dict[int, Claim] = {}
        self._new_stacks: dict[int, str] = {}
        self._health: dict[str, Any] | None = None
        self._profile: dict[str, Any] | None = None
        self._sampler: HealthSampler | None = None
        if nvml is not None or spec.gang.device == "cuda":
            gpus = visible_gpus(spec.gang.ranks_per_node)
            self._sampler = HealthSampler(gpus, f"{FAMILY_VARIABLE}={self._marker}", nvml=nvml)
        self._why: Why | None = None
        self._message = ""
        self._started_s = self._ended_s = self._asked_s = time.monotonic()

    def start(self) -> None:
        """Start all ranks of this node and the watcher; returns at once.

        Raises:
            OSError: the work folder cannot be written or no process can be started; nothing is left running.
        """
        assert not self._ranks, "a NodeRanks runs once"
        self._work_dir.mkdir(parents=True, exist_ok=True)
        document = self._work_dir / "spec.json"
        document.write_text(self._spec.to_json(), encoding="utf-8")
        if self._fingerprint is not None:
            extensions = cache_variables(scratch(), self._fingerprint).get("TORCH_EXTENSIONS_DIR")
            if extensions is not None:
                forget_stale_locks(Path(extensions))
        argv = self._argv or rank_argv(self._spec.program, document)
        self._started_s = self._asked_s = time.monotonic()
        self._janitor = Janitor(self._marker)
        try:
            for local_rank in range(self._spec.gang.ranks_per_node):
                self._start_rank(local_rank, argv)
        except BaseException:
            self.kill()
            raise
        self._logs.start()
        if self._sampler is not None:
            self._sampler.start()
        threading.Thread(target=self._watch, name="rank-watcher", daemon=True).start()

    def poll(self) -> NodeStatus:
        """How things stand, with the steps that were reported since the last call; also the caller's sign of life."""
        with self._lock:
            self._asked_s = time.monotonic()
            self._look()
            self._sum_up_health()
            status = self._status()
            self._new_steps, self._new_resolved, self._new_claims = [], None, {}
            self._new_stacks, self._health, self._profile = {}, None, None
            return status

    def kill(self, why: Why = "cancelled", message: str = "cancelled", *, stacks: bool = False) -> bool:
        """Kill every rank and all its descendants, and reap; harmless when nothing lives any more.

        Args:
            why: Reason, unless the ranks are dying for another one already.
            message: One line for people that belongs to it.
            stacks: Whether to keep what every living rank is doing at this moment.

        Returns:
            Whether nothing of the gang is left on this node.
        """
        with self._lock:
            self._look()
            alive = [rank for rank in self._ranks if rank.process.returncode is None]
            if alive and self._why is None:
                self._why, self._message = why, message
            for rank in alive:
                rank.killed = True
        if stacks and alive:
            self._keep_stacks(alive)
        self._done.set()
        gone = kill_family(self._marker, [rank.process for rank in self._ranks])
        if gone and self._janitor is not None:
            self._janitor.dismiss()
        self._logs.stop()
        with self._lock:
            self._look()
        return gone

    def logs(self, rank: int, max_bytes: int = 1 << 20) -> str:
        """The last ``max_bytes`` of what a rank of this node printed; empty for other nodes' ranks."""
        return tail(self._file(rank, "log"), max_bytes)

    def _keep_stacks(self, alive: Sequence[Rank]) -> None:
        """Once; whoever else is about to kill waits for it."""
        with self._collecting:
            if not self._collected:
                self._collected = True
                mark = self._marker if self._spec.program == "command" else None
                found = collect({rank.rank: (rank.process.pid, rank.stacks) for rank in alive}, command_mark=mark)
                with self._lock:
                    self._new_stacks |= found

    def _start_rank(self, local_rank: int, argv: Sequence[str]) -> None:
        rank = self._node_rank * self._spec.gang.ranks_per_node + local_rank
        events = self._file(rank, "events.jsonl")
        for old in (events, self._file(rank, "stacks")):
            old.unlink(missing_ok=True)
        env = self._environment(rank, local_rank, events)
        binding = self._spec.settings.get("gpus_per_numa_node")
        try:
            words = numa_words(binding, env) if isinstance(binding, int) else []
        except PolicyError as error:
            raise OSError(error.message) from error
        with open_log(self._file(rank, "log")) as log:
            process = spawn([*words, *argv], env, stdout=log, stderr=log)
        self._ranks.append(Rank(rank, process, events, self._file(rank, "stacks")))

    def _environment(self, rank: int, local_rank: int, events: Path) -> dict[str, str]:
        """All variables of one rank, complete before its first import."""
        gang = self._spec.gang
        env = dict(os.environ)
        # Ray sets this to 1 in its workers, a shell does not: both kinds of gang must run the same.
        env["OMP_NUM_THREADS"] = str(max(1, len(os.sched_getaffinity(0)) // gang.ranks_per_node))
        if self._fingerprint is not None:
            env |= cache_variables(scratch(), self._fingerprint)
        env.update(self._spec.env)
        env |= {
            "PYTHONPATH": import_path(env.get("PYTHONPATH")),
            "RANK": str(rank),
            "LOCAL_RANK": str(local_rank),
            "WORLD_SIZE": str(gang.world_size),
            "LOCAL_WORLD_SIZE": str(gang.ranks_per_node),
            "MASTER_ADDR": self._master[0],
            "MASTER_PORT": str(self._master[1]),
            EVENTS_VARIABLE: str(events),
            STACKS_VARIABLE: str(self._file(rank, "stacks")),
            FAMILY_VARIABLE: self._marker,
        }
        return env

    def _watch(self) -> None:
        while not self._done.wait(_WATCH_INTERVAL_S):
            with self._lock:
                self._look()
                verdict = self._verdict()
                if verdict is None and self._status().ended:
                    return
            if verdict is not None:
                self.kill(*verdict, stacks=verdict[0] in ("deadline", "stall"))

    def _look(self) -> None:
        """Read new events and exit codes. Exit codes first, so that a dead rank's last words are all read."""
        now_s = time.monotonic()
        for rank in self._ranks:
            if rank.process.returncode is None:
                rank.process.poll()
                self._ended_s = now_s
            for event in rank.reader.read():
                rank.heard_s = now_s
                rank.take(event)
                record = step_record(event) if event["event"] == "step" else None
                if record is not None:
                    self._new_steps.append(record)
                if isinstance(event.get("resolved"), dict):
                    self._new_resolved = event["resolved"]
                if isinstance(event.get("profile"), dict):
                    self._profile = event["profile"]
                if isinstance(event.get("claim"), dict):
                    self._new_claims[rank.rank] = Claim((rank.rank,), event["claim"])  # its last one counts

    def _verdict(self) -> tuple[Why, str] | None:
        """Why the ranks must die now, if they must."""
        now_s = time.monotonic()
        living = [rank for rank in self._ranks if rank.process.returncode is None]
        for rank in self._ranks:
            if rank.process.returncode:
                return "rank_died", f"rank {rank.rank} {describe_exit(rank.process.returncode)}"
        if living and now_s - self._started_s > self._spec.deadline_s:
            return "deadline", f"rank {living[0].rank} still ran after {self._spec.deadline_s:g} s"
        for rank in living:
            if now_s - rank.heard_s > self._spec.stall_s:
                return "stall", rank.status().silence(self._spec.stall_s)
        if living and self._fence_s is not None and now_s - self._asked_s > self._fence_s:
            return "fence", f"nobody asked for these ranks for {self._fence_s:g} s"
        return None

    def _status(self) -> NodeStatus:
        return NodeStatus(
            node=self._node_rank,
            host=socket.gethostname(),
            ranks=tuple(rank.status() for rank in self._ranks),
            steps=tuple(self._new_steps),
            resolved=self._new_resolved,
            claims=merged(self._new_claims.values()),
            stacks=self._new_stacks,
            health=self._health,
            profile=self._profile,
            ended=all(rank.process.returncode is not None for rank in self._ranks),
            why=self._why,
            message=self._message,
            lifetime_s=self._ended_s - self._started_s,
        )

    def _sum_up_health(self) -> None:
        if self._sampler is not None and all(rank.process.returncode is not None for rank in self._ranks):
            self._health, self._sampler = self._sampler.stop(), None

    def _file(self, rank: int, suffix: str) -> Path:
        return self._work_dir / f"rank-{rank}.{suffix}"


def free_port(address: str = "") -> int:
    """A TCP port that was free a moment ago on this node."""
    with socket.socket() as probe:
        probe.bind((address, 0))
        return int(probe.getsockname()[1])
