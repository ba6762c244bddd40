"""Nodes on which something is broken: a list in the study's folder that placing gangs honours.

One file per host, so that trials that end at the same time do not overwrite each other, and so that whoever has looked
at a node takes it back by removing its file.
"""

import json
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from autotune.errors import ClusterError
from autotune.files import write_atomically
from autotune.measure.disturbance import Sick

FOLDER = "quarantine"


@dataclass(frozen=True)
class Quarantined:
    """One node in quarantine.

    Attributes:
        host: Its host name.
        reason: What was counted there, on one line.
        trial: The trial during which it was seen.
        since: Unix time.
    """

    host: str
    reason: str
    trial: int
    since: float


def put_in_quarantine(study: Path, sick: Iterable[Sick], trial: int) -> None:
    """Add nodes to the list; the first reason of a host stays.

    Raises:
        OSError: the folder cannot be written.
    """
    for node in sick:
        path = _path(study, node.host)
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            entry = {"host": node.host, "reason": node.reason, "trial": trial, "since": time.time()}
            write_atomically(path, json.dumps(entry).encode())


def study_folder(trial_folder: Path) -> Path:
    """The study's folder above a trial's: the one that holds the request."""
    return next((folder for folder in trial_folder.parents if (folder / "request.yaml").exists()),
                trial_folder.parent.parent)  # fmt: skip


def quarantined(study: Path) -> tuple[Quarantined, ...]:
    """The list, by host name; a file that says nothing readable still holds its host."""
    return tuple(_entry(path) for path in sorted((study / FOLDER).glob("*.json")))


def refuse_quarantined(study: Path, hosts: Collection[str]) -> None:
    """Refuse to run on hosts of which one is in quarantine.

    Raises:
        ClusterError: naming the file to remove when the host was looked at.
    """
    for node in quarantined(study):
        if node.host in hosts:
            raise ClusterError(
                f"node {node.host} is in quarantine: {node.reason}",
                hint=f"have it checked, then remove {_path(study, node.host)}",
            )


def excluded_nodes(nodes: Iterable[dict[str, Any]], hosts: Iterable[str]) -> list[str]:
    """Ids of the Ray nodes on these hosts.

    Args:
        nodes: What ``ray.nodes()`` says.
        hosts: Host names.
    """
    wanted = set(hosts)
    return sorted(str(node["NodeID"]) for node in nodes if node["Alive"] and node["NodeManagerHostname"] in wanted)


def label_selector(node_ids: Iterable[str], bundles: int) -> list[dict[str, str]]:
    """A placement group's selector that keeps every bundle off these nodes; empty when there are none."""
    ids = ",".join(sorted(node_ids))
    return [{"ray.io/node-id": f"!in({ids})"}] * bundles if ids else []


def _path(study: Path, host: str) -> Path:
    return study / FOLDER / f"{quote(host, safe='')}.json"


def _entry(path: Path) -> Quarantined:
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        return Quarantined(str(raw["host"]), str(raw["reason"]), int(raw["trial"]), float(raw["since"]))
    except (OSError, ValueError, KeyError, TypeError):
        return Quarantined(path.stem, f"see {path}", 0, 0.0)
