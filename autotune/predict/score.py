"""Predictions against measured rows: errors, bias and rank correlation.

A stack's efficiency is learned from the other rows of the table, never from the row that is scored.
"""

from bisect import bisect_right, insort
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from autotune.errors import AutotuneError
from autotune.predict.block_time import expert_layer_time
from autotune.predict.dispatch import dispatch_time
from autotune.predict.efficiency import Observation
from autotune.predict.hardware import hardware_of
from autotune.predict.leave_one_out import LeaveOneOut
from autotune.predict.memory import predict_memory
from autotune.predict.placement import Placed, place, place_cluster, place_dispatch, place_settings, seq_length
from autotune.predict.published_shapes import shape_of
from autotune.predict.table import MeasurementTable, TableRow
from autotune.predict.time import predict_time
from autotune.predict.work import Work


@dataclass(frozen=True)
class Scored:
    """One measured number and its prediction, in seconds, bytes or tokens/s.

    Attributes:
        row: Index of the row among the table's data rows, from 0.
        quantity: Which number.
        measured: As the table has it.
        predicted: As predicted; times with the efficiency that the other rows show.
        group: Rows of one group are comparable.
        approximate: Whether the table marks the measurement as approximate.
        ranked: What ranks it among its group: predicted with an efficiency that the whole group shares. One that leaves
            the row itself out leans away from its measurement, and would turn the ranks of equal rows around.
    """

    row: int
    quantity: str
    measured: float
    predicted: float
    group: str
    ranked: float
    approximate: bool = False

    @property
    def error(self) -> float:
        """Relative error, positive where the prediction is too high."""
        return self.predicted / self.measured - 1


@dataclass(frozen=True)
class Skipped:
    """A row, or one quantity of it, that was not scored."""

    row: int
    reason: str


@dataclass(frozen=True)
class Summary:
    """How good the predictions of one quantity are.

    Attributes:
        n: Rows.
        mape: Mean absolute error, relative to the measurement (0.05 = 5 %).
        bias: Mean error, positive where predictions are too high.
        kendall_tau: Rank correlation (tau-b) over all rows, or all of a group; null where ranks are undefined.
        within_groups: The same over pairs of comparable rows only.
    """

    n: int
    mape: float
    bias: float
    kendall_tau: float | None
    within_groups: float | None = None


