"""From the winner of a study to its policy: the settings, where they hold, and the evidence for them.

Nothing here is estimated. What was not measured (FLOP/s, MFU, routing imbalance, a missing baseline) is left
out or null, and only a COMPLETE trial becomes ``kind: measured``.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import lcm
from pathlib import Path
from typing import Any

from autotune.errors import RunError
from autotune.export.confirmed import confirmation_evidence, ratio_of, step_time_evidence
from autotune.export.report import counts
from autotune.files import write_atomically
from autotune.measure.caveats import caveats, routing_label
from autotune.measure.confirmation import Confirmation
from autotune.measure.matched import fastest_pairs
from autotune.measure.objective import MedianInterval, median_interval
from autotune.measure.outcome import TrialOutcome, TrialState
from autotune.measure.stopping import MIN_STEPS, dependent_interval
from autotune_policies.backends import BACKENDS
from autotune_policies.policy import Policy, dump_policy
from autotune_policies.settings import Settings, model_parallel_ranks, resolve
from autotune_policies.surroundings import environment_of, launch_of
from autotune_trials.programs import CommandSpec, RecipeSpec
from autotune_trials.spec import Contract, GangShape, ModelShape

_RANGED = ("megatron_core", "torch", "transformer_engine")
_PROOF = ("dispatcher_class", "schedule", "stages")


@dataclass(frozen=True)
class StudyFacts:
    """What all trials of a study have in common.

    Attributes:
        study: Study name.
        model: Model name, as ``applies_to`` will say it.
        shape: Architecture of the model.
        cluster: Cluster name.
        contract: What the study held fixed.
        gang: Shape of every gang.
        stack: Versions by component (``megatron_core``, ``torch``, ...), read on the nodes.
        fingerprint: Digest of everything that can change speed.
        created_at: When the policy is made, ISO 8601 with a time zone.
        gpu_hours: GPU-hours the study has spent.
        env: Variables that every rank had before its first torch import.
        launch: What the launcher did beyond them.
        program: Kind of trial program.
        recipe: What bridge trials ran.
        command: What command trials ran.
    """

    study: str
    model: str
    shape: ModelShape
    cluster: str
    contract: Contract
    gang: GangShape
    stack: Mapping[str, str]
    fingerprint: str
    created_at: str
    gpu_hours: float
    env: Mapping[str, str] = field(default_factory=dict)
    launch: Mapping[str, Any] = field(default_factory=dict)
    program: str = "native"
    recipe: RecipeSpec | None = None
    command: CommandSpec | None = None


def make_policy(
    facts: StudyFacts,
    *,
    winner: TrialOutcome,
    baseline: TrialOutcome | None,
    front: Sequence[TrialOutcome],
    outcomes: Sequence[TrialOutcome] = (),
    confirmation: Confirmation | None = None,
    profiles: Mapping[str, Mapping[str, Any]] | None = None,
) -> Policy:
    """The policy of a study.

    Args:
        facts: What the trials have in common.
        winner: The chosen trial.
        baseline: The correctness baseline; its settings are the fallback when it is COMPLETE, and losses are
            compared with it when its dispatcher is ``alltoall``.
        front: The Pareto front; all of it but the winner becomes the alternatives.
        outcomes: All finished trials, to be counted by state in the evidence.
        confirmation: What running the finalists again said; who tied with the winner comes first in the alternatives.
        profiles: What unscored runs under a profiler showed, by role.

    Raises:
        RunError: the winner or a trial of the front is not COMPLETE, or the stack has no ``megatron_core``.
    """
    for outcome in (winner, *front):
        _require_measured(outcome)
    settings = resolve(winner.settings)
    verified = baseline if baseline is not None and baseline.state is TrialState.COMPLETE else None
    return Policy(
        applies_to={
            "model": facts.model,
            "cluster": facts.cluster,
            "num_gpus": gpu_condition(settings, facts.gang.world_size, facts.contract.global_batch_size),
            "precision": facts.contract.precision,
            "seq_length": facts.contract.seq_length,
            "global_batch_size": facts.contract.global_batch_size,
            "stack": stack_conditions(facts.stack, settings),
        },
        settings=settings,
        env={**facts.env, **environment_of(settings)},
        launch={**facts.launch, **launch_of(settings)},
        evidence=_evidence(facts, winner, verified, outcomes, confirmation, profiles or {}),
        alternatives=[
            _alternative(outcome, confirmation) for outcome in _others(winner, front, outcomes, confirmation)
        ],
        fallback=resolve(verified.settings) if verified else None,
        name=f"{facts.study}.policy.yaml",
    )


def write_policy(path: Path, policy: Policy) -> None:
    """Write the policy as YAML, at once; the text has been read back and found equal before it is written.

    Raises:
        PolicyFormatError: the policy is not valid; the old file is untouched.
        OSError: the file cannot be written.
    """
    write_atomically(path, dump_policy(policy).encode())


def gpu_condition(settings: Settings, measured: int, global_batch_size: int) -> dict[str, int]:
    """The numbers of GPUs the settings may run on: the measured one, and more in data parallelism only.

    Every number that the condition admits is whole model replicas and whole expert groups, and splits the
    global batch into whole micro-batches (with interleaved stages also into whole rounds of them). Of the two
    steps that a range can have, one replica or the measured size, the one that reaches further is taken; the
    next size after ``max`` would not fit, even where a still larger one would.

    Args:
        settings: All canonical settings.
        measured: Ranks of the measured run.
        global_batch_size: Sequences per optimizer step, which stays as it is.
    """
    replica = lcm(model_parallel_ranks(settings), _expert_ranks(settings))
    reach = {step: _reach(settings, measured, step, global_batch_size) for step in (replica, measured)}
    step = max(reach, key=lambda step: (reach[step], -step))
    return {"min": measured, "max": reach[step], "multiple_of": step}


def stack_conditions(stack: Mapping[str, str], settings: Mapping[str, object]) -> dict[str, Any]:
    """Which versions the settings hold for: the same minor release, and exactly the same dispatcher library.

    A version without two leading numbers is taken exactly.

    Raises:
        RunError: the stack has no ``megatron_core``, whose release decides the names of the fields.
    """
    known = {name.replace("-", "_"): version for name, version in stack.items()}
    if "megatron_core" not in known:
        raise RunError(f"the stack names no megatron_core, only {', '.join(sorted(known)) or 'nothing'}")
    conditions: dict[str, Any] = {name: minor_range(known[name]) for name in _RANGED if name in known}
    library = BACKENDS[str(settings["dispatcher"])].library
    if library in known and library not in _RANGED:
        conditions[library] = {"exact": known[library]}
    return conditions


def minor_range(version: str) -> dict[str, str]:
    """``{min: "0.16", below: "0.17"}`` for ``0.16.1``."""
    match = re.match(r"(\d+)\.(\d+)", version)
    if not match:
        return {"exact": version}
    major, minor = int(match[1]), int(match[2])
    return {"min": f"{major}.{minor}", "below": f"{major}.{minor + 1}"}


def parity(winner: TrialOutcome, baseline: TrialOutcome) -> dict[str, Any]:
    """How far the losses of two trials with the same seed and data lie apart, step by step.

    Different layouts and kernels sum in different orders, so a small difference is expected; a large or
    growing one is not.
    """
    differences = [ours - theirs for ours, theirs in zip(winner.losses, baseline.losses, strict=False)]
    return {
        "baseline_trial": baseline.trial,
        "baseline_dispatcher": baseline.settings["dispatcher"],
        "steps": len(differences),
        "max_abs_loss_difference": max(map(abs, differences), default=None),
        "last_loss_difference": differences[-1] if differences else None,
    }


def _evidence(
    facts: StudyFacts,
    winner: TrialOutcome,
    baseline: TrialOutcome | None,
    outcomes: Sequence[TrialOutcome],
    confirmation: Confirmation | None,
    profiles: Mapping[str, Mapping[str, Any]],
) -> dict[str, Any]:
    """All of it as plain JSON data: no tuple and no object shared with an outcome."""
    contract, gang = facts.contract, facts.gang
    resolved = winner.resolved or {}
    comparable = baseline is not None and baseline.settings["dispatcher"] == "alltoall"
    evidence = {
        "kind": "measured",
        "study": facts.study,
        "trial": winner.trial,
        "created_at": facts.created_at,
        "device": gang.device,
        "num_gpus": gang.world_size,
        "num_nodes": gang.num_nodes,
        "routing": {**asdict(contract.routing), "label": routing_label(contract.routing)},
        "step_time_s": _step_time(winner, confirmation),
        "confirmation": confirmation_evidence(confirmation) if confirmation else None,
        "tokens_per_s_per_gpu": winner.tokens_per_s_per_gpu,
        "peak_memory_bytes": winner.peak_memory_bytes,
        "loss": {"step": len(winner.losses), "value": winner.loss},
        "parity": parity(winner, baseline) if baseline is not None and comparable else None,
        "matched_dispatchers": [pair.to_dict() for pair in fastest_pairs(outcomes)],
        "activation": {
            **{name: resolved[name] for name in _PROOF if name in resolved},
            "settings_not_read_back": sorted(set(winner.settings) - set(resolved.get("settings", {}))),
        },
        **_profiled(profiles),
        "fingerprint": facts.fingerprint,
        "stack": dict(sorted(facts.stack.items())),
        "gpu_hours": facts.gpu_hours,
        "trials": counts(outcomes),
        "note": "; ".join(caveats(contract, gang, confirmation.repeats if confirmation else 0)),
        "contract": {
            "model": asdict(facts.shape), "contract": asdict(contract), "gang": asdict(gang), **_program(facts),
        },
    }  # fmt: skip
    plain: dict[str, Any] = json.loads(json.dumps(evidence))
    return plain


def _profiled(profiles: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Seconds by part; where the trace lies is of use on that machine only."""
    kept = {
        role: {name: value for name, value in shown.items() if name not in ("host", "trace")}
        for role, shown in profiles.items()
    }
    return {"profile": kept} if kept else {}


