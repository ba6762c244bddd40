"""One node, seen from itself: what it is, what its devices say, and what it can run."""

import os
import socket
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from autotune_policies.backends import BACKENDS
from autotune_policies.surroundings import topology_of
from autotune_trials.caches import cache_variables
from autotune_trials.facts import Facts, fingerprint, node_facts
from autotune_trials.preflight import devices, nvml
from autotune_trials.preflight.cache import VerdictCache
from autotune_trials.preflight.devices import Finding
from autotune_trials.preflight.exchange import EXCHANGES, PERMUTE_FUSION
from autotune_trials.preflight.process import Answer, Probe, await_all, variables_for
from autotune_trials.preflight.stamps import library_files
from autotune_trials.preflight.verdict import Verdict, verdict
from autotune_trials.probe import probe_all
from autotune_trials.visible import count_visible

EXCHANGE_TIMEOUT_S = 180.0
"""DeepEP and HybridEP wait about 100 s for a lost peer before they say so; a first compilation takes a minute."""

_DEVICES_TIMEOUT_S = 60.0
_DEVICES = "devices"
_EXCHANGE_RANKS = 2


@dataclass(frozen=True)
class NodeReport:
    """One node.

    Attributes:
        facts: What it is.
        verdicts: What the probe of each backend found there.
        findings: What its GPUs, its network and its device files mean.
        gpus: What NVML says of each of its GPUs, as :class:`~autotune_trials.preflight.nvml.Gpu` has it.
    """

    facts: Facts
    verdicts: Mapping[str, Verdict]
    findings: tuple[Finding, ...] = ()
    gpus: tuple[Mapping[str, Any], ...] = ()

    @property
    def host(self) -> str:
        """Its host name."""
        return str(self.facts["host"])


def inspect_node(
    subjects: Iterable[str],
    env: Mapping[str, str],
    timeout_s: float,
    scratch: Path | None = None,
    *,
    cached: bool = True,
) -> NodeReport:
    """Look at this machine.

    Args:
        subjects: Dispatchers, modules and :data:`~autotune_trials.preflight.exchange.PERMUTE_FUSION`.
        env: Variables that trials get.
        timeout_s: A level that takes longer is a hang; an exchange has its own, longer time.
        scratch: Node-local folder for compile caches, as trials have them, and for good verdicts; None = neither.
        cached: Whether a good verdict from an earlier look will do.
    """
    names = list(dict.fromkeys(subjects))
    facts, trouble = _facts()
    full_env = {**(cache_variables(scratch, fingerprint(facts)) if scratch is not None else {}), **env}
    seen = _look_at_devices(full_env) if trouble is None else _Seen(0, (trouble,))
    cache = None
    if scratch is not None and seen.libraries is not None:
        steady = [asdict(finding) for finding in seen.findings if finding.name != "neighbours"]
        depends_on = {
            "facts": facts, "findings": steady, "env": dict(env), "usable": seen.usable, "files": seen.libraries,
        }  # fmt: skip
        cache = VerdictCache(scratch / "preflight", depends_on)
    known = {name: kept for name in names if cache and cached and (kept := cache.get(name)) is not None}
    fresh = probe_all([name for name in names if name not in known], full_env, timeout_s)
    for name in fresh:
        fresh[name] = _with_exchange(fresh[name], seen.usable, full_env)
        if cache:
            cache.keep(fresh[name])
    verdicts = {**known, **fresh}
    return NodeReport(facts, {name: verdicts[name] for name in names}, seen.findings, seen.gpus)


