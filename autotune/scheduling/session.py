"""A Ray cluster for the time of one run: a running one that is joined, or one of our own on this machine."""

import logging
import os
import shlex
import signal
import socket
import sys
import threading
import uuid
import warnings
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import RayError
from ray.job_config import JobConfig

from autotune.errors import ClusterError
from autotune.request import TuneRequest
from autotune.scheduling.address import check_answers
from autotune.scheduling.quarantine import FOLDER, quarantined, refuse_quarantined
from autotune.scheduling.ray_gang import RANK_RESOURCE
from autotune_trials.facts import gpu_names
from autotune_trials.processes import FAMILY_VARIABLE, Janitor

_OBJECT_STORE_BYTES = 128 << 20  # nothing large travels through Ray here


@dataclass(frozen=True)
class Session:
    """A Ray cluster that can run the gangs of one request.

    Attributes:
        dashboard_url: Address of the Ray dashboard; None when it does not run.
        node_ids: Ray nodes that can each hold one node's share of a gang.
        concurrency: Gangs that fit at the same time.
        hosts: Host names of these nodes.
    """

    dashboard_url: str | None
    node_ids: tuple[str, ...]
    concurrency: int
    hosts: tuple[str, ...] = ()


@contextmanager
def ray_session(request: TuneRequest, address: str) -> Iterator[Session]:
    """Join or start a Ray cluster, check that the gang fits, and leave it at the end.

    Leaving ends every actor of the run, and with it the ranks, however the run ended.

    Args:
        request: What is to run.
        address: ``local`` starts a cluster on this machine; ``auto`` joins a running one (``RAY_ADDRESS``, or one
            that was started here) and starts one otherwise; anything else is joined.

    Raises:
        ClusterError: no cluster at that address, an address for a gang that runs on this machine's CPUs only, or too
            few nodes or GPUs of the right kind.
    """
    logging.getLogger("ray").setLevel(logging.ERROR)
    if request.gang.device == "cpu" and address not in ("auto", "local"):
        raise ClusterError(
            f"cluster {request.cluster.name!r} is the CPUs of this machine, so nothing runs at --address {address}",
            hint="leave --address out, or name a cluster of GPUs",
        )
    with _no_orphans():
        context = _connect(request, address)
        try:
            nodes = _fitting_nodes(request)
            need = request.gang.num_nodes
            if len(nodes) < need:
                sick = ", ".join(node.host for node in quarantined(request.folder))
                raise ClusterError(
                    f"{needs(request)}, but the Ray cluster has {len(nodes)} such nodes"
                    + (f" outside quarantine ({sick})" if sick else ""),
                    hint=f"have them checked, then remove their files from {request.folder / FOLDER}"
                    if sick
                    else "see what would run with --dry-run",
                )
            url = context.dashboard_url
            yield Session(f"http://{url}" if url else None, nodes, max(1, len(nodes) // need), _hosts(nodes))
        finally:
            ray.shutdown()


@contextmanager
def _no_orphans() -> Iterator[None]:
    """Ray's agents live on for ever when the driver that started them is killed; a janitor ends them."""
    marker = uuid.uuid4().hex
    janitor = Janitor(marker)
    os.environ[FAMILY_VARIABLE] = marker  # inherited by the processes of a cluster that is started here
    try:
        yield
    finally:
        del os.environ[FAMILY_VARIABLE]
        janitor.dismiss()


@contextmanager
def joined(address: str) -> Iterator[tuple[str, ...]]:
    """A running Ray cluster, only to look at it: the ids of its living nodes.

    Args:
        address: ``auto`` (``RAY_ADDRESS``, or one that was started here) or ``HOST:PORT``.

    Raises:
        ClusterError: no cluster at that address.
    """
    logging.getLogger("ray").setLevel(logging.ERROR)
    if address != "auto":
        check_answers(address)
    try:
        _init(address=address, log_to_driver=False, logging_level="ERROR")
    except (ConnectionError, RayError, RuntimeError, ValueError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ClusterError(
            f"the Ray cluster at {address} cannot be joined: {reason}", hint="give --address HOST:PORT of the Ray head"
        ) from error
    try:
        yield tuple(sorted(str(node["NodeID"]) for node in ray.nodes() if node["Alive"]))
    finally:
        ray.shutdown()


def needs(request: TuneRequest) -> str:
    """What a gang of this request needs, in words."""
    gang, cluster = request.gang, request.cluster
    if gang.device == "cpu":
        return f"cluster {cluster.name!r} needs {gang.num_nodes} x {gang.ranks_per_node} ranks"
    domain = f", NVLink domains of {cluster.nvlink_domain_gpus}" if cluster.nvlink_domain_gpus > 1 else ""
    return (
        f"cluster {cluster.name!r} needs {gang.num_nodes} nodes x {gang.ranks_per_node} {cluster.accelerator} GPUs "
        f"({gang.world_size} in all{domain})"
    )


def _connect(request: TuneRequest, address: str) -> "ray.client_builder.ClientContext":
    job = JobConfig(metadata={"autotune_study": request.study, "autotune_model": request.model})
    options = {
        "namespace": f"autotune/{request.study}", "job_config": job, "log_to_driver": False, "logging_level": "ERROR",
    }  # fmt: skip
    if address not in ("local", "auto"):
        check_answers(address)
    if address != "local" and request.gang.device == "cuda":
        try:
            return _init(address=address, **options)
        except (ConnectionError, RayError, RuntimeError, ValueError) as error:
            if address != "auto":
                reason = str(error).strip().splitlines()[0]
                raise ClusterError(f"the Ray cluster at {address} cannot be joined: {reason}") from error
    _check_this_machine(request)
    return _init(
        address="local",
        resources={RANK_RESOURCE: request.gang.ranks_per_node} if request.gang.device == "cpu" else None,
        object_store_memory=_OBJECT_STORE_BYTES,
        include_dashboard=True,
        dashboard_host="127.0.0.1",
        # Ray starts a worker by a shell line in which it does not quote the interpreter. Where that matters, workers
        # cannot be started in advance, so nothing is said where it does not.
        runtime_env={"py_executable": quoted} if (quoted := shlex.quote(sys.executable)) != sys.executable else None,
        **options,
    )


def _init(**options: Any) -> "ray.client_builder.ClientContext":
    before = signal.getsignal(signal.SIGTERM)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Ray announces its own future changes; nothing a user of ours can act on
            return ray.init(**options)
    except SystemExit as ended:
        raise KeyboardInterrupt from ended  # SIGTERM, by Ray's own handler, while Ray is still starting
    finally:
        if callable(before) and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)  # Ray has put a handler of its own there


def _check_this_machine(request: TuneRequest) -> None:
    refuse_quarantined(request.folder, (socket.gethostname(),))
    gang = request.gang
    if gang.device == "cpu":
        if gang.num_nodes > 1:
            raise ClusterError(
                f"{needs(request)}, but this machine is one node",
                hint=f"ask for at most --gpus {request.cluster.gpus_per_node}",
            )
        return
    found = gpu_names()
    fitting = [name for name in found if (request.cluster.accelerator or "") in name]
    if gang.num_nodes > 1 or len(fitting) < gang.ranks_per_node:
        has = f"1 node with {len(found)} GPUs ({', '.join(sorted(set(found)))})" if found else "no GPU"
        raise ClusterError(
            f"{needs(request)}, but no Ray cluster runs here and this machine has {has}",
            hint="see what would run with --dry-run, or join a cluster with --address",
        )


def _hosts(node_ids: Collection[str]) -> tuple[str, ...]:
    return tuple(sorted(str(node["NodeManagerHostname"]) for node in ray.nodes() if node["NodeID"] in node_ids))


def _fitting_nodes(request: TuneRequest) -> tuple[str, ...]:
    gang, wanted = request.gang, request.cluster.accelerator
    nodes = []
    sick = {node.host for node in quarantined(request.folder)}
    for node in ray.nodes():
        resources, labels = node["Resources"], node.get("Labels") or {}
        if gang.device == "cpu":
            fits = resources.get(RANK_RESOURCE, 0) >= gang.ranks_per_node
        else:
            kinds = {labels.get("ray.io/accelerator-type", "")}
            kinds |= {name.partition(":")[2] for name in resources if name.startswith("accelerator_type:")}
            fits = resources.get("GPU", 0) >= gang.ranks_per_node and (
                wanted is None or any(wanted in kind for kind in kinds)
            )
        if node["Alive"] and fits and node["NodeManagerHostname"] not in sick:
            nodes.append(str(node["NodeID"]))
    return tuple(sorted(nodes))
