"""``autotune preflight``."""

import json
from collections.abc import Iterator
from dataclasses import asdict

import click

from autotune.cli import options
from autotune.cluster import load_cluster
from autotune.errors import ClusterError
from autotune.scheduling.preflight import Preflight, preflight_address, preflight_local
from autotune_policies.settings import DISPATCHERS
from autotune_trials.preflight.exchange import PERMUTE_FUSION
from autotune_trials.preflight.node import NodeReport

_SUBJECTS = (*DISPATCHERS, PERMUTE_FUSION)


@click.command("preflight")
@click.option("--cluster", metavar="NAME|FILE", help="Look under this cluster's environment.")
@click.option(
    "--address",
    default="local",
    show_default=True,
    metavar="auto|local|HOST:PORT",
    help="local = this machine, without Ray; else every node of that Ray cluster (auto = the one that runs here).",
)
@click.option("--fresh", is_flag=True, help="Look at everything again instead of trusting good verdicts from before.")
@options.as_json
def command(cluster: str | None, address: str, fresh: bool, as_json: bool) -> int:
    """What each node can run, and why not: every dispatcher, level by level, with the way out.

    Exit status 1 when the nodes differ, or no dispatcher can run on all of them.
    """
    env = load_cluster(cluster).env if cluster else None
    if address == "local":
        found = preflight_local(_SUBJECTS, env, cached=not fresh)
    else:
        found = preflight_address(address, _SUBJECTS, env, cached=not fresh)
    usable = [name for name in DISPATCHERS if name not in found.unavailable]
    difference, fingerprint = _agreement(found)
    if as_json:
        document = {
            "fingerprint": fingerprint, "difference": difference, "usable": usable,
            "unavailable": found.unavailable, "untried": found.untried, "pinned": found.pinned,
            "nodes": [{"host": node.host, **asdict(node)} for node in found.nodes],
        }  # fmt: skip
        print(json.dumps(document))
    else:
        for node in found.nodes:
            print("\n".join(_lines(node)))
        print(f"usable on {_all(found)}: {', '.join(usable) or 'nothing'}")
        if found.pinned:
            print("pinned: " + ", ".join(f"{name}={json.dumps(value)}" for name, value in found.pinned.items()))
        if difference:
            print(f"no study can run on these nodes together: {difference}")
    return 0 if usable and difference is None else 1


def _agreement(found: Preflight) -> tuple[str | None, str | None]:
    """How the nodes differ, and their common fingerprint where they do not."""
    try:
        return None, found.surroundings().fingerprint
    except ClusterError as error:
        return error.message, None


def _all(found: Preflight) -> str:
    return "this node" if len(found.nodes) == 1 else f"all {len(found.nodes)} nodes"


def _lines(node: NodeReport) -> Iterator[str]:
    facts = node.facts
    yield f"node {node.host}: {facts['cpu_count']} cores, GPUs: {', '.join(facts['gpus']) or 'none'}"
    yield "  stack       " + ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
    for finding in node.findings:
        yield f"  {finding.name:<11} {finding.state:<9} {finding.says}"
        if finding.fix:
            yield f"  {'':<11} {'fix:':<9} {finding.fix}"
    for name, verdict in node.verdicts.items():
        if verdict["available"] and verdict["untried"]:
            untried = "; ".join(f"{level}: {why}" for level, why in verdict["untried"].items())
            yield f"  {name:<14} available up to level {verdict['level']}; not tried: {untried}"
        elif verdict["available"]:
            yield f"  {name:<14} available"
        else:
            yield f"  {name:<14} no, at level {verdict['level']}: {verdict['error']}: {verdict['reason']}"
            if verdict["fix"]:
                yield f"  {'':<14} fix: {verdict['fix']}"
        if verdict["provider"]:
            yield f"  {'':<14} is {verdict['provider']}"
        for note in verdict["notes"]:
            yield f"  {'':<14} {note}"
