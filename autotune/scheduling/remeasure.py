"""Runs given trials one after another on the same nodes: for comparing, not for searching."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from itertools import count
from pathlib import Path

import ray
from ray.tune import PlacementGroupFactory
from ray.util import remove_placement_group
from ray.util.placement_group import PlacementGroup

from autotune.errors import ClusterError, RunError
from autotune.files import write_atomically
from autotune.measure.outcome import TrialOutcome, TrialState
from autotune.measure.surroundings import Surroundings
from autotune.request import TuneRequest
from autotune.scheduling.preflight import preflight_ray
from autotune.scheduling.quarantine import quarantined, refuse_quarantined, study_folder
from autotune.scheduling.ray_gang import RayGang
from autotune.scheduling.session import ray_session
from autotune.scheduling.trainable import execute, placement
from autotune_trials.spec import TrialSpec

_PLACEMENT_TIMEOUT_S = 600.0
_MOST_LOST = 3


def measure_in_turns(
    request: TuneRequest,
    specs: Sequence[TrialSpec],
    *,
    address: str,
    on_ready: Callable[[Surroundings], None] = lambda _: None,
    on_end: Callable[[TrialOutcome], None] = lambda _: None,
) -> tuple[Surroundings, list[TrialOutcome]]:
    """Run trials in the given order, all in one placement group, so that they share nodes.

    A lost or disturbed trial is run again; each leaves its record in its folder of the request.

    Args:
        request: Cluster, gang and folder.
        specs: What to run; all have the request's gang.
        address: Which Ray cluster.
        on_ready: Called with what was found on the nodes, before anything is launched; may raise to stop.
        on_end: Called with every outcome.

    Raises:
        ClusterError: the machines cannot run them, or a dispatcher cannot be used here.
        RunError: one trial was lost or disturbed too often.
    """
    with ray_session(request, address) as session:
        surroundings = preflight_ray(request, session.node_ids)
        for backend, reason in surroundings.unavailable.items():
            raise ClusterError(
                f"{backend} cannot be used here: {reason}",
                hint="alltoall and allgather need pip install 'moe-autotune[trial]' on every node",
            )
        on_ready(surroundings)
        with shared_group(placement({"spec": asdict(specs[0])})) as group:
            outcomes = []
            for spec in specs:
                folder = request.trial_folder(spec.trial)
                outcomes.append(measure_again(spec, folder, surroundings.fingerprint, group, on_end))
                if outcomes[-1].state.runs_again:
                    refuse_quarantined(study_folder(folder), outcomes[-1].hosts)
    return surroundings, outcomes


@contextmanager
def shared_group(wanted: PlacementGroupFactory) -> Iterator[PlacementGroup]:
    """A placement group that several runs use one after another, so that they share nodes.

    Raises:
        ClusterError: no room for it.
    """
    group = wanted.to_placement_group()
    try:
        if not group.wait(timeout_seconds=_PLACEMENT_TIMEOUT_S):
            raise ClusterError(
                f"no room for {wanted.required_resources} in {_PLACEMENT_TIMEOUT_S:g} s",
                hint="others use the Ray cluster; try again when they are done",
            )
        yield group
    finally:
        if ray.is_initialized():
            remove_placement_group(group)


def fresh(folder: Path) -> None:
    """Make a folder for a run; one that holds an ended run is kept beside it as ``<name>.1``, ``<name>.2``, ...

    What a run has cost is only known from its record, whether or not it says anything else.
    """
    if (folder / "outcome.json").exists():
        folder.rename(next(beside for beside in _beside(folder) if not beside.exists()))
    folder.mkdir(parents=True, exist_ok=True)


def _beside(folder: Path) -> Iterator[Path]:
    return (folder.with_name(f"{folder.name}.{number}") for number in count(1))


def measure_again(
    spec: TrialSpec,
    folder: Path,
    fingerprint: str,
    group: PlacementGroup,
    on_end: Callable[[TrialOutcome], None] = lambda _: None,
    *,
    settle: Callable[[TrialOutcome], TrialOutcome] = lambda outcome: outcome,
) -> TrialOutcome:
    """Run one trial in a placement group; one that was lost or disturbed is run again, and a crash or hang once.

    Args:
        spec: What to run.
        folder: Where it leaves its record; that of a run before it is kept beside it.
        fingerprint: Key of the compile caches.
        group: Where it runs.
        on_end: Called with every outcome.
        settle: What is made of an outcome beside others; it stands in the record too.

    Returns:
        How it ended; one that is to be run again only where a node of the group is in quarantine by now.

    Raises:
        RunError: it was lost or disturbed too often.
    """
    for attempt in range(_MOST_LOST):
        fresh(folder)
        raw = execute(RayGang(fingerprint=fingerprint, placement_group=group), spec, folder)
        outcome = settle(raw)
        if outcome != raw:
            write_atomically(folder / "outcome.json", json.dumps(outcome.to_dict(), indent=1).encode())
        on_end(outcome)
        first_sighting = attempt == 0 and outcome.state is TrialState.INFEASIBLE and outcome.retry == "elsewhere"
        sick = {node.host for node in quarantined(study_folder(folder))}
        if not (outcome.state.runs_again or first_sighting) or sick.intersection(outcome.hosts):
            return outcome
    raise RunError(f"run {spec.trial} was {outcome.state} {_MOST_LOST} times, at last because {outcome.reason}")
