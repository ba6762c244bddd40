"""Where a candidate leaves what the time model was fitted to or compared with; one sentence each."""

from collections.abc import Iterator

from autotune.predict.hardware import Hardware
from autotune.predict.work import Work
from autotune_trials.spec import Contract, ModelShape

SEQUENCES = (1024, 131_072)
"""Tokens of the shortest and longest sequence of a measured step or kernel sweep: layers at 1,024, B200 at 131,072."""

MOST_GPUS = 1024
"""GPUs of the largest measured step (DeepSeek-V3 on H100)."""

LEAST_HIDDEN = 2048
"""Width of the narrowest measured model (Qwen3-30B)."""

LEAST_TOKENS = 512
"""Tokens of one micro-batch on one rank below which kernels are shorter than any that was measured."""

UNMEASURED = ("H200",)
"""GPUs of which no measured training step was compared."""


def outside(hardware: Hardware, model: ModelShape, contract: Contract, work: Work, num_gpus: int) -> tuple[str, ...]:
    """All departures of one candidate."""
    return tuple(_departures(hardware, model, contract, work, num_gpus))


def _departures(hardware: Hardware, model: ModelShape, contract: Contract, work: Work, num_gpus: int) -> Iterator[str]:
    shortest, longest = SEQUENCES
    if not shortest <= contract.seq_length <= longest:
        yield f"sequences of {contract.seq_length} tokens are outside the measured {shortest} to {longest}"
    if num_gpus > MOST_GPUS:
        yield f"{num_gpus} GPUs: no step on more than {MOST_GPUS} was compared"
    if model.hidden_size < LEAST_HIDDEN:
        yield f"hidden_size={model.hidden_size}: no model narrower than {LEAST_HIDDEN} was compared"
    local = work.tokens / work.tensor_parallel
    if local < LEAST_TOKENS:
        yield f"{local:.0f} tokens per rank and micro-batch are fewer than the measured {LEAST_TOKENS}"
    if contract.precision == "fp32":
        yield "precision fp32 is timed as bf16"
    domain = hardware.nvlink_domain_gpus
    for name, ranks in (("tensor", work.tensor_parallel), ("expert-tensor", work.expert_tensor_parallel)):
        if ranks > domain:
            yield f"{name} parallelism of {ranks} leaves the NVLink domain of {domain}: never measured"
    if hardware.accelerator in UNMEASURED:
        yield f"no training step on {hardware.accelerator} was compared: constants of its family stand in"
