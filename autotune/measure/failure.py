"""Why a gang did not deliver: one cause, however many ranks went down with it.

When one rank dies the others fail too, of broken connections, of aborts, or because they were killed. So the
ranks are sorted by how much their end explains, and the first one is named; the others are followers.
"""

import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from autotune.measure.causes import Cause, Kind, cause_named, recognise, telling_line
from autotune.measure.run import GangRun, RankExit
from autotune_trials.lines import one_line
from autotune_trials.log_lines import LogReader, Memory, Step
from autotune_trials.stacks import OF_THE_COMMAND

_STAGES = (None, "started", "imported", "built", "step", "finished")
_IMPORTING = (None, "started")

_OUTSIDE_SIGNALS = {"SIGTERM", "SIGINT", "SIGHUP"}

_BROKEN_CONNECTION = re.compile(
    r"connection (?:closed|reset|refused|was)|broken pipe|closed by peer|remote process exited|socket timeout"
    r"|\bEOF\b|DistNetworkError|ncclRemoteError|connection error|communicator was aborted|timed out",
    re.IGNORECASE,
)
_FRAME = re.compile(r'^ *File "([^"]+)", line (\d+),? in (\S+)', re.MULTILINE)
_WAITING = ("threading.py", "selectors.py", "socket.py", "subprocess.py")
"""Where a thread waits whatever it waits for: the frame above says more."""

_IMPORT_FRAME = '"<frozen importlib._bootstrap>"'
_WITHOUT_A_WORD = "CommandExited"
_ENDED_EARLY = "EndedEarly"
_OF_COMMANDS = ("CommandFailed", _WITHOUT_A_WORD)
"""Errors of a command's supervisor: what the command itself met stands in the log."""

_LAST_LINES = 40
"""Of the log of a process that died without a word; what stands further above is no cause of its death."""

_FIRST_CAUSES: tuple[Kind, ...] = ("out_of_memory", "rejected", "numerics", "import", "tokens", "graph", "hardware")


@dataclass(frozen=True)
class Failure:
    """The first cause of a failed gang.

    Attributes:
        cause: Its row of the table of causes.
        reason: One line for people, ranks and step included.
        violation: 2 when it failed before the first step, falling towards 1 the more steps it completed; a
            gradient for the sampler.
        node: Index of the node whose rank is to blame; None when no rank is.
        evidence: The text that showed it.
    """

    cause: Cause
    reason: str
    violation: float
    node: int | None = None
    evidence: str = ""


def diagnose(run: GangRun, steps: int, *, representatives: bool = False) -> Failure:
    """The first cause of a run that ended by ``rank_died``, ``deadline`` or ``stall``.

    Args:
        run: What came back.
        steps: Steps the contract asks for, warm-up included.
        representatives: Whether only some of the ranks tell their steps, as those of a command do.
    """
    culprits = sorted((rank for rank in run.ranks if _ended_badly(rank)), key=_explains)
    if culprits:
        first, followers = culprits[0], culprits[1:]
        if representatives and not first.last_step and _IMPORT_FRAME not in first.log_tail:
            # It never tells imports or build, and its steps may stand in its log alone.
            first = replace(first, last_event="alive", last_step=_printed_step(first.log_tail))
        cause, what = _cause(first)
        # A rank that is still importing is at no step, unless it is one that tells none.
        if not first.last_step and run.steps and (representatives or first.last_event not in _IMPORTING):
            first = replace(first, last_step=run.steps[-1].step)
        reason = f"{what} ({_where(first)})"
        if followers:
            reason += f"; {_names(followers)} followed"
        return Failure(cause, reason, violation_at(first.last_step, steps), first.node, _said(first) + first.log_tail)
    if run.ending in ("deadline", "stall"):
        return _hang(run, steps, representatives)
    last_step = min((rank.last_step for rank in run.ranks), default=0)
    message = one_line(run.message) or "the gang ended early and no rank said why"
    if run.ranks and all(rank.exit_code == 0 for rank in run.ranks):
        return Failure(cause_named("ended_early"), f"ended early: {message}", violation_at(last_step, steps))
    return Failure(cause_named("unknown"), f"unknown cause: {message}", violation_at(last_step, steps))


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