@dataclass(frozen=True)
class Score:
    """A scored table.

    Attributes:
        rows: In the order of the table.
        summary: By quantity.
        groups: By quantity and group.
        skipped: What was not scored, and why.
        efficiency: Measured over predicted speed by cluster, precision and stack, all rows together.
        notes: Where the table leaves what the predictors know, and what its rows leave open.
    """

    rows: tuple[Scored, ...]
    summary: Mapping[str, Summary]
    groups: Mapping[str, Mapping[str, Summary]]
    skipped: tuple[Skipped, ...]
    efficiency: Mapping[tuple[str, str, str], float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Timed:
    """A predicted time that the stack's efficiency has not corrected yet."""

    scored: Scored
    seen: Observation
    inverse: bool = False


@dataclass
class _Found:
    """What the rows of one table gave so far."""

    fixed: list[Scored] = field(default_factory=list)
    timed: list[_Timed] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    assumed: Counter[str] = field(default_factory=Counter)


def score_table(table: MeasurementTable) -> Score:
    """All rows of a table, scored or skipped with the reason."""
    found = _Found()
    for row in table.rows:
        if row.failure is not None or not row.measured:
            nothing = "; ".join(row.unusable.values()) or "nothing that can be predicted was measured"
            found.skipped.append(Skipped(row.index, row.failure or nothing))
            continue
        found.skipped.extend(Skipped(row.index, why) for why in row.unusable.values())
        for kind, quantities in _KINDS:
            if not quantities & set(row.measured):
                continue
            try:
                kind(row, table, found)
            except (AutotuneError, ValueError) as error:
                found.skipped.append(Skipped(row.index, str(error)))
    corrected, efficiency = _corrected(found.timed)
    rows = tuple(sorted((*found.fixed, *corrected), key=lambda item: item.row))
    programs = sorted({row.cells.get("program", "Megatron") for row in table.rows})
    notes = [
        f"program {name}: Megatron-Core is predicted, whose schedules, kernels and buffers are others"
        for name in programs
        if not name.startswith("Megatron")
    ]
    notes += [f"{count} row{'s' * (count > 1)}: {what}" for what, count in sorted(found.assumed.items())]
    return Score(rows, *_summaries(rows), tuple(found.skipped), efficiency, tuple(notes))


def kendall_tau(pairs: Iterable[tuple[float, float]]) -> float | None:
    """Kendall's tau-b: concordant minus discordant pairs, ties taken out; null where either side is all ties."""
    return _tau(_Concordance.of(list(pairs)))


@dataclass(frozen=True)
class _Concordance:
    """Counts of pairs, which add up over groups."""

    difference: int = 0
    untied_first: int = 0
    untied_second: int = 0

    @staticmethod
    def of(pairs: Sequence[tuple[float, float]]) -> "_Concordance":
        every = _choose(len(pairs))
        first = sum(_choose(count) for count in Counter(x for x, _ in pairs).values())
        second = sum(_choose(count) for count in Counter(y for _, y in pairs).values())
        both = sum(_choose(count) for count in Counter(pairs).values())
        discordant, seen = 0, list[float]()
        for _, y in sorted(pairs):
            discordant += len(seen) - bisect_right(seen, y)
            insort(seen, y)
        concordant = every - first - second + both - discordant
        return _Concordance(concordant - discordant, every - first, every - second)

    def __add__(self, other: "_Concordance") -> "_Concordance":
        return _Concordance(
            self.difference + other.difference,
            self.untied_first + other.untied_first,
            self.untied_second + other.untied_second,
        )


def _tau(counts: _Concordance) -> float | None:
    scale = float(counts.untied_first * counts.untied_second) ** 0.5
    return counts.difference / scale if scale else None


def _choose(count: int) -> int:
    return count * (count - 1) // 2


def _scored(row: TableRow, quantity: str, predicted: float) -> Scored:
    approximate = quantity in row.approximate
    return Scored(row.index, quantity, row.measured[quantity], predicted, row.group, predicted, approximate)


def _step(row: TableRow, table: MeasurementTable, found: _Found) -> None:
    placed = place(row, table)
    found.assumed.update(placed.assumed)
    if row.measured.keys() & {"step_time_s", "tokens_per_s_per_gpu"}:
        found.timed.extend(_step_times(row, placed))
    if "peak_memory_bytes" in row.measured:
        memory = predict_memory(
            placed.model, placed.contract, placed.settings, placed.gang, placed.cluster, placed.numerics
        )
        found.fixed.append(_scored(row, "peak_memory_bytes", memory.peak_memory_bytes))


def _step_times(row: TableRow, placed: Placed) -> Iterable[_Timed]:
    contract, num_gpus = placed.contract, placed.gang.world_size
    estimate = predict_time(placed.cluster, placed.model, contract, placed.settings, num_gpus, numerics=placed.numerics)
    tokens = contract.seq_length * contract.global_batch_size / num_gpus
    measured_s = row.measured.get("step_time_s") or tokens / row.measured["tokens_per_s_per_gpu"]
    name = placed.cluster.name
    seen = Observation(name, contract.precision, placed.stack, measured_s, estimate.step_time_s, placed.model.name)
    if "step_time_s" in row.measured:
        yield _Timed(_scored(row, "step_time_s", estimate.step_time_s), seen)
    if "tokens_per_s_per_gpu" in row.measured:
        yield _Timed(_scored(row, "tokens_per_s_per_gpu", estimate.tokens_per_s_per_gpu), seen, inverse=True)


def _layer(row: TableRow, table: MeasurementTable, found: _Found) -> None:
    cells = row.cells
    cluster, settings = place_cluster(cells), place_settings(cells)
    model = shape_of(cells.get("model", ""), table.models)
    tokens, sms = seq_length(cells), settings["num_sms"]
    expert, precision = settings["expert_parallel"], cells.get("precision", "bf16")
    assert isinstance(expert, int)
    work = Work(
        tokens,
        tokens,
        expert_parallel=expert,
        num_domains=-(-expert // cluster.nvlink_domain_gpus),
        precision=precision,
        dispatcher=str(settings["dispatcher"]),
        num_sms=sms if isinstance(sms, int) else None,
        permute_fusion=bool(settings["permute_fusion"]),
    )
    predicted_s = expert_layer_time(hardware_of(cluster), model, work)
    stack = cells.get("stack") or cells.get("commit", "")
    seen = Observation(cluster.name, precision, stack, row.measured["layer_time_s"], predicted_s)
    found.timed.append(_Timed(_scored(row, "layer_time_s", predicted_s), seen))
    if "peak_memory_bytes" in row.measured:
        found.skipped.append(Skipped(row.index, "peak_memory_bytes: there is no memory model of a layer alone"))


def _dispatch(row: TableRow, table: MeasurementTable, found: _Found) -> None:
    cluster, backend, load, budgets = place_dispatch(row)
    for operation, sms in budgets.items():
        quantity = f"{operation}_time_s"
        if quantity in row.measured:
            estimate = dispatch_time(hardware_of(cluster), backend, load, sms)
            found.fixed.append(_scored(row, quantity, getattr(estimate, quantity)))


_Kind = Callable[[TableRow, MeasurementTable, _Found], None]


def _whole_step(row: TableRow, table: MeasurementTable, found: _Found) -> None:
    # The peak memory of a benchmark of one layer is not a training step's.
    if "layer_time_s" not in row.measured:
        _step(row, table, found)


_KINDS: tuple[tuple[_Kind, set[str]], ...] = (
    (_whole_step, {"step_time_s", "tokens_per_s_per_gpu", "peak_memory_bytes"}),
    (_layer, {"layer_time_s"}),
    (_dispatch, {"dispatch_time_s", "combine_time_s"}),
)


def _corrected(timed: Sequence[_Timed]) -> tuple[list[Scored], dict[tuple[str, str, str], float]]:
    """Times with the efficiency that all rows but their own show; and each stack's own, for people."""
    corrected = []
    layers = [item for item in timed if item.scored.quantity == "layer_time_s"]
    steps = {item.scored.row: item for item in timed if item.scored.quantity != "layer_time_s"}
    pools = ([(item.scored.row, item.seen) for item in layers], [(row, item.seen) for row, item in steps.items()])
    factors: dict[tuple[int, bool], float] = {}
    for is_step, pool in enumerate(pools):
        shown = LeaveOneOut(seen for _, seen in pool)
        for row, seen in pool:
            factors[row, bool(is_step)] = shown.without(seen) or 1.0
    for item in timed:
        factor = factors[item.scored.row, item.scored.quantity != "layer_time_s"]
        predicted = item.scored.predicted * factor if item.inverse else item.scored.predicted / factor
        corrected.append(replace(item.scored, predicted=predicted))
    everything = [seen for pool in pools for _, seen in pool]
    stacks = {(seen.cluster, seen.precision, seen.stack) for seen in everything}
    overall = LeaveOneOut(everything)
    learned = {stack: overall.of(*stack) for stack in sorted(stacks)}
    return corrected, {stack: found for stack, found in learned.items() if found is not None}


def _summaries(rows: Sequence[Scored]) -> tuple[dict[str, Summary], dict[str, dict[str, Summary]]]:
    by_quantity: dict[str, dict[str, list[Scored]]] = {}
    for item in rows:
        by_quantity.setdefault(item.quantity, {}).setdefault(item.group, []).append(item)
    groups = {
        quantity: {group: _summary(members, _ranked(members)) for group, members in found.items()}
        for quantity, found in by_quantity.items()
    }
    summary = {}
    for quantity, found in by_quantity.items():
        counts = sum((_Concordance.of(_ranked(members)) for members in found.values()), _Concordance())
        every = [item for members in found.values() for item in members]
        pairs = [(item.measured, item.predicted) for item in every]
        summary[quantity] = replace(_summary(every, pairs), within_groups=_tau(counts))
    return summary, groups


def _ranked(rows: Sequence[Scored]) -> list[tuple[float, float]]:
    return [(item.measured, item.ranked) for item in rows]


def _summary(rows: Sequence[Scored], pairs: Sequence[tuple[float, float]]) -> Summary:
    errors = [item.error for item in rows]
    mape = sum(map(abs, errors)) / len(errors)
    return Summary(len(rows), mape, sum(errors) / len(errors), kendall_tau(pairs))
