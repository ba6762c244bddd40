"""The callback that a bridge trial puts into the training loop of every rank."""

import importlib.metadata
import math
import time
from typing import Any

import torch
import torch.distributed as dist
from megatron.core.pipeline_parallel import get_forward_backward_func

from autotune_trials.events import EventWriter
from autotune_trials.native import evidence
from autotune_trials.native.claim import claim
from autotune_trials.native.graphs import Replays, captured
from autotune_trials.native.loop import NumericsError
from autotune_trials.native.model import Built
from autotune_trials.native.refusal import Rejected
from autotune_trials.spec import TrialSpec


class Watch:
    """Tells what was built and how long each step took; called by Bridge's CallbackManager.

    A step lasts from the end of the one before to its own end, on the slowest rank: data loading and logging belong
    to it, as they do in Bridge's own log line.

    Args:
        spec: The trial.
        events: Where to.
    """

    def __init__(self, spec: TrialSpec, events: EventWriter) -> None:
        self._spec = spec
        self._events = events
        self._chunks: list[Any] = []
        self._resolved: dict[str, Any] = {}
        self._replays = Replays()
        self._profile: Any = None
        self._last_s = 0.0
        self._tells = False
        self.steps = 0

    def on_train_start(self, context: Any) -> None:
        """Read back what was built.

        Raises:
            Rejected: the recipe trains in another precision than the contract's.
        """
        started_s = time.perf_counter()
        self._chunks = list(context.model)
        built = Built(
            config=evidence.config_of(self._chunks[0]),
            chunks=self._chunks,
            optimizer=context.optimizer,
            micro_batch_size=context.state.cfg.train.micro_batch_size,
            release=importlib.metadata.version("megatron-core"),
        )
        self._resolved = evidence.resolved(built, get_forward_backward_func(), self._spec.settings)
        found, asked = self._resolved["precision"], self._spec.contract.precision
        if found != asked:
            raise Rejected(f"the recipe trains in {found}, but the contract says {asked}")
        self._tells = dist.get_rank() == 0
        shown = {"resolved": self._resolved} if self._tells else {}
        first = claim(self._resolved, self._spec.env, self._chunks, None)
        self._events.write("built", build_s=time.perf_counter() - started_s, claim=first, **shown)
        if self._spec.profile_steps:
            from autotune_trials.native.profile import Profile

            self._profile = Profile(self._spec, self._chunks, context.optimizer)
            self._profile.begins(1)
        self._synchronize()
        self._last_s = time.perf_counter()

    def on_train_step_end(self, context: Any) -> None:
        """Write the step.

        Raises:
            NumericsError: its loss or gradient norm is no finite number.
        """
        self._synchronize()
        now_s = time.perf_counter()
        own_time_s = now_s - self._last_s
        self.steps += 1
        if self._profile is not None:
            self._profile.ended(self.steps)
        slowest_s, loss = self._gathered(own_time_s, (context.loss_dict or {}).get("lm loss"))
        grad_norm = math.nan if context.grad_norm is None else float(context.grad_norm)
        fields: dict[str, Any] = {"step": self.steps, "step_time_s": own_time_s}
        if self._tells:
            batch = context.state.cfg.train.global_batch_size
            tokens = batch * context.state.cfg.model.seq_length
            fields |= {"step_time_s": slowest_s, "own_time_s": own_time_s}
            fields |= {"loss": loss, "grad_norm": grad_norm, "tokens": tokens}
        self._events.write("step", **fields)
        for name, value in (("loss", loss), ("gradient norm", grad_norm)):
            if not math.isfinite(value):
                raise NumericsError(f"{name} is {value} in step {self.steps}")
        if self._profile is not None:
            self._profile.begins(self.steps + 1)
        self._last_s = time.perf_counter()

    def claim(self) -> dict[str, Any] | None:
        """This rank's claim at the end; None when nothing was trained."""
        return claim(self._resolved, self._spec.env, self._chunks, self._replays) if self._resolved else None

    def proof(self) -> dict[str, Any] | None:
        """What was read back, with the CUDA graphs that were captured by now; None where another rank tells it."""
        if not self._tells:
            return None
        settings = self._resolved["settings"]
        graphs = captured(self._chunks)
        if settings["cuda_graph_impl"] != "none" and graphs == 0:
            settings = {**settings, "cuda_graph_impl": "none", "cuda_graph_modules": []}
        return {**self._resolved, "settings": settings, "graphs_captured": graphs}

    def profiled(self) -> dict[str, Any] | None:
        """What the profiler saw; None on all ranks but one, and where none was asked for.

        Raises:
            TraceError: the trace does not show the steps.
        """
        return self._profile and self._profile.result()

    def _gathered(self, own_time_s: float, loss: Any) -> tuple[float, float]:
        """Time of the slowest rank and loss of the last pipeline stage; the same on every rank."""
        device = next(self._chunks[0].parameters()).device
        known = loss is not None
        value = float(torch.as_tensor(loss).float().mean()) if known else 0.0
        sums = torch.tensor([value, float(known)], dtype=torch.float64, device=device)
        slowest = torch.tensor([own_time_s], dtype=torch.float64, device=device)
        dist.all_reduce(sums)
        dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
        total, count = sums.tolist()
        return float(slowest), total / count if count else math.nan

    def _synchronize(self) -> None:
        if self._spec.gang.device == "cuda":
            torch.cuda.synchronize()
