"""``autotune plan``."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from autotune.cli import options, prediction
from autotune.cli.output import writing
from autotune.cli.tables import aligned, settings_text, terminal_width, value_text, wrapped
from autotune.constraint.check import first_violation
from autotune.constraint.rule import candidate
from autotune.export.draft import ALTERNATIVES, STACK, draft_text
from autotune.files import write_atomically
from autotune.predict.rank import SEEN, Ranked, Ranking, rank
from autotune.request import TuneRequest, load_request
from autotune_policies.settings import SETTINGS, Settings, Value

_RULES_SHOWN = 5
_VALUES_SHOWN = 4


@click.command("plan")
@options.model
@options.cluster
@click.option("--gpus", type=int, metavar="N", help="GPUs. Default: the model file's.")
@options.trial
@click.option("--top", type=click.IntRange(min=1), default=10, show_default=True, metavar="N", help="How many to show.")
@click.option("--memory-limit-gib", type=float, metavar="X", help="Leave out what has a higher peak, GiB per GPU.")
@click.option(
    "--policy", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
    help="Also write the fastest that fits as a policy draft, marked predicted; ranks what the newest release can run.",
)  # fmt: skip
@options.as_json
def command(
    model: str,
    cluster: str,
    gpus: int | None,
    trial: str | None,
    top: int,
    memory_limit_gib: float | None,
    policy: Path | None,
    as_json: bool,
) -> int:
    """The fastest legal configurations as predicted, with time and memory by part, without hardware.

    The exit status is 1 when nothing is legal, or nothing that is legal fits into memory; it names the rules then.
    """
    request = load_request(model, cluster, gpus=gpus, trial=trial, memory_limit_gib=memory_limit_gib)
    refusals = _Refusals(request, None if policy is None else STACK)
    ranking = rank(request, refusals.is_legal, top=max(top, 1 + ALTERNATIVES))
    if policy is not None and ranking.best:
        with writing("policy", policy):
            write_atomically(policy, draft_text(request, ranking).encode())
    ranking = ranking.leading(top)
    if as_json:
        print(json.dumps(_document(request, ranking, refusals)))
    else:
        print("\n".join(_lines(request, ranking, refusals, terminal_width())))
    return 0 if ranking.best else 1


class _Refusals:
    """Legality as the ranking asks for it, with a count of the rules that refused first."""

    def __init__(self, request: TuneRequest, stack: Mapping[str, str] | None) -> None:
        self.points: Counter[str] = Counter()
        self.messages: dict[str, str] = {}
        self._request = request
        self._stack = stack

    def is_legal(self, settings: Settings) -> bool:
        found = first_violation(candidate(self._request, settings, self._stack))
        if found is None:
            return True
        self.points[found.rule] += 1
        self.messages.setdefault(found.rule, found.message)
        return False


def _document(request: TuneRequest, ranking: Ranking, refusals: _Refusals) -> dict[str, Any]:
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
        "refused_by": [
            {"rule": rule, "points": points, "example": refusals.messages[rule]}
            for rule, points in refusals.points.most_common()
        ],
        "left_out": [asdict(item) for item in request.space.left_out],
        "parameters_without_prediction": list(ranking.unseen),
        "baseline": None if ranking.baseline is None else _entry(ranking.baseline),
        "recommended": next((place for place, item in enumerate(ranking.best) if item is ranking.recommended), None),
        "ranking": [_entry(item) for item in ranking.best],
    }


def _entry(item: Ranked) -> dict[str, Any]:
    return prediction.document(_prediction(item))


def _prediction(item: Ranked) -> prediction.Prediction:
    return prediction.Prediction(item.settings, item.time, item.memory, item.fit)


def _lines(request: TuneRequest, ranking: Ranking, refusals: _Refusals, width: int | None) -> Iterator[str]:
    contract, gpus = request.contract, request.gang.world_size
    head = (
        f"{request.model} on {gpus} {request.cluster.name} GPU{'s' * (gpus > 1)}, {contract.precision}, sequence "
        f"{contract.seq_length}, batch {contract.global_batch_size}: predicted, not measured"
    )
    yield from wrapped([head, *_coverage(request, ranking)], width)
    if not ranking.best:
        yield from wrapped(_why_nothing(ranking, refusals), width)
        return
    changes = [_changes(request, item) for item in ranking.best]
    common = {name: value for name, value in changes[0].items() if all(other.get(name) == value for other in changes)}
    rows: list[tuple[str, ...]] = [("", "tokens/s/GPU", "step s", "MFU", "peak GiB", "settings")]
    for place, (item, changed) in enumerate(zip(ranking.best, changes, strict=True), 1):
        own = {name: value for name, value in changed.items() if name not in common}
        rows.append(_row(str(place), item, settings_text(own) or "as below"))
    if ranking.baseline is not None:
        unfit = "" if ranking.baseline.fits else " (does not fit)"
        rows.append(_row("base", ranking.baseline, f"the study's baseline{unfit}"))
    yield "\n" + aligned(rows, width)
    if any(item.fit == "may not fit" for item in ranking.best):
        yield from wrapped(["? may not fit: the room left is less than the memory model's own error"], width)
    if common:
        yield from wrapped([f"all of them, other than the baseline: {settings_text(common)}"], width)
    assert ranking.recommended is not None
    place = ranking.best.index(ranking.recommended) + 1
    whole = settings_text(changes[place - 1]) or "nothing"
    yield f"\nnumber {place}, the fastest that fits" if ranking.recommended.fit == "fits" else "\nnumber 1"
    yield from wrapped([f"  other than the baseline: {whole}"], width)
    yield from wrapped((f"  {line}" for line in prediction.lines(_prediction(ranking.recommended))), width)


def _coverage(request: TuneRequest, ranking: Ranking) -> Iterator[str]:
    yield (
        f"looked at {ranking.looked_at} points of at most {ranking.distinct_points:.3g} that differ in prediction "
        f"(space: at most {ranking.space_points:.3g}): {ranking.legal} legal, {ranking.not_fitting} of them do not fit"
    )
    if not ranking.exhaustive:
        yield "not exhaustive: layouts, random points, then changes of the fastest ones found"
    reasons: dict[tuple[str, str], list[str]] = {}
    for item in request.space.left_out:
        reasons.setdefault((item.parameter, item.why), []).append(value_text(item.value))
    for (name, why), values in reasons.items():
        more = f" and {len(values) - _VALUES_SHOWN} more" if len(values) > _VALUES_SHOWN else ""
        yield f"left out: {name}={', '.join(values[:_VALUES_SHOWN])}{more}: {why}"


def _why_nothing(ranking: Ranking, refusals: _Refusals) -> Iterator[str]:
    if ranking.legal:
        yield "none of them fits: more GPUs, or a higher --memory-limit-gib where one was given"
        return
    yield "none of them is legal; the rules that refused most, with an example each:"
    for rule, points in refusals.points.most_common(_RULES_SHOWN):
        yield f"  {rule}, {points} point{'s' * (points > 1)}: {refusals.messages[rule]}"
    yield "another --gpus may help; autotune check judges one configuration"


def _row(place: str, item: Ranked, text: str) -> tuple[str, ...]:
    time = item.time
    return (
        place,
        f"{time.tokens_per_s_per_gpu:.0f}",
        f"{time.step_time_s:.3f}",
        f"{time.mfu:.1%}",
        f"{item.memory.peak_memory_bytes / 2**30:.1f}{'?' * (item.fit == 'may not fit')}",
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
