"""The program of one trial as Ray Tune sees it."""

import json
import math
import socket
import traceback
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import ray
import yaml
from ray import tune

from autotune.errors import AutotuneError, ClusterError
from autotune.files import write_atomically
from autotune.measure.disturbance import sick_nodes
from autotune.measure.outcome import TrialOutcome, judge
from autotune.measure.run import GangRun
from autotune.scheduling.gang import Gang, run_gang
from autotune.scheduling.quarantine import (
    FOLDER,
    excluded_nodes,
    label_selector,
    put_in_quarantine,
    quarantined,
    study_folder,
)
from autotune.scheduling.ray_gang import RayGang, node_bundle
from autotune_trials.events import StepRecord
from autotune_trials.spec import TrialSpec, spec_from

_LOG_BYTES = 1 << 20
_MOST_LOGS = 8


def placement(config: Mapping[str, Any]) -> tune.PlacementGroupFactory:
    """Where a trial runs: an empty head bundle for the trainable and one bundle per node of its gang.

    All gangs of one shape get equal requests, so that Tune hands the placement group and the trainable on.
    """
    spec = spec_from(config["spec"])
    # Named after the study, not the trial: a name of its own would cost each trial a new group and a new worker.
    strategy = "STRICT_SPREAD" if spec.gang.num_nodes > 1 else "PACK"
    bundles = [{}, *[node_bundle(spec)] * spec.gang.num_nodes]
    selector = label_selector(_kept_off(config, spec), spec.gang.num_nodes)
    # Without a selector none is given: it would make another request of what is the same.
    more = {"bundle_label_selector": selector} if selector else {}
    return tune.PlacementGroupFactory(bundles, strategy=strategy, name=spec.study, **more)


def _kept_off(config: Mapping[str, Any], spec: TrialSpec) -> list[str]:
    """Ids of the nodes that the gang must not run on: those in quarantine, and where its settings failed before.

    Where too few others are left it may run where it failed before; too few without those in quarantine end the run.
    """
    if "trial_dir" not in config:
        return []
    sick = [node.host for node in quarantined(study_folder(Path(config["trial_dir"])))]
    avoided = list(config.get("avoid_hosts", ()))
    if not sick and not avoided:
        return []
    nodes = _able(spec)
    for hosts in ([*sick, *avoided], sick):
        excluded = excluded_nodes(nodes, hosts)
        if len(nodes) - len(excluded) >= spec.gang.num_nodes:
            return excluded
    return []


def _able(spec: TrialSpec) -> list[dict[str, Any]]:
    """The living nodes that can hold a node's share of the gang; a head without GPUs is none of them."""
    bundle = node_bundle(spec)
    return [
        node
        for node in ray.nodes()
        if node["Alive"] and all(node["Resources"].get(name, 0) >= share for name, share in bundle.items())
    ]


def require_healthy(spec: TrialSpec, study: Path) -> None:
    """Tune would wait for ever for nodes that are not there, so the gang was placed anywhere.

    Raises:
        ClusterError: too few nodes are left outside quarantine.
    """
    sick = quarantined(study)
    if not sick:
        return
    nodes = _able(spec)
    out = excluded_nodes(nodes, [node.host for node in sick])
    if len(nodes) - len(out) < spec.gang.num_nodes:
        raise ClusterError(
            f"{spec.gang.num_nodes} nodes are needed, but {len(out)} of {len(nodes)} are in quarantine: "
            + "; ".join(f"{node.host}: {node.reason}" for node in sick),
            hint=f"have them checked, then remove their files from {study / FOLDER}",
        )