def _ended_badly(rank: RankExit) -> bool:
    """Whether this rank's end may be the cause: it said that it failed, or left early or died without our doing."""
    if rank.failure is not None:
        return True
    return not rank.killed and rank.exit_code is not None and (rank.exit_code != 0 or rank.last_event != "finished")


def _explains(rank: RankExit) -> tuple[int, int, int]:
    """Sort key, most telling end first; among equals the rank that got least far, then the lowest."""
    cause, _ = _cause(rank)
    connection = rank.failure is not None and _BROKEN_CONNECTION.search(_said(rank)) is not None
    # Communication libraries abort the process when a peer is gone, so SIGABRT is often a consequence.
    aborted = _signal(rank) == "SIGABRT" and rank.failure is None
    if cause.kind in _FIRST_CAUSES and cause.name != "import_crash":
        order = 0
    elif cause.kind == "outside":
        order = 1
    elif cause.name in ("crash", "import_crash", "illegal_access") and not aborted:
        order = 2
    elif cause.kind == "exception" and not connection:
        order = 3
    elif cause.kind == "timeout" and cause.name != "collective_timeout":
        order = 4
    elif cause.kind == "unknown":
        order = 5
    else:
        order = 6
    return order, rank.last_step, rank.rank


def _cause(rank: RankExit) -> tuple[Cause, str]:
    """What ended this one rank, and in words."""
    failure = rank.failure or {}
    kind, error = failure.get("kind", ""), failure.get("error", "")
    message = one_line(failure.get("message", ""))
    said = one_line(f"{error}: {message}" if error and message else error or message)
    if error == "KeyboardInterrupt":
        return cause_named("outside"), "interrupted from outside"
    known = _recognised(rank)
    if kind == "rejected" and (known is None or known.kind not in ("import", "rejected")):
        return cause_named("rejected"), f"configuration rejected: {said}"
    if kind == "numerics":
        return cause_named("not_a_number"), f"numerics: {said}"
    if known is not None and known.kind == "out_of_memory":
        memory = known.name.removesuffix("_memory")
        return known, f"out of {memory} memory" + (f": {said}" if said else "")
    if known is not None:
        shown = said if recognise(said) is known else one_line(telling_line(rank.log_tail, known))
        return known, f"{known.title}: {shown or said}"
    if rank.failure is not None:
        if error == _WITHOUT_A_WORD:
            return cause_named("unknown"), message
        if error == _ENDED_EARLY:
            return cause_named("ended_early"), f"ended early: {message}"
        return cause_named("exception"), said or "failed without a message"
    name = _signal(rank)
    if name in _OUTSIDE_SIGNALS:
        return cause_named("outside"), f"ended from outside by {name}"
    if name == "SIGKILL":
        return (
            cause_named("host_memory"),
            "killed by SIGKILL, not by us: probably the kernel's out-of-memory killer (host memory)",
        )
    if name:
        importing = rank.last_event in _IMPORTING and not rank.last_step
        return cause_named("import_crash" if importing else "crash"), f"crashed by {name}"
    if rank.exit_code == 0:
        return cause_named("ended_early"), "ended early: it left with status 0 without having finished"
    return cause_named("unknown"), f"exit status {rank.exit_code} without a word"


def _recognised(rank: RankExit) -> Cause | None:
    """The cause that this rank's own words show, or the end of its log where it had no words."""
    failure = rank.failure or {}
    error = failure.get("error", "").rpartition(".")[2]
    said, tail = _said(rank), "\n".join(rank.log_tail.splitlines()[-_LAST_LINES:])
    if error == "MemoryError":
        return cause_named("host_memory")
    found = recognise(said)
    if found is None and failure.get("kind") == "out_of_memory":
        return cause_named("device_memory" if "CUDA" in said + tail else "host_memory")
    if found is not None or (rank.failure is not None and failure.get("error") not in _OF_COMMANDS):
        return found
    found = recognise(tail)
    if found is None or found.kind != "import":
        return found
    # A library that is not there is often only a warning, which kills nobody; a traceback at the end does.
    last = tail.rpartition("Traceback (most recent call last)")
    importing = rank.last_event in _IMPORTING and not last[1]
    return found if not _signal(rank) and (importing or recognise(last[2]) is found) else None


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


