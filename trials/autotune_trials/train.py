"""Train the model of a policy with exactly the policy's settings, on this machine.

    autotune policy exec policy.yaml -- python -m autotune_trials.train --policy policy.yaml [--steps N]

One line per step goes to stderr, one JSON object to stdout at the end. Exit status: 0 trained, 1 the run failed, 2 the
policy cannot be trained here. It is the policy's own model and contract on mock data: the proof that the settings run.
"""

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from autotune_policies.applicability import compare
from autotune_policies.apply import detect_stack
from autotune_policies.errors import PolicyError
from autotune_policies.policy import Policy, load_policy
from autotune_trials.events import StepRecord
from autotune_trials.facts import fingerprint, gpu_names, node_facts
from autotune_trials.leftovers import claim, tidy
from autotune_trials.node import NodeRanks, free_port
from autotune_trials.scratch import scratch
from autotune_trials.spec import SpecError, TrialSpec, spec_from
from autotune_trials.status import NodeStatus

_POLL_INTERVAL_S = 0.1
_DEADLINE_S = 30 * 24 * 3600.0
_STALL_S = 900.0


class CannotTrain(Exception):  # noqa: N818 - reads as what it is
    """The policy cannot be trained here; nothing was started."""


class TrainingFailed(Exception):  # noqa: N818 - reads as what it is
    """The ranks ended before the last step, or ran other settings than the policy's."""


def spec_of(policy: Policy, steps: int | None = None) -> TrialSpec:
    """The trial that the policy describes.

    Args:
        policy: Must carry the contract it was found under.
        steps: Optimizer steps instead of the contract's; at least 2.

    Raises:
        CannotTrain: the policy carries no usable contract.
    """
    described = policy.evidence.get("contract")
    if not isinstance(described, Mapping):
        raise CannotTrain(
            f"{policy.name}: evidence.contract is missing, so the policy does not say which model it is for"
        )
    try:
        spec = spec_from(
            {
                "study": str(policy.evidence.get("study") or policy.name),
                "trial": 0,
                "settings": policy.settings,
                "env": policy.env,
                "deadline_s": _DEADLINE_S,
                "stall_s": _STALL_S,
                **{part: described.get(part) for part in ("model", "contract", "gang")},
            }
        )
    except (SpecError, TypeError, ValueError) as error:
        raise CannotTrain(f"{policy.name}: evidence.contract: {error}") from error
    if steps is None:
        return spec
    if steps < 2:
        raise CannotTrain(f"--steps={steps}, but a run needs at least 2 steps")
    warmup = min(spec.contract.warmup_steps, steps - 1)
    return replace(spec, contract=replace(spec.contract, steps=steps, warmup_steps=warmup))


def check_here(
    policy: Policy, spec: TrialSpec, environ: Mapping[str, str], stack: Mapping[str, str], num_gpus: int
) -> None:
    """Refuse a policy that is for another run, stack or machine.

    Args:
        policy: The policy.
        spec: What it describes.
        environ: Environment of this process, which the ranks inherit.
        stack: Installed versions by name.
        num_gpus: GPUs of this machine.

    Raises:
        CannotTrain: with what differs, and the way out.
    """
    differing = [
        f"{name} is {environ.get(name, 'not set')}, not {value}"
        for name, value in policy.env.items()
        if environ.get(name) != value
    ]
    if differing:
        raise CannotTrain(
            f"the policy's environment is not in force: {'; '.join(differing)}\n"
            f"hint: autotune policy exec {policy.name} -- python -m autotune_trials.train --policy {policy.name}"
        )
    contract = spec.contract
    facts: dict[str, object] = {
        "model": spec.model.name,
        "num_gpus": spec.gang.world_size,
        "precision": contract.precision,
        "seq_length": contract.seq_length,
        "global_batch_size": contract.global_batch_size,
        **{f"stack.{name}": version for name, version in stack.items()},
    }
    mismatches = compare(policy.applies_to, facts).mismatches
    if mismatches:
        raise CannotTrain(f"{policy.name}: the policy is for another run: {'; '.join(mismatches)}")
    if "megatron_core" not in stack:
        raise CannotTrain("megatron-core is not installed\nhint: pip install 'moe-autotune[trial]'")
    if spec.gang.num_nodes > 1:
        raise CannotTrain(f"the policy is for {spec.gang.num_nodes} nodes; this program trains on one machine")
    if spec.gang.device == "cuda" and num_gpus < spec.gang.ranks_per_node:
        raise CannotTrain(f"the policy needs {spec.gang.ranks_per_node} GPUs on this machine, which has {num_gpus}")