def run_trial(config: Mapping[str, Any]) -> None:
    """Run one trial, write its record into its folder and report its outcome to Tune as JSON text.

    Text, because Tune flattens nested mappings on the way to the searcher.

    Args:
        config: ``spec`` (a TrialSpec as a mapping), ``trial_dir`` (its folder, visible from here) and optionally
            ``fingerprint`` (key of the compile caches), ``argv`` (program of a rank) and ``avoid_hosts`` (where the
            same settings failed before).

    What goes wrong outside the gang (the folder cannot be seen, a bug) is reported as ``failure`` with a ``hint``.
    """
    try:
        spec = spec_from(config["spec"])
        require_healthy(spec, study_folder(Path(config["trial_dir"])))
        gang = RayGang(argv=config.get("argv"), fingerprint=config.get("fingerprint"))
        outcome = execute(gang, spec, Path(config["trial_dir"]))
    # Tune would keep these to itself: the driver would learn only that the trial failed.
    except AutotuneError as error:
        tune.report({"failure": error.message, "hint": error.hint})
    except OSError as error:
        tune.report({"failure": f"the trial's record cannot be written: {error}", "hint": "see the study's folder"})
    except Exception:
        tune.report({"failure": traceback.format_exc(), "hint": "this is a bug; its traceback is above"})
    else:
        # As text: Tune flattens mappings on their way to the searcher.
        tune.report({"outcome": json.dumps(outcome.to_dict())})


def execute(gang: Gang, spec: TrialSpec, folder: Path) -> TrialOutcome:
    """Run one trial on a gang and leave its record in the folder.

    ``spec.json`` is there before the launch, ``steps.jsonl`` grows with the steps, ``outcome.json`` comes last: a
    folder that has it is complete. A profiled run leaves ``profile.json`` too.

    Raises:
        ClusterError: the folder cannot be seen from this node.
    """
    if not folder.is_dir():
        raise ClusterError(
            f"the trial folder {folder} cannot be seen from node {socket.gethostname()}",
            hint="put --home on a file system that all nodes share",
        )
    write_atomically(folder / "spec.json", spec.to_json().encode())
    try:
        with (folder / "steps.jsonl").open("w", encoding="utf-8", buffering=1) as steps:
            run = run_gang(gang, spec, on_step=lambda record: _append(steps, record))
        write_atomically(folder / "node-0.log", _logs(gang, run).encode())
        if run.stacks:
            write_atomically(folder / "stacks.txt", _stacks(run).encode())
    finally:
        gang.close()
    if run.resolved is not None:
        run = _with_container_beside(run, run.resolved, folder)
        write_atomically(folder / "resolved.yaml", yaml.safe_dump(run.resolved, sort_keys=False).encode())
    if run.profile is not None:
        write_atomically(folder / "profile.json", json.dumps(dict(run.profile), indent=1).encode())
    outcome = judge(spec, run)
    put_in_quarantine(study_folder(folder), sick_nodes(run), spec.trial)
    write_atomically(folder / "outcome.json", json.dumps(outcome.to_dict(), indent=1).encode())
    return outcome


def _with_container_beside(run: GangRun, resolved: Mapping[str, Any], folder: Path) -> GangRun:
    """The run with a ConfigContainer that a recipe saved in a file of its own: it is long, and others read it."""
    container = resolved.get("container")
    if container is not None:
        write_atomically(folder / "ConfigContainer.yaml", yaml.safe_dump(container, sort_keys=False).encode())
    return replace(run, resolved={name: value for name, value in resolved.items() if name != "container"})


def _stacks(run: GangRun) -> str:
    """What every rank was doing when its time was up, each under a heading."""
    return "".join(f"==> rank {rank} <==\n{text}\n" for rank, text in sorted(run.stacks.items()))


def _append(file: Any, record: StepRecord) -> None:
    """One line of steps.jsonl; what JSON cannot say is written as ``"nan"`` and ``"inf"``."""
    values = asdict(record).items()
    plain = {name: value if math.isfinite(value) else str(value) for name, value in values}
    file.write(json.dumps(plain) + "\n")


def _logs(gang: Gang, run: GangRun) -> str:
    """What rank 0 and the ranks that failed by themselves printed, each under a heading and cut at the front."""
    wanted = [rank for rank in run.ranks if rank.rank == 0 or (rank.exit_code and not rank.killed)]
    parts = [f"==> rank {rank.rank} <==\n{gang.logs(rank.rank, _LOG_BYTES)}\n" for rank in wanted[:_MOST_LOGS]]
    return "".join(parts)
