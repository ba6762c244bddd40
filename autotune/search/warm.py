"""A search that starts from settings somebody found before: they become seeds, tried right after the baseline."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from autotune.errors import RequestError
from autotune.request import TuneRequest, stored_request, studies
from autotune.space.parameters import Point
from autotune_policies.policy import Policy, load_policy
from autotune_policies.settings import Settings, closest

_NOTHING = object()


@dataclass(frozen=True)
class WarmStart:
    """A request with its seeds.

    Attributes:
        request: As it was, with the found points before its own seeds.
        dropped: One line for each of the settings that is no point of the space: which setting, and why.
    """

    request: TuneRequest
    dropped: tuple[str, ...]


def warm_start(request: TuneRequest, source: str) -> WarmStart:
    """Let a request begin with the settings of a policy, or of a study's policy: its own, then its alternatives.

    Settings that are no point of the space are dropped and named, since a search may only try what its space has; when
    none is left, the request is refused. The baseline is still measured first.

    Args:
        request: What to tune.
        source: A policy file, or the name of a study in the same home.

    Raises:
        RequestError: no such policy or study, none of its settings is in the space, or the study to run exists and
            began otherwise.
    """
    path = _policy_file(request, source)
    policy = _read(path)
    given = [policy.settings, *(entry["settings"] for entry in policy.alternatives)]
    points: list[Point] = []
    dropped: list[str] = []
    for index, settings in enumerate(given):
        whose = "its settings" if index == 0 else f"alternative {index}"
        found = point_of(request, settings)
        if isinstance(found, str):
            dropped.append(f"{policy.name}: {whose}: not a point of this space: {found}")
        elif found not in points:
            points.append(found)
    if not points:
        raise RequestError(
            f"none of the {len(given)} settings of {policy.name} is a point of the space of {request.model} on "
            f"{request.cluster.name}: {dropped[0].rpartition('space: ')[2]}",
            hint="a model file of your own can have further choices: --model FILE",
        )
    # A path such that the same command means the same study in another working folder too.
    began = source if path.parent == request.home / source else str(path.absolute())
    _require_same_beginning(request, began)
    asked = {**request.asked, "warm_start": began}
    seeds = (*points, *(seed for seed in request.space.seeds if seed not in points))
    return WarmStart(replace(request, space=replace(request.space, seeds=seeds), asked=asked), tuple(dropped))


def point_of(request: TuneRequest, settings: Settings) -> Point | str:
    """The point of the request's space that means these settings; where there is none, why."""
    point: Point = {}
    for parameter in request.space.parameters:
        if not parameter.active(point):
            continue
        name, wanted = parameter.name, settings[parameter.name]
        # A choice may be a name for what the settings spell out, such as a generated layout.
        meaning = (choice for choice in parameter.choices if request.settings({**point, name: choice})[name] == wanted)
        choice: Any = wanted if wanted in parameter.choices else next(meaning, _NOTHING)
        if choice is _NOTHING:
            return f"{name}={wanted!r} is not one of {list(parameter.choices)}"
        point[name] = choice
    made = request.settings(point)
    for name, value in settings.items():
        if made[name] != value:
            return f"{name}={value!r} does not vary here, it is {made[name]!r}"
    return point


def _policy_file(request: TuneRequest, source: str) -> Path:
    path = Path(source).expanduser()
    if "/" in source or source.endswith((".yaml", ".yml")) or path.is_file():
        return path
    if source not in studies(request.home):
        raise RequestError(
            f"warm-start {source!r} is neither a file nor a study in {request.home}",
            hint=closest(source, studies(request.home)),
        )
    if not (request.home / source / "policy.yaml").exists():
        raise RequestError(
            f"study {source!r} has no policy to start from", hint=f"autotune status {source} says how it stands"
        )
    return request.home / source / "policy.yaml"


def _read(path: Path) -> Policy:
    try:
        return load_policy(path)
    except OSError as error:
        raise RequestError(f"policy {path} cannot be read: {error.strerror}", hint="name a policy file") from error


def _require_same_beginning(request: TuneRequest, source: str) -> None:
    """Seeds are queued when a study begins; one that has begun would pass over them in silence."""
    if request.study not in studies(request.home):
        return
    began = stored_request(request.study, request.home).asked.get("warm_start")
    if began != source:
        how = f"with --warm-start {began}" if began else "without one"
        raise RequestError(
            f"study {request.study!r} exists and began {how}, so --warm-start {source} would change nothing",
            hint="choose another name with --study",
        )
