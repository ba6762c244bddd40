"""The words of a command, with the trial filled in."""

import importlib.metadata
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from autotune_policies.surroundings import LAUNCH_SETTINGS
from autotune_trials.programs import fill, placeholders
from autotune_trials.spec import TrialSpec

RESOLVED_FILE = "ConfigContainer.yaml"
"""Name, in the work folder of rank 0's node, of the configuration that the program may save."""


class CannotFill(Exception):  # noqa: N818 - reads as what it is
    """A placeholder has no value here; the message is one line."""


def command_line(spec: TrialSpec, work_dir: Path, environment: Mapping[str, str]) -> list[str]:
    """Program and arguments of this rank.

    Args:
        spec: A command trial.
        work_dir: Folder for the files that placeholders name.
        environment: The launch variables.

    Raises:
        CannotFill: the words need a release that is not installed.
        PolicyError: the installed release cannot express a setting.
    """
    assert spec.command is not None, "a command trial has a command"
    words = spec.command.words
    return fill(words, {name: _value(name, spec, work_dir, environment) for name in placeholders(words)})


def _value(name: str, spec: TrialSpec, work_dir: Path, environment: Mapping[str, str]) -> str | Sequence[str]:
    if name == "arguments":
        from autotune_policies.megatron_lm import arguments_of

        balanced = ["--moe-router-force-load-balancing"] if forces_balance(spec) else []
        return [*arguments_of(spec.settings, release("megatron-core")), *balanced]
    if name == "overrides":
        from autotune_policies.megatron_bridge import overrides_of

        core, bridge = release("megatron-core"), release("megatron-bridge")
        balanced = [f"model.moe_router_force_load_balancing={str(forces_balance(spec)).lower()}"]
        settings = {name: value for name, value in spec.settings.items() if name not in LAUNCH_SETTINGS}
        return [*overrides_of(settings, spec.env, megatron_core=core, megatron_bridge=bridge), *balanced]
    if name == "policy":
        return str(_policy_file(spec, work_dir / f"rank-{environment['RANK']}.policy.yaml"))
    if name == "resolved":
        return str(work_dir / RESOLVED_FILE)
    gang = spec.gang
    plain = {
        "steps": spec.contract.steps,
        "seq_length": spec.contract.seq_length,
        "global_batch_size": spec.contract.global_batch_size,
        "micro_batch_size": spec.settings["micro_batch_size"],
        "seed": spec.contract.seed,
        "world_size": gang.world_size,
        "ranks_per_node": gang.ranks_per_node,
        "num_nodes": gang.num_nodes,
        "node_rank": int(environment["RANK"]) // gang.ranks_per_node,
        "master_addr": environment["MASTER_ADDR"],
        "master_port": environment["MASTER_PORT"],
    }
    return str(plain[name])


def forces_balance(spec: TrialSpec) -> bool:
    """Whether the contract wants a router that spreads tokens evenly, whatever it has learned."""
    return spec.model.num_experts is not None and spec.contract.routing.source == "forced_balance"


def release(distribution: str) -> str:
    """The installed version.

    Raises:
        CannotFill: it is not installed.
    """
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        raise CannotFill(f"{distribution} is not installed on this node, so its release is unknown") from None


def _policy_file(spec: TrialSpec, path: Path) -> Path:
    """The proposal as a policy, which makes no claim: nothing of it is measured yet. JSON is YAML, too."""
    contract = asdict(spec.contract)
    document: dict[str, object] = {
        "schema": "autotune.policy/v1",
        "applies_to": {
            "model": spec.model.name,
            "cluster": "where this trial runs",
            "num_gpus": spec.gang.world_size,
            **{name: contract[name] for name in ("precision", "seq_length", "global_batch_size")},
            "stack": {"megatron_core": release("megatron-core")},
        },
        "settings": spec.settings,
        "env": spec.env,
        "launch": {},
        "evidence": {"kind": "predicted", "study": spec.study},
        "alternatives": [],
        "fallback": None,
    }
    path.write_text(json.dumps(document, indent=1), encoding="utf-8")
    return path
