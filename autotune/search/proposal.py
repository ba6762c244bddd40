"""A point that the study proposes, and the verdict on it before anything is launched: pure functions."""

import hashlib
import json
import random
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain

from autotune.constraint.check import check, only_suspect
from autotune.constraint.rule import Violation, candidate
from autotune.errors import ClusterError, RequestError
from autotune.measure.outcome import TrialOutcome, TrialState
from autotune.measure.surroundings import Surroundings
from autotune.request import TuneRequest
from autotune.space.parameters import Point, SearchSpace
from autotune_policies.settings import Settings
from autotune_trials.probe import MODULE_PREFIX

_ENUMERABLE = 200_000
_DRAWS = 500


@dataclass(frozen=True)
class Proposal:
    """One point to try.

    Attributes:
        trial: Trial number within the study.
        point: Values of the active parameters.
        settings: All canonical settings of it.
        probes: Suspect rules that it breaks; it is launched to find out whether they are right.
    """

    trial: int
    point: Point
    settings: Settings
    probes: tuple[str, ...] = ()

    @property
    def digest(self) -> str:
        """Equal for points that mean the same settings."""
        return digest(self.settings)


def digest(settings: Settings) -> str:
    """A short digest of settings, equal for equal settings."""
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:16]


def violations(request: TuneRequest, settings: Settings, stack: Mapping[str, str] | None) -> list[Violation]:
    """The legality rules that settings of this request break."""
    return check(candidate(request, settings, stack))


def probes(request: TuneRequest, settings: Settings, stack: Mapping[str, str] | None) -> tuple[str, ...]:
    """The suspect rules that settings break, when they break no other; such a trial finds out who is right."""
    broken = violations(request, settings, stack)
    return tuple(violation.rule for violation in broken) if only_suspect(broken) else ()


def screen(
    request: TuneRequest, proposal: Proposal, surroundings: Surroundings, probing: bool = False
) -> TrialOutcome | None:
    """The outcome of a proposal that need not be launched, None when it is to be launched.

    With ``probing`` a proposal that breaks only suspect rules is launched. An unavailable backend comes first: it is a
    fact about the machines, not about the settings.
    """
    backend = proposal.settings["dispatcher"]
    if backend in surroundings.unavailable:
        reason = f"{backend}: {surroundings.unavailable[str(backend)]}"
        return TrialOutcome(proposal.trial, TrialState.UNAVAILABLE, proposal.settings, reason=reason, violation=1.0)
    broken = violations(request, proposal.settings, surroundings.stack)
    if not broken or (probing and only_suspect(broken)):
        return None
    return TrialOutcome(
        proposal.trial,
        TrialState.REFUSED,
        proposal.settings,
        reason=f"{_label(broken[0])}: {broken[0].message}{_also(broken[1:])}",
        violation=sum(violation.amount for violation in broken),
    )


def _also(further: list[Violation]) -> str:
    return f" (also {', '.join(_label(violation) for violation in further)})" if further else ""


def _label(violation: Violation) -> str:
    return f"{violation.rule} (suspect)" if violation.certainty == "suspect" else violation.rule


def require_legal_baseline(request: TuneRequest, stack: Mapping[str, str] | None = None) -> None:
    """Everything is compared with the baseline, so nothing is tuned where it cannot run.

    Raises:
        RequestError: it breaks a rule; without a known stack, rules on versions hold back.
    """
    broken = violations(request, request.settings(request.space.baseline), stack)
    if broken:
        raise RequestError(
            f"the baseline cannot run on {request.gang.world_size} GPUs: {broken[0].rule}: {broken[0].message}"
            f"{_also(broken[1:])}",
            hint="choose another number with --gpus, or another baseline in a model file of your own",
        )


def require_runnable(request: TuneRequest, surroundings: Surroundings) -> None:
    """Refuse machines on which no trial can run, or nothing that the others could be compared with.

    Args:
        request: What is tuned, with what is pinned here.
        surroundings: What preflight found.

    Raises:
        ClusterError: the recipe or the baseline's dispatcher cannot be used here.
        RequestError: the baseline breaks a rule on this stack.
    """
    for name in request.recipe.modules if request.recipe is not None else ():
        reason = surroundings.unavailable.get(f"{MODULE_PREFIX}{name}")
        if reason is not None:
            raise ClusterError(
                f"the recipe cannot run here: {name} cannot be imported: {reason}",
                hint="install megatron-bridge, and the recipe's own package, on every node",
            )
    dispatcher = str(request.settings(request.space.baseline)["dispatcher"])
    if dispatcher in surroundings.unavailable:
        raise ClusterError(
            f"the baseline's dispatcher {dispatcher} cannot run here: {surroundings.unavailable[dispatcher]}",
            hint="autotune preflight says what to mend; without Megatron-Core: pip install 'moe-autotune[trial]'",
        )
    require_legal_baseline(request, surroundings.stack)


def untried(
    request: TuneRequest,
    surroundings: Surroundings,
    tried: Collection[str],
    generator: random.Random,
    probing: bool = False,
) -> Point | None:
    """A random legal point whose settings were not tried yet; None when none was found.

    With ``probing`` a point that breaks only suspect rules will do as well. A small space is searched completely, so
    None then means that it is exhausted.
    """
    for point in chain(_draws(request.space, generator), _all(request.space, generator)):
        settings = request.settings(point)
        if settings["dispatcher"] in surroundings.unavailable or digest(settings) in tried:
            continue
        broken = violations(request, settings, surroundings.stack)
        if not broken or (probing and only_suspect(broken)):
            return point
    return None


def _all(space: SearchSpace, generator: random.Random) -> Iterator[Point]:
    """Every point of a space that is small enough to go through, in random order."""
    if space.size() <= _ENUMERABLE:
        points = list(space.points())
        generator.shuffle(points)
        yield from points


def _draws(space: SearchSpace, generator: random.Random) -> Iterator[Point]:
    for _ in range(_DRAWS):
        point: Point = {}
        for parameter in space.parameters:
            if parameter.active(point):
                point[parameter.name] = generator.choice(parameter.choices)
        yield point
