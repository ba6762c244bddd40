"""Why a gang did not deliver: one cause, however many ranks went down with it.

When one rank dies the others fail too, of broken connections, of aborts, or because they were killed. So the
ranks are sorted by how much their end explains, and the first one is named; the others are followers.
"""

import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from autotune.measure.run import GangRun, RankExit

Kind = Literal["rejected", "out_of_memory", "numerics", "crash", "exception", "hang", "outside", "unknown"]

_STAGES = (None, "started", "imported", "built", "step", "finished")

_OUTSIDE_SIGNALS = {"SIGTERM", "SIGINT", "SIGHUP"}

_DEVICE_MEMORY = re.compile(r"CUDA out of memory|CUDA error: out of memory|Cuda failure (?:2 )?'out of memory'")
_HOST_MEMORY = re.compile(
    r"DefaultCPUAllocator: (?:can't allocate|not enough) memory|std::bad_alloc|Cannot allocate memory"
)
_BROKEN_CONNECTION = re.compile(
    r"connection (?:closed|reset|refused|was)|broken pipe|closed by peer|remote process exited|socket timeout"
    r"|\bEOF\b|DistNetworkError|ncclRemoteError|connection error|communicator was aborted|timed out",
    re.IGNORECASE,
)

_LINE_LIMIT = 300


@dataclass(frozen=True)
class Failure:
    """The first cause of a failed gang.

    Attributes:
        kind: What it was, in one word; ``outside`` = somebody else ended it, which says nothing of
            the settings.
        reason: One line for people, ranks and step included.
        violation: 2 when it failed before the first step, falling towards 1 the more steps it completed; a
            gradient for the sampler.
    """

    kind: Kind
    reason: str
    violation: float


def diagnose(run: GangRun, steps: int) -> Failure:
    """The first cause of a run that ended by ``rank_died``, ``deadline`` or ``stall``.

    Args:
        run: What came back.
        steps: Steps the contract asks for, warm-up included.
    """
    culprits = sorted((rank for rank in run.ranks if _ended_badly(rank)), key=_explains)
    if culprits:
        first, followers = culprits[0], culprits[1:]
        kind, what = _cause(first)
        reason = f"{what} ({_where(first)})"
        if followers:
            reason += f"; {_names(followers)} followed"
        return Failure(kind, reason, violation_at(first.last_step, steps))
    if run.ending in ("deadline", "stall"):
        return _hang(run, steps)
    last_step = min((rank.last_step for rank in run.ranks), default=0)
    message = one_line(run.message) or "the gang ended early and no rank said why"
    return Failure("unknown", f"unknown cause: {message}", violation_at(last_step, steps))


def violation_at(completed_steps: int, steps: int) -> float:
    """Violation of a run that got so far: 2 before the first step, towards 1 (never below) at the last."""
    return 2.0 - min(max(completed_steps / max(steps, 1), 0.0), 1.0)


def signal_name(number: int) -> str:
    """``SIGSEGV`` for 11; ``signal 99`` for a number without a name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def rank_names(ranks: Sequence[int]) -> str:
    """Ranks as people write them: ``rank 3``, ``ranks 0-3, 7``."""
    runs: list[list[int]] = []
    for rank in sorted(set(ranks)):
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    text = ", ".join(str(low) if low == high else f"{low}-{high}" for low, high in runs)
    return f"rank {text}" if len(set(ranks)) == 1 else f"ranks {text}"


def one_line(text: str) -> str:
    """The text on one line of bounded length, white space collapsed."""
    line = " ".join(text.split())
    return line if len(line) <= _LINE_LIMIT else line[: _LINE_LIMIT - 3] + "..."


def _ended_badly(rank: RankExit) -> bool:
    """Whether this rank's end may be the cause: it said that it failed, or died without our doing."""
    return rank.failure is not None or (not rank.killed and rank.exit_code not in (0, None))


def _explains(rank: RankExit) -> tuple[int, int, int]:
    """Sort key, most telling end first; among equals the rank that got least far, then the lowest."""
    kind, _ = _cause(rank)
    connection = rank.failure is not None and _BROKEN_CONNECTION.search(_said(rank)) is not None
    # Communication libraries abort the process when a peer is gone, so SIGABRT is often a consequence.
    aborted = _signal(rank) == "SIGABRT" and rank.failure is None
    if kind in ("out_of_memory", "rejected", "numerics"):
        order = 0
    elif kind == "outside":
        order = 1
    elif kind == "crash" and not aborted:
        order = 2
    elif kind == "exception" and not connection:
        order = 3
    elif kind == "unknown":
        order = 4
    else:
        order = 5
    return order, rank.last_step, rank.rank


