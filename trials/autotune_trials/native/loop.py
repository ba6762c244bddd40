"""The training steps: time, loss and gradient norm of each."""

import gc
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.utils import get_attr_wrapped_model

from autotune_trials.events import StepRecord
from autotune_trials.native.data import Batch, MockTokens, Share, iterators
from autotune_trials.native.model import Built, device_of
from autotune_trials.spec import TrialSpec


class NumericsError(ArithmeticError):
    """Loss or gradient norm is no finite number; training on is pointless."""


@dataclass(frozen=True)
class RankStep:
    """One step as this rank saw it.

    Attributes:
        record: The step of the whole gang; equal on all ranks.
        own_time_s: Time this rank itself took.
    """

    record: StepRecord
    own_time_s: float


class Trainer:
    """Trains a built model with Megatron's schedule, one optimizer step at a time."""

    def __init__(self, spec: TrialSpec, built: Built) -> None:
        self._spec = spec
        self._built = built
        self._device = device_of(spec)
        self._data = MockTokens(
            spec.contract,
            spec.model.vocab_size,
            built.micro_batch_size,
            Share(parallel_state.get_data_parallel_rank(), parallel_state.get_data_parallel_world_size()),
            Share(parallel_state.get_context_parallel_rank(), parallel_state.get_context_parallel_world_size()),
            self._device,
        )
        self.schedule = get_forward_backward_func()
        self._run = self.schedule
        self._graphs: Any = None
        if built.config.cuda_graph_impl != "none":
            self._prepare_graphs()
        interval = spec.settings["manual_gc_interval"]
        self._gc_interval = interval if isinstance(interval, int) else None
        self._steps_done = 0
        if self._gc_interval is not None:
            gc.disable()
        self._gathers_in_forward = built.chunks[0].ddp_config.overlap_param_gather
        if self._gathers_in_forward:
            # Nothing was updated yet, so there is nothing to gather in the first forward pass.
            for chunk in built.chunks:
                chunk.disable_forward_pre_hook(param_sync=False)

    def steps(self) -> Iterator[RankStep]:
        """All steps of the contract, numbered from 1.

        Raises:
            NumericsError: after the step in question was yielded.
        """
        for step in range(1, self._spec.contract.steps + 1):
            batches = self._data.step(step)
            self._capture_graphs(step)
            own_time_s, losses, grad_norm = self.timed_step(batches)
            if step == 1 and self._gathers_in_forward:
                for chunk in self._built.chunks:
                    chunk.enable_forward_pre_hook()
            record = self._gathered(step, own_time_s, losses, grad_norm)
            yield RankStep(record, own_time_s)
            for name, value in (("loss", record.loss), ("gradient norm", record.grad_norm)):
                if not math.isfinite(value):
                    raise NumericsError(f"{name} is {value} in step {step}")

    def timed_step(self, batches: list[Batch]) -> tuple[float, list[dict[str, torch.Tensor]], float]:
        """One step, from an idle device to an idle device: its time in seconds, losses and gradient norm."""
        self._synchronize()
        start = time.perf_counter()
        losses, grad_norm = self._step(batches)
        self._synchronize()
        return time.perf_counter() - start, losses, grad_norm

    def _step(self, batches: list[Batch]) -> tuple[list[dict[str, torch.Tensor]], float]:
        """Everything that the step time covers."""
        built = self._built
        for chunk in built.chunks:
            chunk.zero_grad_buffer()
        built.optimizer.zero_grad()
        losses = self._run(
            forward_step_func=_forward_step,
            data_iterator=iterators(batches, len(built.chunks)),
            model=built.chunks if len(built.chunks) > 1 else built.chunks[0],
            num_microbatches=self._data.num_microbatches,
            seq_length=self._spec.contract.seq_length,
            micro_batch_size=built.micro_batch_size,
            forward_only=False,
        )
        _, grad_norm, _ = built.optimizer.step()
        self._steps_done += 1
        if self._gc_interval is not None and self._steps_done % self._gc_interval == 0:
            gc.collect()
        return losses, math.nan if grad_norm is None else float(grad_norm)

    def _gathered(
        self, step: int, own_time_s: float, losses: list[dict[str, torch.Tensor]], grad_norm: float
    ) -> StepRecord:
        """One record for the gang: the slowest rank's time, the loss over all ranks of the last stage."""
        # Tensor-parallel ranks hold the same loss; one of them counts.
        counts = parallel_state.get_tensor_model_parallel_rank() == 0
        parts = [part["lm loss"] for part in losses] if counts else []
        sums = torch.stack(parts).sum(0).double() if parts else torch.zeros(2, dtype=torch.float64, device=self._device)
        dist.all_reduce(sums)
        slowest = torch.tensor([own_time_s], dtype=torch.float64, device=self._device)
        dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
        contract = self._spec.contract
        return StepRecord(
            step=step,
            step_time_s=float(slowest),
            loss=float(sums[0] / sums[1]),
            grad_norm=grad_norm,
            tokens=contract.global_batch_size * contract.seq_length,
        )

    def _synchronize(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize()

    def _prepare_graphs(self) -> None:
        config = self._built.config
        scopes = [getattr(scope, "name", str(scope)) for scope in getattr(config, "cuda_graph_scope", None) or []]
        if config.cuda_graph_impl == "full_iteration" or "full_iteration" in scopes:
            from megatron.core.full_cuda_graph import FullCudaGraphWrapper

            self._run = FullCudaGraphWrapper(self._run, cuda_graph_warmup_steps=config.cuda_graph_warmup_steps)
        elif config.cuda_graph_impl == "transformer_engine":
            from megatron.core.transformer.cuda_graphs import TECudaGraphHelper

            self._graphs = TECudaGraphHelper(
                self._built.chunks,
                config,
                self._spec.contract.seq_length,
                self._built.micro_batch_size,
                optimizers=[self._built.optimizer],
            )

    def _capture_graphs(self, step: int) -> None:
        """Transformer Engine's graphs are captured once, between two steps."""
        if self._graphs is None or step != self._built.config.cuda_graph_warmup_steps + 1:
            return
        chunks = self._built.chunks if self._gathers_in_forward else []
        for chunk in chunks:
            chunk.disable_forward_pre_hook(param_sync=False)
        self._graphs.create_cudagraphs()
        for chunk in chunks:
            chunk.enable_forward_pre_hook()
        if chunks:
            self._graphs.cuda_graph_set_manual_hooks()


def _forward_step(batches: Iterator[Batch], model: Any, return_schedule_plan: bool = False) -> tuple[Any, Any]:
    """One micro-batch through one chunk; as a plan of overlappable pieces when the overlap schedule asks for it."""
    batch = next(batches)
    forward = (
        get_attr_wrapped_model(model, "build_schedule_plan", return_model_obj=False) if return_schedule_plan else model
    )
    output = forward(batch["tokens"], batch["position_ids"], None, labels=batch["labels"])
    return output, _loss


def _loss(per_token: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]:
    """Sum and number of the tokens' losses; Megatron makes the mean of them."""
    total = per_token.float().sum()
    count = torch.tensor(per_token.numel(), dtype=torch.int, device=per_token.device)
    return total, count, {"lm loss": torch.stack([total.detach(), count.float()])}
