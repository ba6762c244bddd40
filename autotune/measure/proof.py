"""Whether every rank ran what was asked for, from what the ranks read back from their own objects."""

from collections.abc import Iterator, Mapping
from typing import Any

from autotune.measure.failure import rank_names
from autotune.measure.run import GangRun
from autotune_policies.settings import Settings
from autotune_trials.spec import TrialSpec

_MOST_NAMED = 4


def built_differently(spec: TrialSpec, run: GangRun) -> str:
    """Which fields differ from what was asked, and on which ranks, on one line; empty when none does.

    Names in a list are compared without their order. A rank that showed nothing proves nothing, so it counts as
    different too; a command's ranks are judged by what the command printed or saved.
    """
    resolved = run.resolved or {}
    built = resolved.get("settings")
    if not isinstance(built, dict) or not built:
        return "nothing was read back from the built objects, so nothing proves what ran"
    if spec.model.num_experts is not None and "dispatcher" not in built:
        return "the dispatcher was not read back from the built objects, so nothing proves which one ran"
    differences = [*_settings(spec.settings, built), *_gang(spec, run, resolved)]
    if not differences:
        differences = list(_ranks(spec, run, resolved))
    more = len(differences) - _MOST_NAMED
    return "; ".join(differences[:_MOST_NAMED]) + (f"; {more} more" if more > 0 else "")


def _settings(asked: Settings, built: Mapping[str, Any]) -> Iterator[str]:
    for name, value in asked.items():
        if name in built and not _same(value, built[name]):
            yield f"{name} asked {_shown(value)}, built {_shown(built[name])}"


def _gang(spec: TrialSpec, run: GangRun, resolved: Mapping[str, Any]) -> Iterator[str]:
    world_size = resolved.get("world_size", spec.gang.world_size)
    if world_size != spec.gang.world_size:
        yield f"world_size asked {spec.gang.world_size}, built {world_size}"
    tokens = spec.contract.global_batch_size * spec.contract.seq_length
    ran = next((record.tokens for record in run.steps if record.tokens != tokens), tokens)
    if ran != tokens:
        yield f"tokens per step asked {tokens}, ran {ran}"


def _ranks(spec: TrialSpec, run: GangRun, resolved: Mapping[str, Any]) -> Iterator[str]:
    """What the claims of the ranks say; they are merged, so equal ones are judged once."""
    if spec.program == "command":
        return
    silent = set(range(spec.gang.world_size)).difference(*(claim.ranks for claim in run.claims))
    if silent:
        yield f"{rank_names(sorted(silent))} showed nothing of what was built, so nothing proves what ran there"
        return
    unfinished = [rank.rank for rank in run.ranks if rank.last_event != "finished"]
    if unfinished:
        who = rank_names(unfinished)
        yield f"{who} left with status 0 without the proof that comes last, so nothing proves what ran there"
        return
    for claim in run.claims:
        who = rank_names(claim.ranks)
        for difference in _settings(spec.settings, _mapping(claim.shown, "settings")):
            yield f"{who}: {difference}"
        for name in ("dispatcher_class", "precision", "schedule"):
            there, first = claim.shown.get(name), resolved.get(name)
            # A pipeline stage of dense layers has no dispatcher.
            if there is not None and first is not None and there != first:
                yield f"{who}: {name} is {_shown(there)}, rank 0 has {_shown(first)}"
        for name, value in _mapping(claim.shown, "environment").items():
            yield f"{who}: environment {name} asked {spec.env.get(name)}, in force {_shown(value)}"
    yield from _graphs(spec.settings.get("cuda_graph_impl"), run)


def _graphs(asked: object, run: GangRun) -> Iterator[str]:
    """A graph that was asked for must have been captured somewhere, and replayed wherever it was captured."""
    if asked in (None, "none"):
        return
    if not any(claim.shown.get("graphs_captured") for claim in run.claims):
        yield f"cuda_graph_impl asked {asked}, but no rank captured a graph"
    for claim in run.claims:
        captured, replays = claim.shown.get("graphs_captured"), claim.shown.get("graph_replays")
        if captured and not replays:
            yield f"{rank_names(claim.ranks)}: cuda_graph_impl asked {asked}: {captured} graphs captured, none replayed"


def _mapping(shown: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = shown.get(name)
    return value if isinstance(value, dict) else {}


def _same(asked: object, built: object) -> bool:
    if isinstance(asked, list) and isinstance(built, list):
        return sorted(map(str, asked)) == sorted(map(str, built))
    return type(asked) is type(built) and asked == built


def _shown(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(str, value)) + "]"
    return str(value)
