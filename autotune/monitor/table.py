"""The final table of a study, for a person: trials by state, the Pareto front, winner against baseline."""

from collections.abc import Iterable, Sequence
from io import StringIO

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from autotune.measure.caveats import caveats
from autotune.measure.matched import only_difference
from autotune.measure.outcome import TrialOutcome, TrialState
from autotune_policies.settings import SETTINGS
from autotune_trials.spec import Contract, GangShape

_HEADERS = {
    "micro_batch_size": "micro-\nbatch",
    "tensor_parallel": "TP",
    "sequence_parallel": "SP",
    "pipeline_parallel": "PP",
    "virtual_pipeline": "VPP",
    "pipeline_layout": "layout",
    "context_parallel": "CP",
    "expert_parallel": "EP",
    "expert_tensor_parallel": "ETP",
    "num_sms": "SMs",
    "ep_overlap": "EP\noverlap",
}
_RECOMPUTE = ("recompute_granularity", "recompute_method", "recompute_num_layers", "recompute_modules")

_REASONS_PER_STATE = 6
_NUMBERS_PER_REASON = 12


def render_result(
    *,
    study: str,
    cluster: str,
    contract: Contract,
    gang: GangShape,
    outcomes: Iterable[TrialOutcome],
    front: Sequence[TrialOutcome],
    winner: TrialOutcome | None,
    baseline: TrialOutcome | None,
    findings: Sequence[str] = (),
    repeats: int = 0,
    width: int = 100,
    color: bool = False,
) -> str:
    """The result as text.

    Args:
        study: Study name.
        cluster: Cluster name.
        contract: What the study held fixed.
        gang: Shape of every gang.
        outcomes: All finished trials, refused and unavailable ones included.
        front: The Pareto front, fastest first.
        winner: The chosen trial; None when none completed.
        baseline: The correctness baseline; compared only when it is COMPLETE.
        findings: What else was found out, one sentence each.
        repeats: Runs of each finalist after the search.
        width: Columns of the terminal; longer cells are folded.
        color: Whether the reader is a terminal that shows colours.
    """
    file = StringIO()
    console = Console(
        file=file,
        width=width,
        force_terminal=color,
        color_system="standard" if color else None,
        no_color=not color,
        highlight=False,
        emoji=False,
        markup=False,
        legacy_windows=False,
        _environ={},  # the caller has decided on width and colours; COLUMNS, NO_COLOR and TERM have no say
    )

    console.print(Text(f"Study {study} on {cluster}, {_gang(gang)}", style="bold"))
    console.print(_states(list(outcomes)))
    if front:
        console.print(Text("Pareto front (throughput up, peak memory down; * = winner)", style="bold"))
        console.print(_front(front, winner))
    if winner is not None:
        for line in [*compare(winner, baseline), *findings]:
            console.print(Text(line))
    else:
        some = any(outcome.state is TrialState.COMPLETE for outcome in outcomes)
        reason = "No completed trial is within the request's limits" if some else "No trial completed"
        console.print(Text(f"{reason}, so there is no winner and no policy."))
    console.print(Text(""))
    for sentence in caveats(contract, gang, repeats):
        console.print(Text(f"Note: {sentence}.", style="dim"))
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines()) + "\n"


def compare(winner: TrialOutcome, baseline: TrialOutcome | None) -> list[str]:
    """Winner against baseline in sentences; numbers only when the baseline is COMPLETE too."""
    name = f"Winner: trial {winner.trial}"
    if baseline is None or baseline.state is not TrialState.COMPLETE:
        why = f"the baseline is {baseline.state}: {baseline.reason}" if baseline else "there is no baseline"
        return [f"{name}; not compared, since {why}."]
    if winner.trial == baseline.trial:
        return [f"{name}, which is the baseline itself: no measured trial was preferred to it."]
    fast = _ratio(winner.tokens_per_s_per_gpu, baseline.tokens_per_s_per_gpu)
    lean = _ratio(winner.peak_memory_bytes, baseline.peak_memory_bytes)
    changes = [
        f"{setting} {_cell(baseline.settings.get(setting))} -> {_cell(winner.settings.get(setting))}"
        for setting in SETTINGS
        if winner.settings.get(setting) != baseline.settings.get(setting)
    ]
    ratios = f"{name} against the baseline, trial {baseline.trial}: {fast} throughput, {lean} peak memory."
    if not changes:
        return [ratios, "Their settings are the same."]
    if (only := only_difference(baseline.settings, winner.settings)) is not None:
        belonging = " and what belongs to it" if len(changes) > 1 else ""
        return [ratios, f"Changed: {', '.join(changes)}; nothing but the {only}{belonging} differs."]
    return [
        ratios,
        f"Changed together: {', '.join(changes)}.",
        "These are two whole configurations: the ratios cannot be credited to any single setting.",
    ]


