"""One unscored run under the profiler: where the time of a step goes.

Imported only by a trial whose specification asks for ``profile_steps``: a profiler slows the steps by up to a fifth,
so nothing of this is part of a run that is scored.
"""

import gzip
import json
import os
import socket
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, record_function

from autotune_trials.events import EVENTS_VARIABLE
from autotune_trials.native.loop import RankStep
from autotune_trials.native.model import device_of
from autotune_trials.native.ranges import moe_layers, put_on, wrap
from autotune_trials.native.trace import PREFIX, STEP, seconds_by_part
from autotune_trials.spec import TrialSpec


class Profile:
    """Profiles the last steps on the first rank that has an MoE layer; the other ranks run on as ever.

    Args:
        spec: Says how many steps.
        chunks: Model chunks of this rank, whose MoE layers get ranges on the rank in question.
        optimizer: Likewise.
        trainer: Its ``timed_step`` is a step; without one a step lasts from ``begins`` to ``ended``.
    """

    def __init__(self, spec: TrialSpec, chunks: Sequence[Any], optimizer: Any, trainer: Any = None) -> None:
        self._spec, self._chunks, self._optimizer, self._trainer = spec, chunks, optimizer, trainer
        self._profiler: Any = None
        self._step: AbstractContextManager[Any] | None = None
        self._rank = dist.get_rank()  # a recipe's loop has left the group when the result is asked for
        self._here = _first_rank_with(bool(moe_layers(chunks)), device_of(spec)) == self._rank

    def around(self, steps: Iterator[RankStep]) -> Iterator[RankStep]:
        """The same steps; the last ones are run under the profiler on the chosen rank."""
        self.begins(1)
        for step in steps:
            yield step
            self.ended(step.record.step)
            self.begins(step.record.step + 1)

    def begins(self, step: int) -> None:
        """The step of this number comes next, from 1."""
        steps = self._spec.contract.steps
        if self._here and step == steps - self._spec.profile_steps + 1:
            self._start()
        if self._profiler is not None and self._trainer is None and step <= steps:
            self._step = record_function(PREFIX + STEP)
            self._step.__enter__()

    def ended(self, step: int) -> None:
        """The step of this number is over."""
        if self._step is not None:
            self._step.__exit__(None, None, None)
            self._step = None
        if self._profiler is not None and step == self._spec.contract.steps:
            self._profiler.stop()

    def result(self) -> dict[str, Any] | None:
        """What was seen, as the event ``finished`` carries it; None on all ranks but one.

        The trace is written beside the rank's events, on its node.

        Raises:
            TraceError: the trace does not show the steps.
            OSError: the trace cannot be written.
        """
        if self._profiler is None:
            return None
        folder = Path(os.environ.get(EVENTS_VARIABLE) or tempfile.mkdtemp(prefix="autotune-") + "/events").parent
        path = folder / f"rank-{self._rank}.trace.json.gz"
        self._profiler.export_chrome_trace(str(path))
        with gzip.open(path, "rt", encoding="utf-8") as file:
            seconds = seconds_by_part(json.load(file))
        steps, host = self._spec.profile_steps, socket.gethostname()
        return {"rank": self._rank, "steps": steps, "host": host, "trace": str(path), **seconds}

    def _start(self) -> None:
        put_on(self._chunks, self._optimizer, record_function)
        if self._trainer is not None:
            wrap(self._trainer, "timed_step", STEP, record_function)
        activities = [ProfilerActivity.CPU]
        if self._spec.gang.device == "cuda":
            activities.append(ProfilerActivity.CUDA)
        # The first use sets the libraries up; that belongs to no step.
        with torch.profiler.profile(activities=activities):
            pass
        self._profiler = torch.profiler.profile(activities=activities)
        self._profiler.start()


def _first_rank_with(here: bool, device: torch.device) -> int:
    """The lowest rank that says yes; rank 0 when none does."""
    world = dist.get_world_size()
    rank = torch.tensor([dist.get_rank() if here else world], device=device)
    dist.all_reduce(rank, op=dist.ReduceOp.MIN)
    return int(rank) % world
