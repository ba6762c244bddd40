"""What a person sees on stderr while a study runs: a line per trial, and a bar where there is a terminal."""

from collections.abc import Iterable
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

from autotune.measure.outcome import TrialOutcome, TrialState
from autotune_policies.settings import Settings

_SHORT = {
    "expert_parallel": "EP", "pipeline_parallel": "PP", "virtual_pipeline": "VPP", "tensor_parallel": "TP",
    "micro_batch_size": "MBS", "num_sms": "SMs",
}  # fmt: skip


class Progress:
    """Tells how a study goes on; a context manager, because the bar must give the terminal back.

    Args:
        trials: Launched trials at most.
        console: Where to; stderr by default.
    """

    def __init__(self, trials: int, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
        columns = (TextColumn("trials"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"))
        self._bar = Bar(
            *columns,
            TimeElapsedColumn(),
            console=self._console,
            disable=not self._console.is_terminal,
            transient=True,
        )
        self._task = self._bar.add_task("", total=trials)
        self._best = 0.0
        self._advised: set[str] = set()

    def __enter__(self) -> "Progress":
        """Take the terminal."""
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Give the terminal back."""
        self._bar.stop()

    def say(self, text: str) -> None:
        """One line of talk."""
        self._console.print(text)

    def done(self, launched: int, outcomes: Iterable[TrialOutcome]) -> None:
        """So many launched trials count that had ended before this run began, among these outcomes."""
        self._bar.update(self._task, completed=launched)
        self._best = max((outcome.tokens_per_s_per_gpu or 0.0 for outcome in outcomes), default=0.0)

    def launched(self, trial: int, settings: Settings) -> None:
        """A trial is handed to the cluster."""
        self._bar.update(self._task, description=f"running {trial:04d} {short(settings)}")

    def repeated(self, outcome: TrialOutcome) -> None:
        """A finalist was run again; that counts for no trial."""
        if outcome.state is TrialState.COMPLETE:
            said = f"{outcome.tokens_per_s_per_gpu:9.1f} tokens/s/GPU  {len(outcome.step_times_s)} steps"
        else:
            said = f"{outcome.state} {outcome.reason}"
        self._console.print(f"again {outcome.trial:04d} {said}")
        self._explain(outcome)

    def ended(self, outcome: TrialOutcome) -> None:
        """A trial ended, launched or not."""
        if outcome.state.launched and not outcome.runs_again:
            self._bar.advance(self._task)
        if outcome.state is TrialState.COMPLETE:
            assert outcome.tokens_per_s_per_gpu is not None
            assert outcome.peak_memory_bytes is not None
            fastest = outcome.tokens_per_s_per_gpu > self._best
            self._best = max(self._best, outcome.tokens_per_s_per_gpu)
            detail = (
                f"{outcome.tokens_per_s_per_gpu:9.1f} tokens/s/GPU {outcome.peak_memory_bytes / 2**20:7.1f} MiB  "
                f"{short(outcome.settings)}{'  <- fastest so far' if fastest else ''}"
            )
        else:
            detail = f"{outcome.reason}  ({short(outcome.settings)})"
        self._console.print(f"trial {outcome.trial:04d} {outcome.state:<11} {detail}")
        self._explain(outcome)

    def _explain(self, outcome: TrialOutcome) -> None:
        """Notes of an outcome, and what to do about its cause; the latter once."""
        for note in outcome.notes:
            self._console.print(f"{'':10} note: {note}")
        if outcome.advice and outcome.cause not in self._advised:
            self._advised.add(outcome.cause)
            self._console.print(f"{'':10} {outcome.cause}: {outcome.advice}")


def short(settings: Settings) -> str:
    """Settings in a few words: the dispatcher, then what is not at one."""
    words = [str(settings["dispatcher"])]
    words += [f"{label}{settings[name]}" for name, label in _SHORT.items() if settings[name] not in (1, None)]
    if settings["pipeline_layout"]:
        words.append(str(settings["pipeline_layout"]))
    if settings["recompute_granularity"]:
        modules = settings["recompute_modules"]
        assert isinstance(modules, list)
        words.append("recompute " + ("+".join(modules) or str(settings["recompute_granularity"])))
    words += [name for name in ("ep_overlap", "permute_fusion") if settings[name]]
    if settings["cuda_graph_impl"] != "none":
        words.append(f"graphs {settings['cuda_graph_impl']}")
    return " ".join(words)
