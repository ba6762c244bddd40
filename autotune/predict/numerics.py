"""Which number formats a training program keeps its state in: what the settings do not say and memory depends on."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Numerics:
    """State formats of one training program; sizes in bytes per parameter.

    Attributes:
        gradient_bytes: Gradients as they are accumulated and reduced.
        main_parameter_bytes: The optimizer's own copy of the parameters.
        moment_bytes: Both Adam moments together.
        precision_aware_optimizer: Whether the optimizer reads gradients as they are; otherwise it makes an fp32 copy
            of its shard where they are narrower.
        optimizer_on_host: Share of the optimizer state that waits in host memory, 0..1.
        cross_entropy: How the loss treats logits: ``te`` in place, ``native`` with one fp32 copy, ``unfused`` with two.
        fp8_parameters: Whether weights are kept in fp8 only, where the recipe of the precision can gather them so
            (not blockwise fp8, not fp4).
        assumed: Whether nothing says that these are the program's formats.
    """

    gradient_bytes: float = 4.0
    main_parameter_bytes: float = 4.0
    moment_bytes: float = 8.0
    precision_aware_optimizer: bool = False
    optimizer_on_host: float = 0.0
    cross_entropy: Literal["te", "native", "unfused"] = "unfused"
    fp8_parameters: bool = False
    assumed: bool = False


MEGATRON_LM = Numerics()
"""Megatron's defaults, which the native trial program uses: gradients, main parameters and moments in fp32."""

BRIDGE_BENCHMARK = Numerics(gradient_bytes=2.0, cross_entropy="te", fp8_parameters=True)
"""Megatron-Bridge's performance recipes: gradients reduced in bf16, Transformer Engine's cross entropy.

Source: ``megatron/bridge/perf_recipes/_common.py`` of Megatron-Bridge 0.6.
"""

BRIDGE_NARROW_MOMENTS = Numerics(
    gradient_bytes=2.0,
    moment_bytes=4.0,
    precision_aware_optimizer=True,
    cross_entropy="te",
    fp8_parameters=True,
)
"""The same with bf16 moments, as the recipes of the models in ``NARROW_MOMENT_MODELS`` have it."""

NARROW_MOMENT_MODELS = ("dsv3", "dsv4-flash", "qwen35-35b")
"""Source: optimizer dtypes of the recipes of Megatron-Bridge 0.6, by model."""


def bridge_numerics(model_name: str) -> Numerics:
    """Formats of Megatron-Bridge's performance recipe for a model."""
    return BRIDGE_NARROW_MOMENTS if model_name in NARROW_MOMENT_MODELS else BRIDGE_BENCHMARK


def program_numerics(program: str, model_name: str) -> Numerics:
    """Formats of a kind of trial program: a recipe's own for ``bridge``, Megatron's defaults for the others."""
    return bridge_numerics(model_name) if program == "bridge" else MEGATRON_LM