def format_bytes(size: int | None) -> str:
    """A size in binary units with three significant digits; ``-`` for unknown."""
    if size is None:
        return "-"
    value = float(size)
    for unit in ("B", "KiB", "MiB"):
        if abs(value) < 1024:
            return f"{value:.4g} {unit}"
        value /= 1024
    return f"{value:.4g} GiB"


def format_seconds(seconds: float | None) -> str:
    """A time in seconds, or in milliseconds below one second; ``-`` for unknown."""
    if seconds is None:
        return "-"
    return f"{seconds:.4g} s" if seconds >= 1 else f"{seconds * 1000:.4g} ms"


def _states(outcomes: Sequence[TrialOutcome]) -> Table:
    table = _table("state", "trials", "reason (trial numbers)")
    table.columns[1].justify = "right"
    for state in TrialState:
        here = [outcome for outcome in outcomes if outcome.state is state]
        if not here:
            continue
        by_cause: dict[str, list[TrialOutcome]] = {}
        for outcome in sorted(here, key=lambda outcome: outcome.trial):
            by_cause.setdefault(_cause(outcome), []).append(outcome)
        lines = [f"{same[0].reason or 'measured'} ({_numbers(same)})" for same in by_cause.values()]
        if len(lines) > _REASONS_PER_STATE:
            lines = [*lines[:_REASONS_PER_STATE], f"... and {len(lines) - _REASONS_PER_STATE} other reasons"]
        table.add_row(Text(state.value), Text(str(len(here))), Text("\n".join(lines)))
    return table


def _cause(outcome: TrialOutcome) -> str:
    """What counts as the same reason: for a refused trial the rule, since every message has its own numbers."""
    return outcome.reason.partition(":")[0] if outcome.state is TrialState.REFUSED else outcome.reason


def _numbers(outcomes: Sequence[TrialOutcome]) -> str:
    shown = [str(outcome.trial) for outcome in outcomes[:_NUMBERS_PER_REASON]]
    return ", ".join(shown) + (f" and {len(outcomes) - len(shown)} more" if len(outcomes) > len(shown) else "")


def _front(front: Sequence[TrialOutcome], winner: TrialOutcome | None) -> Table:
    """The front with the settings in which its trials differ; the dispatcher always."""
    rows = [_cells(outcome) for outcome in front]
    shown = [name for name in rows[0] if name == "dispatcher" or len({row[name] for row in rows}) > 1]
    table = _table("trial", "tokens/s\nper GPU", "step\ntime", "peak\nmemory", *shown)
    for column in table.columns[:4]:
        column.justify = "right"
    for outcome, row in zip(front, rows, strict=True):
        mark = "*" if winner is not None and outcome.trial == winner.trial else " "
        speed = outcome.tokens_per_s_per_gpu
        table.add_row(
            Text(f"{outcome.trial}{mark}"),
            Text("-" if speed is None else f"{speed:.1f}"),
            Text(format_seconds(outcome.step_time_s)),
            Text(format_bytes(outcome.peak_memory_bytes)),
            *(Text(row[name]) for name in shown),
        )
    return table


def _cells(outcome: TrialOutcome) -> dict[str, str]:
    """Every setting in words under its column's header; what belongs to recomputation is one column."""
    settings = outcome.settings
    cells = {"dispatcher": _cell(settings.get("dispatcher"))}
    cells |= {_HEADERS.get(name, name): _cell(settings.get(name)) for name in SETTINGS if name not in _RECOMPUTE}
    cells["recompute"] = " ".join(_cell(settings[name]) for name in _RECOMPUTE if settings.get(name)) or "-"
    return cells


def _table(*headers: str) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for header in headers:
        table.add_column(header, overflow="fold")
    return table


def _gang(gang: GangShape) -> str:
    unit = "process" if gang.device == "cpu" else "GPU"
    plural = unit if gang.world_size == 1 else f"{unit}es" if unit == "process" else f"{unit}s"
    nodes = "1 node" if gang.num_nodes == 1 else f"{gang.num_nodes} nodes"
    return f"{gang.world_size} {plural} on {nodes}, device {gang.device}"


def _ratio(ours: float | None, theirs: float | None) -> str:
    return f"{ours / theirs:.2f} x" if ours is not None and theirs else "unknown"


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "-"
    return str(value)