def _program(facts: StudyFacts) -> dict[str, Any]:
    """What ran, where it was not our own trainer: without it nobody could measure the policy again."""
    if facts.program == "native":
        return {}
    parts = {"recipe": facts.recipe, "command": facts.command}
    return {"program": facts.program, **{name: asdict(part) for name, part in parts.items() if part is not None}}


def _step_time(outcome: TrialOutcome, confirmation: Confirmation | None) -> dict[str, Any]:
    if confirmation is not None and outcome.trial in confirmation.runs:
        return step_time_evidence(confirmation, outcome.trial)
    steps = outcome.counted_step_times_s
    interval, method = _interval_of(steps)
    return {
        "median": outcome.step_time_s,
        "ci95": [interval.low_s, interval.high_s] if interval else None,
        "ci95_method": method,
        "range": [min(steps), max(steps)],
        "steps": len(steps),
        "repeats": 1,
    }


def _interval_of(steps: Sequence[float]) -> tuple[MedianInterval | None, str]:
    """Interval of the median of one run's steps, and how it was found; of a few steps nobody knows their dependence."""
    one_run = "they are of one run, so differences between runs are not in it"
    if (wide := dependent_interval(steps)) is not None:
        how = f"coverage {wide.coverage:.3f} allowing for their dependence; {one_run}"
        return wide, f"order statistics of the {len(steps)} measured steps, {how}"
    if len(steps) >= MIN_STEPS:
        return None, f"none: the {len(steps)} measured steps depend on each other too much"
    if (short := median_interval(steps)) is not None:
        how = f"coverage {short.coverage:.3f} if they were independent; {one_run}"
        return short, f"order statistics of the {len(steps)} measured steps, {how}"
    return None, f"none: a distribution-free interval needs 6 measured steps, but there are {len(steps)}"


