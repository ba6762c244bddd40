"""One unscored run under the profiler: where the time of a step goes.

Imported only by a trial whose specification asks for ``profile_steps``: a profiler slows the steps by up to a fifth,
so nothing of this is part of a run that is scored.
"""

import gzip
import json
import os
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, record_function

from autotune_trials.events import EVENTS_VARIABLE
from autotune_trials.native.loop import RankStep, Trainer
from autotune_trials.native.model import Built, device_of
from autotune_trials.native.ranges import moe_layers, put_on
from autotune_trials.native.trace import seconds_by_part
from autotune_trials.spec import TrialSpec


class Profile:
    """Profiles the last steps on the first rank that has an MoE layer; the other ranks run on as ever.

    Args:
        spec: Says how many steps.
        built: Whose methods get ranges, on the rank in question.
        trainer: Whose steps are profiled.
    """

    def __init__(self, spec: TrialSpec, built: Built, trainer: Trainer) -> None:
        self._spec, self._built, self._trainer = spec, built, trainer
        self._profiler: Any = None
        self._here = _first_rank_with(bool(moe_layers(built.chunks)), device_of(spec)) == dist.get_rank()

    def around(self, steps: Iterator[RankStep]) -> Iterator[RankStep]:
        """The same steps; the last ones are run under the profiler on the chosen rank."""
        first = self._spec.contract.steps - self._spec.profile_steps + 1
        if self._here and first == 1:
            self._start()
        for step in steps:
            yield step
            if self._here and step.record.step == first - 1:
                self._start()
        if self._profiler is not None:
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
        rank = dist.get_rank()
        folder = Path(os.environ.get(EVENTS_VARIABLE) or tempfile.mkdtemp(prefix="autotune-") + "/events").parent
        path = folder / f"rank-{rank}.trace.json.gz"
        self._profiler.export_chrome_trace(str(path))
        with gzip.open(path, "rt", encoding="utf-8") as file:
            seconds = seconds_by_part(json.load(file))
        facts = {"rank": rank, "steps": self._spec.profile_steps, "host": socket.gethostname(), "trace": str(path)}
        return {**facts, **seconds}

    def _start(self) -> None:
        put_on(self._built, self._trainer, record_function)
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
