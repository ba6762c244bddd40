"""The life of one rank of a bridge trial: build the recipe, apply the trial, train under watch, report."""

import json
import os
import sys
from pathlib import Path
from typing import Any

from autotune_policies.megatron_bridge import read_container
from autotune_policies.resolved import read_resolved
from autotune_trials.bridge.recipe import configured, named, releases
from autotune_trials.events import EventWriter
from autotune_trials.native.memory import PeakMemory
from autotune_trials.native.rank import import_megatron, refused_by_megatron
from autotune_trials.spec import TrialSpec

CONTAINER_FILE = "ConfigContainer.yaml"


def run(spec: TrialSpec, document: Path, events: EventWriter) -> None:
    """Train as the specification says and write the events.

    Raises:
        Rejected: the configuration was refused before the first step.
        Exception: whatever ended the training.
    """
    recipe = spec.recipe
    assert recipe is not None, "a bridge trial has a recipe"
    import_megatron(spec)
    from autotune_trials.bridge.watch import Watch

    container = document.with_name(CONTAINER_FILE)
    with refused_by_megatron():
        config = configured(spec, container)
    _start_again_with(getattr(config, "env_vars", None) or {}, document)
    entry, forward_step = named(recipe.entry), named(recipe.forward_step)
    memory = PeakMemory(spec.gang.device)
    events.write("imported", rss_bytes=memory.rss_bytes)
    watch = Watch(spec, events)
    try:
        entry(config, forward_step, callbacks=[watch])
    except Exception as error:
        if watch.steps:
            raise
        with refused_by_megatron():
            raise error
    proof = watch.proof()
    if proof is not None and container.exists():
        proof = _with_container(proof, container, spec, recipe.entry)
    profiled = watch.profiled()
    events.write(
        "finished",
        steps=watch.steps,
        peak_memory_bytes=memory.peak_bytes(),
        peak_memory_kind=memory.kind,
        claim=watch.claim(),
        **({"resolved": proof} if proof is not None else {}),
        **({"profile": profiled} if profiled else {}),
    )


def _start_again_with(variables: dict[str, Any], document: Path) -> None:
    """The recipe's own variables must be set before the first import, and only building the recipe shows them."""
    missing = {name: str(value) for name, value in variables.items() if value is not None and name not in os.environ}
    if missing:
        sys.stdout.flush()
        sys.stderr.flush()
        command = [sys.executable, "-m", "autotune_trials.bridge", "--spec", str(document)]
        os.execve(sys.executable, command, {**os.environ, **missing})  # noqa: S606


def _with_container(proof: dict[str, Any], path: Path, spec: TrialSpec, entry: str) -> dict[str, Any]:
    """The proof, with what the saved configuration says otherwise: a fallback inside Bridge shows there."""
    container = read_resolved(path)
    core, bridge = releases(entry)
    saved = read_container(container, megatron_core=core, megatron_bridge=bridge)
    other = {name: value for name, value in saved.items() if name in spec.settings and value != spec.settings[name]}
    return {
        **proof,
        "settings": {**proof["settings"], **other},
        "container": json.loads(json.dumps(container, default=str)),
    }
