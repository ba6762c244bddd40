"""One configuration's prediction, as JSON and as lines for people: what ``plan`` and ``check`` both show."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from autotune.errors import AutotuneError
from autotune.predict.fit import Fit, fit_of
from autotune.predict.memory import MemoryEstimate, predict_memory
from autotune.predict.numerics import program_numerics
from autotune.predict.relief import longest_parts, relief
from autotune.predict.time import TimeEstimate, predict_time
from autotune.request import TuneRequest
from autotune_policies.settings import Settings

SMALLEST_BYTES = 2**20
"""Parts of memory below it are not printed."""


@dataclass(frozen=True)
class Prediction:
    """What is predicted for one configuration.

    Attributes:
        settings: All canonical settings.
        time: Predicted step; null where the time model does not reach.
        memory: Predicted memory; null where the memory model does not reach.
        fit: Whether the device, and the limit that was given, hold it; null where that is not known.
        missing: Why something is null, one sentence each.
    """

    settings: Settings
    time: TimeEstimate | None
    memory: MemoryEstimate | None
    fit: Fit | None
    missing: tuple[str, ...] = ()


def predict(request: TuneRequest, settings: Settings) -> Prediction:
    """Time and memory of settings of a request, as far as the models reach; legality is not asked."""
    cluster, shape, contract, gang = request.cluster, request.shape, request.contract, request.gang
    if cluster.device != "cuda":
        return Prediction(settings, None, None, None, (f"cluster {cluster.name}: nothing is predicted for CPUs",))
    time, memory, missing = None, None, []
    numerics = program_numerics(request.program, shape.name)
    try:
        time = predict_time(cluster, shape, contract, settings, gang.world_size, numerics=numerics)
    except (AutotuneError, ValueError) as error:
        missing.append(f"no step time: {error}")
    try:
        memory = predict_memory(shape, contract, settings, gang, cluster, numerics)
    except (AutotuneError, ValueError) as error:
        missing.append(f"no memory: {error}")
    fit = None if memory is None else fit_of(memory, cluster.gpu_memory_bytes, request.memory_limit_bytes)
    return Prediction(settings, time, memory, fit, tuple(missing))


def document(found: Prediction) -> dict[str, Any]:
    """The prediction as JSON has it: seconds, bytes, shares; null where the models do not reach."""
    time, memory = found.time, found.memory
    return {
        "tokens_per_s_per_gpu": None if time is None else time.tokens_per_s_per_gpu,
        "step_time_s": None if time is None else time.step_time_s,
        "step_time_interval_s": None if time is None else list(time.interval),
        "tflops_per_gpu": None if time is None else time.tflops_per_gpu,
        "mfu": None if time is None else time.mfu,
        "bound": None if time is None else time.bound,
        "relief": [] if time is None else relief(longest_parts(time, 1)[0], found.settings),
        "biggest_uncertainty": None if time is None else time.biggest_uncertainty,
        "time_parts_s": {} if time is None else dict(time.parts),
        "peak_memory_bytes": None if memory is None else memory.peak_memory_bytes,
        "device_memory_bytes": None if memory is None else memory.device_memory_bytes,
        "memory_parts_bytes": {} if memory is None else memory.stages[memory.worst_stage].parts(),
        "memory_uncertainty": None if memory is None else memory.uncertainty,
        "worst_stage": None if memory is None else memory.worst_stage,
        "fits": None if found.fit is None else found.fit != "does not fit",
        "fit": found.fit,
        "settings": found.settings,
        "notes": _notes(found),
        "missing": list(found.missing),
    }


def lines(found: Prediction) -> Iterator[str]:
    """Step time and memory by part, the bound and what would relieve it, what is uncertain, what is missing."""
    if found.time is not None:
        yield from _time_lines(found.time)
    if found.memory is not None:
        yield from _memory_lines(found.memory, found.fit)
    if found.time is not None:
        longest = longest_parts(found.time)
        yield f"bound: {found.time.bound}; longest parts: {' and '.join(longest)}"
        for part in longest:
            for advice in relief(part, found.settings):
                yield f"  {part}: {advice}"
        yield f"most uncertain: {found.time.biggest_uncertainty}"
    for note in _notes(found):
        yield f"note: {note}"
    yield from found.missing


def _time_lines(time: TimeEstimate) -> Iterator[str]:
    low, high = time.interval
    yield (
        f"step time {time.step_time_s:.3f} s, two times in three between {low:.3f} and {high:.3f} s; "
        f"{time.tokens_per_s_per_gpu:.0f} tokens/s/GPU, MFU {time.mfu:.1%}"
    )
    for name, seconds in sorted(time.parts.items(), key=lambda part: -part[1]):
        yield f"  {name:20}{seconds:9.3f} s {seconds / time.step_time_s:6.1%}"


def _memory_lines(memory: MemoryEstimate, fit: Fit | None) -> Iterator[str]:
    stage = memory.stages[memory.worst_stage]
    yield (
        f"peak memory {memory.peak_memory_bytes / 2**30:.1f} GiB +-{memory.uncertainty:.0%}, pipeline rank "
        f"{memory.worst_stage}; {memory.device_memory_bytes / 2**30:.1f} GiB of the device{f': {fit}' if fit else ''}"
    )
    for name, size in sorted(stage.parts().items(), key=lambda part: -part[1]):
        if size >= SMALLEST_BYTES:
            yield f"  {name:20}{size / 2**30:9.2f} GiB {size / stage.total:6.1%}"


def _notes(found: Prediction) -> list[str]:
    notes = [*(found.time.notes if found.time else ()), *(found.memory.notes if found.memory else ())]
    return list(dict.fromkeys(notes))