def _printed_step(log: str) -> int:
    """The last step that a log speaks of, as those of Megatron-LM and Megatron-Bridge do; 0 where it speaks of none."""
    reader = LogReader()
    records = [*reader.feed(log.encode(errors="replace")), *reader.close()]
    return max((record.step for record in records if isinstance(record, Step | Memory)), default=0)


def _progress(rank: RankExit) -> str:
    """How far a rank got, in words."""
    if rank.last_step:
        return f"after step {rank.last_step}"
    return {
        None: "before it started",
        "started": "during imports",
        "imported": "during build",
        "built": "in step 1",
        "alive": "no step known",
    }.get(rank.last_event, "before step 1")


def _stage(rank: RankExit, representatives: bool) -> tuple[int, int]:
    if representatives:
        return 0, rank.last_step
    event = rank.last_event if rank.last_event in _STAGES else None
    return _STAGES.index(event), rank.last_step


def _hang(run: GangRun, steps: int, representatives: bool) -> Failure:
    """Nobody failed, but time ran out: name the ranks that are furthest behind."""
    stalled = run.ending == "stall"
    name = "hang" if stalled else "deadline"
    title = "hang" if stalled else "deadline passed (hanging or too slow)"
    waiting = [rank for rank in run.ranks if rank.last_event != "finished"] or list(run.ranks)
    if not waiting:
        return Failure(cause_named(name), f"{title}: no rank reported anything", violation_at(0, steps))
    if representatives:
        # A rank that never tells a step is not behind those that do.
        waiting = [rank for rank in waiting if rank.last_step] or waiting
    behind = min(_stage(rank, representatives) for rank in waiting)
    silent = [rank for rank in waiting if _stage(rank, representatives) == behind]
    mute = [rank for rank in run.ranks if rank not in waiting and not rank.last_step] if representatives else []
    others = [rank for rank in run.ranks if rank not in silent and rank not in mute]
    where = _progress(silent[0])
    if representatives and not silent[0].last_step:
        others_told = any(rank.last_step for rank in run.ranks)
        where = "(it tells no steps)" if others_told else "before any step was told"
    reason = f"{title}: {_names(silent)} {'silent' if stalled else 'last heard'} {where}"
    if silent[0].last_step:
        reason += f" of {steps}"
    if others:
        reason += f", {_names(others)} {'was' if len(others) == 1 else 'were'} further on"
    if mute:
        reason += f", {_names(mute)} {'tells' if len(mute) == 1 else 'tell'} no steps"
    if not others and not mute:
        reason += " (all of them)"
    stack = next((run.stacks[rank.rank] for rank in silent if run.stacks.get(rank.rank)), "")
    # Of a command it is its supervisor that waits, so only what it runs tells anything.
    told = stack.partition(OF_THE_COMMAND)[2] if representatives else stack
    if place := innermost(told):
        reason += f", in {place}"
    if run.message:
        reason += f"; {one_line(run.message)}"
    starting = all(rank.last_event == "started" and not rank.last_step for rank in silent)
    if starting and stack and (_IMPORT_FRAME in told or not representatives):  # a command tells no end of its imports
        name = "import_hang"
    # The rank that prints is where the hang shows, not where it is.
    blamed = {rank.node for rank in (run.ranks if representatives else silent)}
    node = blamed.pop() if len(blamed) == 1 else None
    return Failure(cause_named(name), reason, violation_at(silent[0].last_step, steps), node, stack)


def innermost(stack: str) -> str:
    """Where the main thread of a dump of stacks stands, as ``function (file:line)``; empty without a frame.

    Such a dump lists the threads with the main thread last, and the frames of each with the innermost first.
    """
    frames = _FRAME.findall(re.split(r"^(?:Current thread|Thread) 0x", stack, flags=re.MULTILINE)[-1])
    told = [frame for frame in frames if not frame[0].endswith(_WAITING)] or frames
    return "{2} ({0}:{1})".format(*told[0]) if told else ""


def mentions(text: str, words: Mapping[str, object] | Sequence[str]) -> bool:
    """Whether a text names one of these modules or libraries, whole words only."""
    return any(re.search(rf"(?<![\w.]){re.escape(word)}(?!\w)", text, re.IGNORECASE) for word in words)