def _others(
    winner: TrialOutcome,
    front: Sequence[TrialOutcome],
    outcomes: Sequence[TrialOutcome],
    confirmation: Confirmation | None,
) -> list[TrialOutcome]:
    """Those that tied with the winner, fastest first, then the rest of the front."""
    members = confirmation.members if confirmation else ()
    known = {outcome.trial: outcome for outcome in (*outcomes, *front)}
    order = dict.fromkeys([*members, *(outcome.trial for outcome in front)])
    return [known[trial] for trial in order if trial != winner.trial]


def _alternative(outcome: TrialOutcome, confirmation: Confirmation | None) -> dict[str, Any]:
    return {
        "trial": outcome.trial,
        "step_time_s": outcome.step_time_s,
        "tokens_per_s_per_gpu": outcome.tokens_per_s_per_gpu,
        "peak_memory_bytes": outcome.peak_memory_bytes,
        **(ratio_of(confirmation, outcome.trial) if confirmation else {}),
        "settings": resolve(outcome.settings),
    }


def _require_measured(outcome: TrialOutcome) -> None:
    if outcome.state is not TrialState.COMPLETE:
        raise RunError(
            f"trial {outcome.trial} is {outcome.state}, so its settings cannot be exported as measured",
            hint="only COMPLETE trials make a policy",
        )


def _expert_ranks(settings: Settings) -> int:
    product = 1
    for name in ("expert_tensor_parallel", "expert_parallel", "pipeline_parallel"):
        value = settings[name]
        assert isinstance(value, int)
        product *= value
    return product


def _reach(settings: Settings, measured: int, step: int, global_batch_size: int) -> int:
    """The last number of GPUs before one that does not fit, going up from the measured one."""
    reached = measured
    while _fits(settings, reached + step, global_batch_size):
        reached += step
    return reached


def _fits(settings: Settings, num_gpus: int, global_batch_size: int) -> bool:
    micro_batch_size, stages = settings["micro_batch_size"], settings["pipeline_parallel"]
    assert isinstance(micro_batch_size, int)
    assert isinstance(stages, int)
    ranks = model_parallel_ranks(settings)
    if num_gpus % lcm(ranks, _expert_ranks(settings)):
        return False
    micro_batches, rest = divmod(global_batch_size, micro_batch_size * (num_gpus // ranks))
    interleaved = settings["virtual_pipeline"] != 1
    return rest == 0 and micro_batches > 0 and not (interleaved and micro_batches % stages)
