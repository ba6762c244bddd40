"""``autotune preflight``."""

import json
from dataclasses import asdict

import click

from autotune.cli import options
from autotune.cluster import load_cluster
from autotune.scheduling.preflight import preflight_local
from autotune_policies.settings import DISPATCHERS


@click.command("preflight")
@click.option("--cluster", metavar="NAME|FILE", help="Probe under this cluster's environment.")
@options.as_json
def command(cluster: str | None, as_json: bool) -> None:
    """What this machine can run, and why not: every dispatcher, probed with the imports that Megatron-Core does."""
    found = preflight_local(DISPATCHERS, load_cluster(cluster).env if cluster else None)
    [node] = found.nodes
    if as_json:
        print(json.dumps({"fingerprint": found.surroundings().fingerprint, "nodes": [asdict(node)]}))
        return
    facts = node.facts
    print(f"node {node.host}: {facts['cpu_count']} cores, GPUs: {', '.join(facts['gpus']) or 'none'}")
    print("stack: " + ", ".join(f"{name} {version}" for name, version in facts["versions"].items()))
    for backend in DISPATCHERS:
        print(f"{backend:<10} {found.unavailable.get(backend, 'available')}")
