"""What each node is and which dispatchers it can run, found out before any trial."""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autotune.errors import ClusterError
from autotune.measure.surroundings import Surroundings
from autotune.request import TuneRequest
from autotune.scheduling.environment import prepare
from autotune_trials.facts import fingerprint
from autotune_trials.preflight.exchange import PERMUTE_FUSION
from autotune_trials.preflight.node import EXCHANGE_TIMEOUT_S, NodeReport, inspect_node
from autotune_trials.probe import MODULE_PREFIX
from autotune_trials.scratch import scratch

PROBE_TIMEOUT_S = 120.0
"""Importing a backend takes seconds; on a cold file system a minute. Longer is a hang."""

_ANSWER_MARGIN_S = 60.0
_PINS: Mapping[str, Mapping[str, Any]] = {PERMUTE_FUSION: {"permute_fusion": False}}
"""What a failure pins for every trial, the baseline included, since it is no failure of a dispatcher."""

_MUST_AGREE = ("versions", "gpus")


@dataclass(frozen=True)
class Preflight:
    """All nodes of a run.

    Attributes:
        nodes: In the order in which they were asked.
    """

    nodes: tuple[NodeReport, ...]

    @property
    def unavailable(self) -> dict[str, str]:
        """Reason by backend that at least one node cannot run: a gang may land on any of them."""
        return self._by_backend(
            (backend, f"{verdict['error']}: {verdict['reason']}", node.host)
            for node in self.nodes
            for backend, verdict in node.verdicts.items()
            if not verdict["available"]
        )

    @property
    def untried(self) -> dict[str, str]:
        """What could not be tried, by backend that nothing speaks against: it counts as available all the same."""
        unavailable = self.unavailable
        return self._by_backend(
            (backend, f"{level}: {why}", node.host)
            for node in self.nodes
            for backend, verdict in node.verdicts.items()
            for level, why in verdict["untried"].items()
            if backend not in unavailable
        )

    @property
    def pinned(self) -> dict[str, Any]:
        """Settings that every trial must have here, whatever its point says."""
        unavailable = self.unavailable
        return {
            name: value for subject, pins in _PINS.items() if subject in unavailable for name, value in pins.items()
        }

    def surroundings(self) -> Surroundings:
        """What the study needs to know of it.

        Raises:
            ClusterError: the nodes differ in software or GPUs, so that trials on them could not be compared.
        """
        first = self.nodes[0]
        for node in self.nodes[1:]:
            for name in _MUST_AGREE:
                if node.facts[name] != first.facts[name]:
                    ours, theirs = first.facts[name], node.facts[name]
                    raise ClusterError(
                        f"nodes differ in {name}: {ours} on {first.host}, but {theirs} on {node.host}",
                        hint="tune on equal nodes: make them alike, or take the others out of the Ray cluster",
                    )
        digests = sorted({fingerprint(node.facts) for node in self.nodes})
        digest = digests[0] if len(digests) == 1 else fingerprint({"nodes": digests})
        if self.pinned:  # the baseline is another one then, so nothing is comparable with what ran without the pin
            digest = fingerprint({"nodes": digests, "pinned": self.pinned})
        return Surroundings(digest, dict(first.facts["versions"]), self.unavailable, self.pinned)

    def _by_backend(self, told: Iterable[tuple[str, str, str]]) -> dict[str, str]:
        """One line for each backend, from backend, reason and host."""
        reasons: dict[str, dict[str, list[str]]] = {}
        for backend, reason, host in told:
            reasons.setdefault(backend, {}).setdefault(reason, []).append(host)
        return {backend: "; ".join(self._said(*item) for item in found.items()) for backend, found in reasons.items()}

    def _said(self, reason: str, hosts: Sequence[str]) -> str:
        if len(hosts) == len(self.nodes):
            return reason
        named = ", ".join(hosts[:3]) + (", ..." if len(hosts) > 3 else "")
        return f"{reason} (on {len(hosts)} of {len(self.nodes)} nodes: {named})"


def preflight_local(
    backends: Iterable[str],
    env: Mapping[str, str] | None = None,
    timeout_s: float = PROBE_TIMEOUT_S,
    *,
    cached: bool = True,
) -> Preflight:
    """Look at this machine.

    Args:
        backends: Dispatchers to probe.
        env: Variables that trials get.
        timeout_s: A probe that takes longer is a hang.
        cached: Whether a good verdict from an earlier look will do.
    """
    return Preflight((_look(list(backends), dict(env or {}), timeout_s, cached),))


