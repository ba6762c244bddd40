"""``autotune plan``."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from autotune.cli import options
from autotune.cli.output import writing
from autotune.cli.tables import aligned, value_text
from autotune.export.draft import ALTERNATIVES, STACK, draft_text, ranked
from autotune.files import write_atomically
from autotune.predict.rank import SEEN, Ranked, Ranking
from autotune.predict.relief import longest_parts, relief
from autotune.request import TuneRequest, load_request
from autotune_policies.settings import SETTINGS, Value


@click.command("plan")
@click.option(
    "--model", required=True, metavar="NAME|FILE", help="Model: a known name (autotune spaces list) or a file."
)
@click.option("--cluster", required=True, metavar="NAME|FILE", help="Cluster: a known name or a file.")
@click.option("--gpus", type=int, metavar="N", help="GPUs. Default: the model file's.")
@click.option("--top", type=click.IntRange(min=1), default=10, show_default=True, metavar="N", help="How many to show.")
@click.option("--memory-limit-gib", type=float, metavar="X", help="Leave out what has a higher peak, GiB per GPU.")
@click.option(
    "--policy", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
    help="Also write the first one as a policy draft, marked predicted; ranks what the newest release can run.",
)  # fmt: skip
@options.as_json
def command(
    model: str,
    cluster: str,
    gpus: int | None,
    top: int,
    memory_limit_gib: float | None,
    policy: Path | None,
    as_json: bool,
) -> int:
    """The fastest legal configurations as predicted, with time and memory by part, without hardware.

    The exit status is 1 when no legal configuration fits into memory.
    """
    request = load_request(model, cluster, gpus=gpus, memory_limit_gib=memory_limit_gib)
    stack = None if policy is None else STACK
    wanted = top if policy is None else max(top, 1 + ALTERNATIVES)
    ranking = ranked(request, stack, wanted)
    if policy is not None and ranking.best:
        with writing("policy", policy):
            write_atomically(policy, draft_text(request, ranking).encode())
    ranking = replace(ranking, best=ranking.best[:top])
    if as_json:
        print(json.dumps(_document(request, ranking)))
    else:
        _print(request, ranking)
    return 0 if ranking.best else 1


def _document(request: TuneRequest, ranking: Ranking) -> dict[str, Any]:
    return {
        "model": request.model,
        "cluster": request.cluster.name,
        "num_gpus": request.gang.world_size,
        "kind": "predicted",
        "space_points": ranking.space_points,
        "distinct_points": ranking.distinct_points,
        "looked_at": ranking.looked_at,
        "legal": ranking.legal,
        "not_fitting": ranking.not_fitting,
        "exhaustive": ranking.exhaustive,
        "parameters_without_prediction": list(ranking.unseen),
        "baseline": None if ranking.baseline is None else _entry(ranking.baseline),
        "ranking": [_entry(item) for item in ranking.best],
    }


def _entry(item: Ranked) -> dict[str, Any]:
    time, memory = item.time, item.memory
    return {
        "tokens_per_s_per_gpu": time.tokens_per_s_per_gpu,
        "step_time_s": time.step_time_s,
        "step_time_interval_s": list(time.interval),
        "tflops_per_gpu": time.tflops_per_gpu,
        "mfu": time.mfu,
        "bound": time.bound,
        "relief": relief(longest_parts(time, 1)[0], item.settings),
        "biggest_uncertainty": time.biggest_uncertainty,
        "time_parts_s": dict(time.parts),
        "peak_memory_bytes": memory.peak_memory_bytes,
        "device_memory_bytes": memory.device_memory_bytes,
        "memory_parts_bytes": memory.stages[memory.worst_stage].parts(),
        "memory_uncertainty": memory.uncertainty,
        "worst_stage": memory.worst_stage,
        "fits": item.fits,
        "settings": item.settings,
        "notes": [*time.notes, *memory.notes],
    }


def _print(request: TuneRequest, ranking: Ranking) -> None:
    contract = request.contract
    print(
        f"{request.model} on {request.gang.world_size} {request.cluster.name} GPUs, {contract.precision}, sequence "
        f"{contract.seq_length}, batch {contract.global_batch_size}: predicted, not measured"
    )
    print(_coverage(ranking))
    if not ranking.best:
        print("none of them fits: more GPUs, or a higher --memory-limit-gib where one was given")
        return
    changes = [_changes(request, item) for item in ranking.best]
    common = {name: value for name, value in changes[0].items() if all(other.get(name) == value for other in changes)}
    rows: list[tuple[str, ...]] = [("", "tokens/s/GPU", "step s", "MFU", "peak GiB", "settings")]
    listed = [*zip(map(str, range(1, len(changes) + 1)), ranking.best, changes, strict=True)]
    for place, item, changed in listed:
        own = {name: value for name, value in changed.items() if name not in common}
        rows.append(_row(place, item, _text(own) or "as below"))
    if ranking.baseline is not None:
        unfit = "" if ranking.baseline.fits else " (does not fit)"
        rows.append(_row("base", ranking.baseline, f"the study's baseline{unfit}"))
    print("\n" + aligned(rows))
    if common:
        print(f"all of them, other than the baseline: {_text(common)}")
    _print_first(ranking.best[0])


def _coverage(ranking: Ranking) -> str:
    text = (
        f"looked at {ranking.looked_at} points of at most {ranking.distinct_points:.3g} that differ in prediction "
        f"(space: at most {ranking.space_points:.3g}): {ranking.legal} legal, {ranking.not_fitting} of them do not fit"
    )
    if not ranking.exhaustive:
        text += "\nnot exhaustive: all parallel layouts of the baseline, then changes of the fastest ones found"
    return text


def _row(place: str, item: Ranked, text: str) -> tuple[str, ...]:
    time = item.time
    return (
        place,
        f"{time.tokens_per_s_per_gpu:.0f}",
        f"{time.step_time_s:.3f}",
        f"{time.mfu:.1%}",
        f"{item.memory.peak_memory_bytes / 2**30:.1f}",
        text,
    )


def _changes(request: TuneRequest, item: Ranked) -> dict[str, Value]:
    """What predictions depend on and the baseline has otherwise."""
    baseline = request.space.baseline
    return {
        name: value
        for name, value in item.point.items()
        if name in SEEN and baseline.get(name, SETTINGS[name].default) != value
    }


def _text(settings: dict[str, Value]) -> str:
    return " ".join(f"{name}={value_text(value)}" for name, value in settings.items())


def _print_first(first: Ranked) -> None:
    time, memory = first.time, first.memory
    low, high = time.interval
    print("\nthe first one")
    print(f"  step time {time.step_time_s:.3f} s, two times in three between {low:.3f} and {high:.3f} s")
    for name, seconds in sorted(time.parts.items(), key=lambda part: -part[1]):
        print(f"    {name:20}{seconds:9.3f} s {seconds / time.step_time_s:6.1%}")
    stage = memory.stages[memory.worst_stage]
    print(
        f"  peak memory {memory.peak_memory_bytes / 2**30:.1f} GiB +-{memory.uncertainty:.0%}, pipeline rank "
        f"{memory.worst_stage}; {memory.device_memory_bytes / 2**30:.1f} GiB of the device"
    )
    for name, size in sorted(stage.parts().items(), key=lambda part: -part[1]):
        if size >= 2**20:
            print(f"    {name:20}{size / 2**30:9.2f} GiB {size / stage.total:6.1%}")
    longest = longest_parts(time)
    print(f"  bound: {time.bound}; longest parts: {' and '.join(longest)}")
    for part in longest:
        for advice in relief(part, first.settings):
            print(f"    {part}: {advice}")
    print(f"  most uncertain: {time.biggest_uncertainty}")
    for note in dict.fromkeys([*time.notes, *memory.notes]):
        print(f"  note: {note}")