def _with_exchange(passed: Verdict, gpus: int, env: Mapping[str, str]) -> Verdict:
    """The verdict of the levels, carried on by an exchange on GPUs where there are any."""
    name = str(passed["backend"])
    if name not in EXCHANGES or not passed["available"]:
        return passed
    level = "permute" if name == PERMUTE_FUSION else "exchange"
    ranks = 1 if name == PERMUTE_FUSION else min(_EXCHANGE_RANKS, gpus)
    least = _EXCHANGE_RANKS if name in BACKENDS and BACKENDS[name].flex else 1
    if gpus < least:
        return {**passed, "untried": {level: f"GPUs that can be used here: {gpus}, needed: {least}"}}
    found = run_exchange(name, ranks, env)
    return {
        **passed,
        **{word: found[word] for word in ("available", "reason", "error", "fix", "level")},
        "seconds": round(passed["seconds"] + found["seconds"], 3),
    }


def run_exchange(name: str, ranks: int, env: Mapping[str, str], timeout_s: float = EXCHANGE_TIMEOUT_S) -> Verdict:
    """A tiny exchange between so many processes of this node; the verdict is that of the first rank that failed."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    # The cluster's variables may speak of the domain of a whole study; here a domain is these ranks.
    group = {"dispatcher": name, "expert_parallel": ranks, "expert_tensor_parallel": 1}
    topology = topology_of(group, nvlink_domain_gpus=ranks, gpus_per_node=ranks)
    shared = {
        **variables_for(name, env),
        **topology,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
        "WORLD_SIZE": str(ranks),
    }
    probes = [
        Probe(
            name,
            ["autotune_trials.preflight.exchange", name],
            {**shared, "RANK": str(rank), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(ranks)},
            level="permute" if name == PERMUTE_FUSION else "exchange",
        )
        for rank in range(ranks)
    ]
    found = await_all(probes, timeout_s, together=True)
    # A rank that still waits for one that failed only looks like a hang.
    bad = [each for each in found if not each["available"]]
    return next((each for each in bad if each["error"] != "Hang"), bad[0] if bad else found[0])


class _Seen(NamedTuple):
    """What a look at the devices showed: GPUs that trials may use, findings, readings, digest of the libraries."""

    usable: int
    findings: tuple[Finding, ...]
    gpus: tuple[Mapping[str, Any], ...] = ()
    libraries: str | None = None


def _facts() -> tuple[Facts, Finding | None]:
    """What the node is, and what is wrong where its GPUs cannot be asked for."""
    answer = _ask("facts", {})
    return (answer["facts"], None) if answer["available"] else (node_facts(ask_driver=False), _trouble(answer))


def _look_at_devices(env: Mapping[str, str]) -> _Seen:
    answer = _ask("devices", env)
    if not answer["available"]:
        return _Seen(0, (_trouble(answer),))
    findings = tuple(Finding(**finding) for finding in answer["findings"])
    return _Seen(int(answer["usable"]), findings, tuple(answer["gpus"]), answer["libraries"])


def _ask(part: str, env: Mapping[str, str]) -> Verdict:
    """In a process of its own: a driver in trouble hangs whoever asks."""
    [answer] = await_all([Probe(_DEVICES, ["autotune_trials.preflight.node", part], env, _DEVICES)], _DEVICES_TIMEOUT_S)
    return answer


def _trouble(answer: Verdict) -> Finding:
    return Finding(_DEVICES, "fail", f"{answer['error']}: {answer['reason']}", "see dmesg and nvidia-smi")


def main() -> None:
    """Print what this node is, or what its devices say, as one JSON line."""
    [part] = sys.argv[1:]
    answer = Answer()
    answer.reached(_DEVICES)
    told = {"facts": node_facts()} if part == "facts" else _devices()
    answer.finish({**verdict(_DEVICES, 0.0, level=_DEVICES), **told})


def _devices() -> dict[str, Any]:
    gpus, absence = nvml.look()
    findings = devices.gpu_findings(gpus, absence) + (devices.network_findings() if gpus else ())
    return {
        "usable": count_visible(os.environ.get("CUDA_VISIBLE_DEVICES"), [gpu.uuid for gpu in gpus]),
        "findings": [asdict(finding) for finding in findings],
        "gpus": [asdict(gpu) for gpu in gpus],
        "libraries": library_files(),
    }


if __name__ == "__main__":
    main()