def preflight_nodes(
    node_ids: Sequence[str],
    backends: Iterable[str],
    env: Mapping[str, str] | None = None,
    timeout_s: float = PROBE_TIMEOUT_S,
    *,
    cached: bool = True,
) -> Preflight:
    """Look at nodes of the connected Ray cluster, all at the same time.

    Args:
        node_ids: Ray node ids.
        backends: Dispatchers to probe.
        env: Variables that trials get.
        timeout_s: A probe that takes longer is a hang.
        cached: Whether a good verdict from an earlier look will do.

    Raises:
        ClusterError: a node does not answer.
    """
    import ray
    from ray.exceptions import RayError
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    look = ray.remote(num_cpus=0, max_retries=0)(_look)
    subjects = list(backends)
    arguments = (subjects, dict(env or {}), timeout_s, cached)
    longest_s = timeout_s + _ANSWER_MARGIN_S + EXCHANGE_TIMEOUT_S * len(subjects)
    answers = [
        look.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node_id, soft=False)).remote(*arguments)
        for node_id in node_ids
    ]
    reports = []
    for node_id, answer in zip(node_ids, answers, strict=True):
        try:
            reports.append(ray.get(answer, timeout=longest_s))
        except RayError as error:
            lines = str(error).strip().splitlines() or [""]
            raise ClusterError(
                f"node {node_id} did not answer the preflight: {type(error).__name__}: {lines[-1]}",
                hint="see its log in the Ray dashboard, or take the node out of the Ray cluster",
            ) from error
    return Preflight(tuple(reports))


def preflight_address(
    address: str, backends: Iterable[str], env: Mapping[str, str] | None = None, *, cached: bool = True
) -> Preflight:
    """Look at every node of a running Ray cluster, which is joined for as long as that takes.

    Args:
        address: ``auto`` or ``HOST:PORT``.
        backends: Dispatchers to probe.
        env: Variables that trials get.
        cached: Whether a good verdict from an earlier look will do.

    Raises:
        ClusterError: no cluster at that address, or a node does not answer.
    """
    prepare()
    from autotune.scheduling.session import joined

    with joined(address) as node_ids:
        return preflight_nodes(node_ids, backends, env, cached=cached)


def preflight_ray(request: TuneRequest, node_ids: Sequence[str]) -> Surroundings:
    """Look at the nodes for one study: every dispatcher that its space can ask for, and its recipe's modules.

    Raises:
        ClusterError: a node does not answer, or the nodes differ.
    """
    probed = [*backends_of(request), *modules_of(request), *fusions_of(request)]
    return preflight_nodes(node_ids, probed, request.cluster.env).surroundings()


def backends_of(request: TuneRequest) -> list[str]:
    """The dispatchers that the space can ask for, the baseline's among them."""
    values: list[Any] = [request.space.fixed.get("dispatcher"), request.space.baseline.get("dispatcher")]
    for parameter in request.space.parameters:
        if parameter.name == "dispatcher":
            values += parameter.choices
    return list(dict.fromkeys(value for value in values if isinstance(value, str)))


def fusions_of(request: TuneRequest) -> list[str]:
    """The fused permutation, if any point of the space can ask for it."""
    space = request.space
    fixed = [space.baseline, *space.seeds, space.fixed, request.cluster.fixed]
    values = [given.get("permute_fusion") for given in fixed]
    values += [value for each in space.parameters if each.name == "permute_fusion" for value in each.choices]
    return [PERMUTE_FUSION] if True in values else []


def modules_of(request: TuneRequest) -> list[str]:
    """What a bridge trial must be able to import, as the probe names it."""
    return [f"{MODULE_PREFIX}{name}" for name in request.recipe.modules] if request.recipe is not None else []


def _look(backends: list[str], env: dict[str, str], timeout_s: float, cached: bool) -> NodeReport:
    """One node, seen from itself."""
    if os.environ.get("CUDA_VISIBLE_DEVICES") == "":
        del os.environ["CUDA_VISIBLE_DEVICES"]  # Ray hides GPUs from a task that holds none; trials will have them
    return inspect_node(backends, env, timeout_s, scratch(), cached=cached)
