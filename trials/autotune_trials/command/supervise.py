"""Runs one command and tells its story in events."""

import contextlib
import os
import resource
import select
import signal
import sys
import time
from pathlib import Path
from typing import Any

from autotune_policies.errors import PolicyError
from autotune_trials.command.last_words import ENDED_EARLY, ended_early, why
from autotune_trials.command.proof import RanOtherwise, from_container, from_dump
from autotune_trials.command.steps import StepLines
from autotune_trials.command.words import RESOLVED_FILE, CannotFill
from autotune_trials.ending import REJECTED
from autotune_trials.events import EventReader, EventWriter
from autotune_trials.log_lines import ArgumentDump, LogReader, Memory, Record, Step
from autotune_trials.processes import kill_descendants, spawn
from autotune_trials.spec import TrialSpec

_LOOK_S = 0.2
_BREATH_S = 1.0
_LAST_WORDS_BYTES = 1 << 16
_MEMORY_STEP = 2
"""The first step at whose end the optimizer's state is allocated."""


def supervise(spec: TrialSpec, argv: list[str], work_dir: Path, events: EventWriter) -> int:
    """Run the command to its end; returns the exit status that the rank is to have.

    A command that a signal ended ends this process by the same signal. What the command leaves behind is ended with
    it, and so is a command as soon as what it says can be no measurement.
    """
    story = _Story(spec, work_dir, events)
    read_end, write_end = os.pipe()
    with open(write_end, "wb") as write, open(read_end, "rb", buffering=0) as read:
        environment = {"PYTHONFAULTHANDLER": "1", **os.environ, "PYTHONUNBUFFERED": "1"}
        child = spawn(argv, environment, stdout=write, stderr=write)
        write.close()
        alone = False
        while True:
            ended = child.poll() is not None
            if (ended or story.over) and not alone:
                alone = kill_descendants()  # those that hold the pipe would keep it open for ever
            ready, _, _ = select.select([read], [], [], 0 if ended else _LOOK_S)
            data = read.read(1 << 16) if ready else b""
            if data:
                sys.stdout.buffer.write(data)
                sys.stdout.buffer.flush()
                story.hear(data)
            elif ended or ready:
                break
            story.tick()
    status = child.wait()
    kill_descendants()
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:  # the adopted ones are ours to reap
            pass
    if status < 0 and not story.over:
        signal.signal(-status, signal.SIG_DFL) if -status not in (signal.SIGKILL, signal.SIGSTOP) else None
        os.kill(os.getpid(), -status)
    return story.end(status)


def follow_lead(work_dir: Path, lead: int, events: EventWriter) -> int:
    """A rank whose node runs one command for all its ranks: says what the node's first rank says, to its end.

    That rank's failure ends the whole gang, so there is no end to wait for but its own.
    """
    reader = EventReader(work_dir / f"rank-{lead}.events.jsonl")
    while True:
        for event in reader.read():
            fields = {name: event[name] for name in ("step", "step_time_s", "steps") if name in event}
            if event["event"] == "finished":
                events.write("finished", **fields, peak_memory_bytes=None, peak_memory_kind="not_said")
                return 0
            if event["event"] in ("step", "alive"):
                events.write(event["event"], **fields)
        time.sleep(_LOOK_S)


class _Story:
    """What one command has said so far, told on as events."""

    def __init__(self, spec: TrialSpec, work_dir: Path, events: EventWriter) -> None:
        self._spec = spec
        self._container = work_dir / RESOLVED_FILE
        self._events = events
        self._log = LogReader()
        self._rank = int(os.environ["RANK"])
        assert spec.command is not None, "a command trial has a command"
        per_command = spec.gang.ranks_per_node if spec.command.per == "node" else 1
        self._quiet = self._rank + per_command < spec.gang.world_size  # the last rank's lines come from elsewhere
        self._lines = StepLines(spec.contract)
        self._peak_bytes: int | None = None
        self._otherwise: Exception | None = None
        self._last_words = b""
        self._alive_s = time.monotonic()

    @property
    def over(self) -> bool:
        """Whether nothing that is still to come can make it a measurement."""
        return self._otherwise is not None

    def hear(self, data: bytes) -> None:
        """Take in what the command printed."""
        self._last_words = (self._last_words + data)[-_LAST_WORDS_BYTES:]
        for record in self._log.feed(data):
            self._tell(record)
        if not self._lines.steps and time.monotonic() - self._alive_s > _BREATH_S:
            self._alive()  # whatever it prints before its first step shows that it comes nearer to it

    def tick(self) -> None:
        """A sign of life of a rank that prints no steps; the one that does is believed dead when they stop."""
        if self._quiet and not self._lines.steps and time.monotonic() - self._alive_s > self._spec.stall_s / 10:
            self._alive()

    def end(self, status: int) -> int:
        """The last event; returns the exit status of the rank."""
        for record in self._log.close():
            self._tell(record)
        done, steps = self._lines.steps, self._spec.contract.steps
        if status and not self.over:
            said = why(self._last_words.decode(errors="replace"), status, done, steps)
            self._events.write("failed", kind=said.kind, error=said.error, message=said.message)
            return status
        resolved = {} if self.over else self._read_container()
        if not self.over and done < steps and (done or not self._quiet):
            said = ended_early(self._last_words.decode(errors="replace"), done, steps)
            if done or said.error != ENDED_EARLY:  # of one that told no step, the proof that it brings says more
                self._events.write("failed", kind=said.kind, error=said.error, message=said.message)
                return 1
        if not self.over and (flaw := self._lines.verdict()):
            self._otherwise = RanOtherwise(flaw)
        if self._otherwise is not None:
            error = type(self._otherwise).__name__
            self._events.write("failed", kind="rejected", error=error, message=str(self._otherwise))
            return REJECTED
        peak, kind = self._peak()
        self._events.write("finished", steps=done, peak_memory_bytes=peak, peak_memory_kind=kind, **resolved)
        return 0

    def _tell(self, record: Record) -> None:
        if isinstance(record, Step):
            self._tell_step(record)
        elif isinstance(record, Memory):
            if record.step >= _MEMORY_STEP:
                self._peak_bytes = max(self._peak_bytes or 0, record.peak_bytes)
        elif isinstance(record, ArgumentDump):
            try:
                self._events.write("built", build_s=0.0, resolved=from_dump(record.text, self._spec))
            except (RanOtherwise, PolicyError, CannotFill) as error:
                self._otherwise = error

    def _tell_step(self, step: Step) -> None:
        fields = self._lines.take(step, time.monotonic())
        if fields is not None:
            self._events.write("step", **fields)
        if self._lines.flaw and not self.over:
            self._otherwise = RanOtherwise(self._lines.flaw)

    def _read_container(self) -> dict[str, Any]:
        """The proof that rank 0's program saved, if it did."""
        if self._rank != 0 or not self._container.exists():
            return {}
        try:
            return {"resolved": from_container(self._container, self._spec)}
        except (RanOtherwise, PolicyError, CannotFill) as error:
            self._otherwise = error
        except OSError as error:
            self._otherwise = RanOtherwise(f"{self._container.name} cannot be read: {error}")
        return {}

    def _peak(self) -> tuple[int | None, str]:
        """Peak memory of this rank, and how it is known."""
        if self._peak_bytes is not None:
            return self._peak_bytes, "log_lines"
        if self._spec.gang.device == "cpu":
            return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024, "rss"
        return None, "not_said"

    def _alive(self) -> None:
        self._alive_s = time.monotonic()
        self._events.write("alive")
