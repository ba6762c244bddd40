"""A policy of predicted settings: where a search may start, and nothing that anybody measured.

Predicted numbers stand under names of their own (``predicted_step_time_s``, ...), rounded to what they are worth, so
that no reader can take them for measurements.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from autotune.constraint.check import is_legal
from autotune.constraint.rule import candidate
from autotune.errors import RequestError
from autotune.predict.rank import Ranked, Ranking, rank
from autotune.request import TuneRequest
from autotune_policies.errors import PolicyError
from autotune_policies.megatron_core import RELEASES, render
from autotune_policies.policy import Policy, dump_policy
from autotune_policies.settings import Settings, resolve
from autotune_policies.surroundings import launch_of

ALTERNATIVES = 2
"""Further predicted configurations in a draft: more starting points for a search."""

_DIGITS = 3

_LIBRARIES = {"torch": "2.13", "transformer_engine": "2.16"}
"""Versions taken for granted beside Megatron-Core: none that a rule asks for is newer."""

STACK = {**_LIBRARIES, "megatron_core": f"{RELEASES[-1]}.0"}
"""What a draft is ranked for: rules on versions are asked, which a plan without a stack cannot do."""


def ranked(request: TuneRequest, stack: Mapping[str, str] | None, top: int) -> Ranking:
    """The fastest configurations that no rule refuses, as predicted.

    Args:
        request: Model, cluster, contract and space.
        stack: Versions by component; None = not known, rules on versions hold back.
        top: How many.

    Raises:
        RequestError: no time model for this cluster, or no legal configuration at all.
    """
    return rank(request, lambda settings: is_legal(candidate(request, settings, stack)), top=top)


def draft_text(request: TuneRequest, ranking: Ranking) -> str:
    """The draft as YAML, marked as predicted in its first line.

    Args:
        request: Model, cluster and contract.
        ranking: Ranked for :data:`STACK`.

    Raises:
        RequestError: no legal configuration fits into memory, or no Megatron-Core release can run the first.
    """
    head = (
        f"# PREDICTED, not measured: the fastest that `autotune plan` expects to fit, for {request.model} on "
        f"{request.gang.world_size} {request.cluster.name} GPUs.\n"
        "# Nobody has run this. It is a starting point for `autotune start --warm-start`, which measures.\n"
    )
    return head + dump_policy(make_draft(request, ranking))


def make_draft(request: TuneRequest, ranking: Ranking) -> Policy:
    """The fastest configuration that is predicted to fit, with others as alternatives.

    Args:
        request: Model, cluster and contract.
        ranking: Ranked for :data:`STACK`.

    Raises:
        RequestError: no legal configuration fits into memory, or no Megatron-Core release can run the first.
    """
    best = ranking.recommended
    if best is None:
        raise RequestError(why_nothing_fits(request, ranking), hint="more GPUs: --gpus")
    others = [item for item in ranking.best if item is not best][:ALTERNATIVES]
    runs_on = releases(request, best.settings)
    if not runs_on:
        raise RequestError(
            f"no Megatron-Core release from {RELEASES[0]} to {RELEASES[-1]} can run the one that is recommended"
        )
    contract, gang = request.contract, request.gang
    evidence = {
        "kind": "predicted",
        **_prediction(best),
        "num_gpus": gang.world_size,
        "note": "predicted from data sheets and public measurements, no run is behind it; taken for granted: "
        + ", ".join(f"{name} {version}" for name, version in _LIBRARIES.items()),
        "contract": {"model": asdict(request.shape), "contract": asdict(contract), "gang": asdict(gang)},
    }
    return Policy(
        applies_to={
            "model": request.model,
            "cluster": request.cluster.name,
            "num_gpus": gang.world_size,
            "precision": contract.precision,
            "seq_length": contract.seq_length,
            "global_batch_size": contract.global_batch_size,
            "stack": {"megatron_core": {"min": runs_on[0], "below": _after(runs_on[-1])}},
        },
        settings=resolve(best.settings),
        env=request.environment(best.settings),
        launch={**request.cluster.launch, **launch_of(best.settings)},
        evidence=json.loads(json.dumps(evidence)),
        alternatives=[{**_prediction(item), "settings": resolve(item.settings)} for item in others],
        name=f"{request.model}-{request.cluster.name}.yaml",
    )


def why_nothing_fits(request: TuneRequest, ranking: Ranking) -> str:
    """Why there is no draft, on one line."""
    return (
        f"none of {ranking.legal} legal configurations of {request.model} that were looked at fits into the memory of "
        f"{request.gang.world_size} {request.cluster.name} GPUs"
    )


def releases(request: TuneRequest, settings: Settings) -> Sequence[str]:
    """The newest Megatron-Core releases, without a gap, that know these settings and refuse none of them."""
    found: list[str] = []
    for release in reversed(RELEASES):
        if _runs_on(request, settings, release):
            found.insert(0, release)
        elif found:
            break
    return found


def _runs_on(request: TuneRequest, settings: Settings, release: str) -> bool:
    try:
        render(settings, release)
    except PolicyError:
        return False
    return is_legal(candidate(request, settings, {**_LIBRARIES, "megatron_core": f"{release}.0"}))


def _after(release: str) -> str:
    major, minor = release.split(".")
    return f"{major}.{int(minor) + 1}"


def _prediction(item: Ranked) -> dict[str, Any]:
    time, memory = item.time, item.memory
    low_s, high_s = time.interval
    return {
        "predicted_step_time_s": {
            "value": _rounded(time.step_time_s),
            "two_in_three_within": [_rounded(low_s), _rounded(high_s)],
        },
        "predicted_tokens_per_s_per_gpu": _rounded(time.tokens_per_s_per_gpu),
        "predicted_mfu": _rounded(time.mfu),
        "predicted_peak_memory_bytes": {
            "value": _rounded(memory.peak_memory_bytes),
            "uncertainty": _rounded(memory.uncertainty),
        },
        "bound": time.bound,
        "biggest_uncertainty": time.biggest_uncertainty,
    }


def _rounded(value: float) -> float | int:
    """Three digits: a prediction is not worth more, and other machines round the rest differently."""
    number = float(f"{value:.{_DIGITS}g}")
    return int(number) if number.is_integer() and abs(number) >= 100 else number
