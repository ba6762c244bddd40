"""The life of one rank, top to bottom: import, join, build, train, report."""

import gc
import importlib
import importlib.metadata
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch

from autotune_policies.errors import PolicyError
from autotune_trials.events import EventWriter
from autotune_trials.native import refusal
from autotune_trials.native.failures import kind_of, one_line
from autotune_trials.native.memory import PeakMemory
from autotune_trials.spec import TrialSpec


def run(spec: TrialSpec, events: EventWriter) -> None:
    """Train as the specification says and write the events.

    Raises:
        Rejected: the configuration was refused, by Megatron or for its sake, before the first step.
        Exception: whatever ended the training.
    """
    world_size, rank, local_rank = (int(os.environ[name]) for name in ("WORLD_SIZE", "RANK", "LOCAL_RANK"))
    release = importlib.metadata.version("megatron-core")
    import_megatron(spec)
    gc.freeze()
    gc.enable()
    memory = PeakMemory(spec.gang.device)
    events.write("imported", rss_bytes=memory.rss_bytes)

    _join(spec, rank, world_size, local_rank)
    start = time.perf_counter()
    from autotune_trials.native import evidence
    from autotune_trials.native.claim import claim
    from autotune_trials.native.graphs import Replays
    from autotune_trials.native.loop import Trainer
    from autotune_trials.native.model import build

    with refused_by_megatron():
        built = build(spec, release)
    trainer = Trainer(spec, built)
    replays = Replays()
    resolved = evidence.resolved(built, trainer.schedule, spec.settings)
    events.write(
        "built",
        build_s=time.perf_counter() - start,
        claim=claim(resolved, spec.env, built.chunks, None),
        **({"resolved": resolved} if rank == 0 else {}),
    )

    steps, profile = trainer.steps(), None
    if spec.profile_steps:
        from autotune_trials.native.profile import Profile

        profile = Profile(spec, built.chunks, built.optimizer, trainer)
        steps = profile.around(steps)
    for step in steps:
        if rank == 0:
            record = step.record
            events.write(
                "step",
                step=record.step,
                step_time_s=record.step_time_s,
                own_time_s=step.own_time_s,
                loss=record.loss,
                grad_norm=record.grad_norm,
                tokens=record.tokens,
            )
        else:
            events.write("step", step=step.record.step, step_time_s=step.own_time_s)
    # Nobody leaves while another rank could still need it to finish the last collective.
    torch.distributed.barrier()
    profiled = profile and profile.result()
    events.write(
        "finished",
        steps=spec.contract.steps,
        peak_memory_bytes=memory.peak_bytes(),
        peak_memory_kind=memory.kind,
        claim=claim(resolved, spec.env, built.chunks, replays),
        **({"profile": profiled} if profiled else {}),
    )


def import_megatron(spec: TrialSpec) -> None:
    """Load everything that a trial needs, so that later memory is the trial's own."""
    if spec.gang.device == "cuda":
        _import_program()
        return
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)  # ranks share the cores; more threads only fight for them
    from autotune_trials.native import devices

    devices.before_import()
    _import_program()
    devices.after_import()


def _import_program() -> None:
    for name in ("evidence", "loop", "model"):
        importlib.import_module(f"autotune_trials.native.{name}")


def _join(spec: TrialSpec, rank: int, world_size: int, local_rank: int) -> None:
    """Meet the other ranks."""
    cuda = spec.gang.device == "cuda"
    if cuda:
        torch.cuda.set_device(local_rank)
    torch.distributed.init_process_group(
        backend="nccl" if cuda else "gloo",
        rank=rank,
        world_size=world_size,
        timeout=timedelta(seconds=max(60.0, spec.deadline_s)),
        device_id=torch.device("cuda", local_rank) if cuda else None,
    )


@contextmanager
def refused_by_megatron() -> Iterator[None]:
    """Turn what Megatron says while it checks and builds a configuration into a rejection.

    Memory and network failures keep their own class.
    """
    try:
        yield
    except torch.distributed.DistError:
        raise
    except PolicyError as error:
        raise refusal.Rejected(f"{error.message}" + (f"; {error.hint}" if error.hint else "")) from error
    except (AssertionError, ValueError, TypeError, NotImplementedError, ImportError, RuntimeError) as error:
        if kind_of(error) == "out_of_memory":
            raise
        raise refusal.Rejected(f"Megatron-Core refuses it: {one_line(error)}") from error
