"""What a measured policy says of itself, as values that can be compared and run again."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from autotune.cluster import load_cluster
from autotune.errors import RequestError
from autotune.measure.drift import Timing
from autotune.request import TuneRequest
from autotune.space.parameters import Parameter, SearchSpace
from autotune_policies.policy import Policy
from autotune_policies.settings import Settings
from autotune_trials.spec import SpecError, TrialSpec, command_from, recipe_from
from autotune_trials.train import CannotTrain, spec_of

_STATED_COVERAGE = 0.95

# A policy does not say how long its trials may take; these are the longest that a shipped model allows.
_DEADLINE_S = 3600.0
_STALL_S = 1200.0


@dataclass(frozen=True)
class Recorded:
    """A policy's own record.

    Attributes:
        name: File of the policy.
        spec: The trial that it describes: model, contract, gang, settings and environment.
        cluster: Name of the cluster.
        step_time: Its step time; the interval is that of one run's steps, without a stated one their range.
        runner_up: What it is compared with: the first alternative, else the fallback; None when there is neither.
        runner_up_step_time_s: The recorded step time of that; None when the policy does not say.
        fingerprint: Digest of the stack.
        stack: Versions by component.
    """

    name: str
    spec: TrialSpec
    cluster: str
    step_time: Timing
    runner_up: Settings | None
    runner_up_step_time_s: float | None
    fingerprint: str
    stack: Mapping[str, str]

    @property
    def runner_up_was_faster(self) -> bool:
        """Whether it was chosen for something else than its speed."""
        return self.runner_up_step_time_s is not None and self.runner_up_step_time_s < self.step_time.median_s


def recorded_of(policy: Policy) -> Recorded:
    """The record of a measured policy.

    Raises:
        RequestError: it was not measured, or does not say under which contract.
    """
    evidence = policy.evidence
    if evidence["kind"] != "measured":
        raise RequestError(
            f"{policy.name}: evidence.kind is {evidence['kind']}, so there is no measurement to check",
            hint=f"measure it: autotune start --warm-start {policy.name} ...",
        )
    try:
        spec = _with_program(spec_of(policy), evidence["contract"])
    except (CannotTrain, SpecError) as error:
        raise RequestError(str(error), hint="export the policy again from its study") from error
    runner_up, runner_up_s = _runner_up(policy)
    return Recorded(
        name=policy.name,
        spec=spec,
        cluster=_exact(policy.applies_to["cluster"]),
        step_time=_step_time(evidence["step_time_s"]),
        runner_up=runner_up,
        runner_up_step_time_s=runner_up_s,
        fingerprint=str(evidence["fingerprint"]),
        stack={str(name): str(version) for name, version in (evidence.get("stack") or {}).items()},
    )


def request_again(recorded: Recorded, *, cluster: str | None, home: Path) -> TuneRequest:
    """The request that runs a policy's settings again, under its own contract.

    Args:
        recorded: The policy.
        cluster: Cluster name or file; None = the policy's.
        home: Folder that gets a folder for the record of this check.

    Raises:
        RequestError: an unknown cluster, or a wrong cluster file.
    """
    spec = recorded.spec
    dispatchers = {str(settings["dispatcher"]): None for settings in (spec.settings, recorded.runner_up) if settings}
    return TuneRequest(
        study=_free_name(home, spec.study),
        home=home,
        model=spec.model.name,
        shape=spec.model,
        cluster=load_cluster(cluster or recorded.cluster),
        gang=spec.gang,
        contract=spec.contract,
        space=SearchSpace((Parameter("dispatcher", tuple(dispatchers)),), {}, dict(spec.settings)),
        trials=0,
        trial_deadline_s=_DEADLINE_S,
        trial_stall_s=_STALL_S,
        program=spec.program,
        recipe=spec.recipe,
        command=spec.command,
    )


def changed_stack(recorded: Recorded, stack: Mapping[str, str]) -> dict[str, list[str | None]]:
    """Components whose version is another one now: name -> recorded and present version; None = not there."""
    names = sorted({*recorded.stack, *stack})
    pairs = {name: [recorded.stack.get(name), stack.get(name)] for name in names}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def _with_program(spec: TrialSpec, described: Mapping[str, Any]) -> TrialSpec:
    """The trial with the program that ran it; policies of our own trainer name none."""
    recipe, command = described.get("recipe"), described.get("command")
    return replace(
        spec,
        program=str(described.get("program", spec.program)),
        recipe=None if recipe is None else recipe_from(recipe),
        command=None if command is None else command_from(command),
    )


def _runner_up(policy: Policy) -> tuple[Settings | None, float | None]:
    if policy.alternatives:
        first = policy.alternatives[0]
        step_time_s = first.get("step_time_s")
        return first["settings"], step_time_s if isinstance(step_time_s, int | float) else None
    different = policy.fallback is not None and policy.fallback != policy.settings
    return (policy.fallback if different else None), None


def _step_time(raw: Mapping[str, Any]) -> Timing:
    median_s = float(raw["median"])
    if raw.get("ci95"):
        low_s, high_s = raw["ci95"]
        return Timing(median_s, float(low_s), float(high_s), _STATED_COVERAGE)
    spread = raw.get("range")
    if isinstance(spread, list) and len(spread) == 2 and all(isinstance(end, int | float) for end in spread):
        return Timing(median_s, min(median_s, spread[0]), max(median_s, spread[1]))
    return Timing(median_s, median_s, median_s)


def _exact(condition: Any) -> str:
    return str(condition["exact"] if isinstance(condition, Mapping) else condition)


def _free_name(home: Path, study: str) -> str:
    """A name for the record that no earlier check has."""
    base = re.sub(r"[^A-Za-z0-9._-]+", "-", study).strip("-.")[:80] or "policy"
    number = 1
    while (home / f"{base}-{number:04d}").exists():
        number += 1
    return f"{base}-{number:04d}"