def train(spec: TrialSpec, work_dir: Path) -> dict[str, Any]:
    """Run all steps; returns the summary that is printed at the end.

    Raises:
        CannotTrain: the ranks rejected the configuration.
        TrainingFailed: a rank died, or the ranks ran other settings.
        OSError: the ranks could not be started.
    """
    ranks = NodeRanks(
        spec,
        node_rank=0,
        work_dir=work_dir,
        master=("127.0.0.1", free_port("127.0.0.1")),
        fingerprint=fingerprint(node_facts()),
    )
    records: list[StepRecord] = []
    resolved: dict[str, Any] = {}
    ranks.start()
    try:
        while True:
            status = ranks.poll()
            resolved = status.resolved or resolved
            for record in status.steps:
                records.append(record)
                _say(_step_line(record))
            if status.ended:
                break
            time.sleep(_POLL_INTERVAL_S)
    finally:
        ranks.kill()
    _check_end(status, ranks)
    return _summary(spec, status, records, resolved)


def _step_line(record: StepRecord) -> str:
    values = f"{record.step_time_s:8.3f} s  loss {record.loss:9.5f}  grad norm {record.grad_norm:8.4f}"
    return f"step {record.step:>4}  {values}"


def _check_end(status: NodeStatus, ranks: NodeRanks) -> None:
    # The rank that spoke knows why; the others were killed for it.
    for rank in sorted(status.ranks, key=lambda rank: rank.failure is None):
        if rank.failure is not None and rank.failure["kind"] == "rejected":
            raise CannotTrain(rank.failure["message"])
        if rank.exit_code != 0:
            why = (
                f"{rank.failure['error']}: {rank.failure['message']}"
                if rank.failure
                else status.message or "ended early"
            )
            _say(ranks.logs(rank.rank, max_bytes=8192).rstrip())
            raise TrainingFailed(f"rank {rank.rank} after {rank.place}: {why}")


def _summary(
    spec: TrialSpec, status: NodeStatus, records: list[StepRecord], resolved: dict[str, Any]
) -> dict[str, Any]:
    in_force = resolved.get("settings", {})
    wrong = [
        f"{name} is {in_force.get(name)}, not {asked}"
        for name, asked in spec.settings.items()
        if in_force.get(name) != asked
    ]
    if wrong or len(records) != spec.contract.steps:
        raise TrainingFailed("; ".join(wrong) or f"only {len(records)} of {spec.contract.steps} steps were reported")
    step_time_s = statistics.median(record.step_time_s for record in records[spec.contract.warmup_steps :])
    return {
        "steps": len(records),
        "loss": records[-1].loss,
        "step_time_s": step_time_s,
        "tokens_per_s_per_gpu": records[-1].tokens / step_time_s / spec.gang.world_size,
        "peak_memory_bytes": max(rank.peak_memory_bytes or 0 for rank in status.ranks),
        "megatron_core": resolved.get("megatron_core"),
        "dispatcher_class": resolved.get("dispatcher_class"),
        "settings": in_force,
        "contract": asdict(spec.contract),
    }


def main(argv: list[str] | None = None) -> int:
    """The command; returns its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m autotune_trials.train", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--policy", required=True, help="policy YAML")
    parser.add_argument("--steps", type=int, help="optimizer steps; default: as many as the policy's trials had")
    options = parser.parse_args(argv)
    try:
        policy = load_policy(options.policy)
        spec = spec_of(policy, options.steps)
        check_here(policy, spec, os.environ, detect_stack(), len(gpu_names()))
        folder = scratch() / "gangs" / f"train-{os.getpid()}"
        with claim(folder):
            try:
                summary = train(spec, folder)
            finally:
                tidy(folder, failed=False)
    except (PolicyError, CannotTrain, OSError) as error:
        hint = getattr(error, "hint", None)
        _say(f"error: {error}" + (f"\nhint: {hint}" if hint else ""))
        return 2
    except TrainingFailed as error:
        _say(f"error: {error}")
        return 1
    except KeyboardInterrupt:
        _say("interrupted; nothing is left running")
        return 1
    print(json.dumps(summary))  # noqa: T201 - the result
    return 0


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)  # noqa: T201 - talk


if __name__ == "__main__":
    sys.exit(main())