def _cause(rank: RankExit) -> tuple[Kind, str]:
    """What ended this one rank."""
    failure = rank.failure or {}
    kind, error = failure.get("kind", ""), failure.get("error", "")
    message = one_line(failure.get("message", ""))
    said = one_line(f"{error}: {message}" if error and message else error or message)
    if error == "KeyboardInterrupt":
        return "outside", "interrupted from outside"
    if kind == "rejected":
        return "rejected", f"configuration rejected: {said}"
    if kind == "numerics":
        return "numerics", f"numerics: {said}"
    memory = _memory(rank)
    if memory:
        return "out_of_memory", f"out of {memory} memory" + (f": {said}" if said else "")
    if rank.failure is not None:
        return "exception", said or "failed without a message"
    name = _signal(rank)
    if name in _OUTSIDE_SIGNALS:
        return "outside", f"ended from outside by {name}"
    if name == "SIGKILL":
        return (
            "out_of_memory",
            "killed by SIGKILL, not by us: probably the kernel's out-of-memory killer (host memory)",
        )
    if name:
        return "crash", f"crashed by {name}"
    return "unknown", f"exit status {rank.exit_code} without a word"


def _memory(rank: RankExit) -> Literal["device", "host"] | None:
    """Which memory ran out on this rank, if one did."""
    failure = rank.failure or {}
    text = f"{failure.get('message', '')}\n{rank.log_tail}"
    error = failure.get("error", "").rpartition(".")[2]
    if error == "OutOfMemoryError" or _DEVICE_MEMORY.search(text):
        return "device"
    if error == "MemoryError" or _HOST_MEMORY.search(text):
        return "host"
    if failure.get("kind") == "out_of_memory":
        return "device" if "CUDA" in text else "host"
    return None


def _signal(rank: RankExit) -> str | None:
    """Name of the signal that ended the rank, unless it was ours."""
    if rank.killed or rank.exit_code is None or rank.exit_code >= 0:
        return None
    return signal_name(-rank.exit_code)


def _said(rank: RankExit) -> str:
    failure = rank.failure or {}
    return f"{failure.get('error', '')}: {failure.get('message', '')}"


def _names(ranks: Sequence[RankExit]) -> str:
    return rank_names([rank.rank for rank in ranks])


def _where(rank: RankExit) -> str:
    return f"rank {rank.rank}, node {rank.node}, {_progress(rank)}"


def _progress(rank: RankExit) -> str:
    """How far a rank got, in words."""
    if rank.last_step:
        return f"after step {rank.last_step}"
    return {
        None: "before it started",
        "started": "during imports",
        "imported": "during build",
        "built": "in step 1",
    }.get(rank.last_event, "before step 1")


def _stage(rank: RankExit) -> tuple[int, int]:
    event = rank.last_event if rank.last_event in _STAGES else None
    return _STAGES.index(event), rank.last_step


def _hang(run: GangRun, steps: int) -> Failure:
    """Nobody failed, but time ran out: name the ranks that are furthest behind."""
    stalled = run.ending == "stall"
    title = "hang" if stalled else "deadline passed (hanging or too slow)"
    waiting = [rank for rank in run.ranks if rank.last_event != "finished"] or list(run.ranks)
    if not waiting:
        return Failure("hang", f"{title}: no rank reported anything", violation_at(0, steps))
    behind = min(_stage(rank) for rank in waiting)
    silent = [rank for rank in waiting if _stage(rank) == behind]
    others = [rank for rank in run.ranks if rank not in silent]
    reason = f"{title}: {_names(silent)} {'silent' if stalled else 'last heard'} {_progress(silent[0])}"
    if silent[0].last_step:
        reason += f" of {steps}"
    reason += f", {_names(others)} were further on" if others else " (all of them)"
    if run.message:
        reason += f"; {one_line(run.message)}"
    return Failure("hang", reason, violation_at(silent[0].last_step, steps))
