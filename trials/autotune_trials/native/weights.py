"""Initial weights that do not depend on the layout.

Megatron draws each rank's weights from that rank's own random stream, so another EP, PP or TP layout starts from
another model and losses cannot be compared. Here every weight matrix is a function of the seed and of the matrix's
place in the whole model (global layer, global expert): a rank draws the full matrix and keeps its tensor-parallel part.
"""

import hashlib
import re
from typing import Any

import torch

from autotune_trials.native.data import Share

_LAYER = re.compile(r"\bdecoder\.layers\.(\d+)\.")
_LOCAL_EXPERT = re.compile(r"\blocal_experts\.(\d+)\.")
_GROUPED_EXPERT = re.compile(r"\bexperts\.(linear_fc[12])\.weight(\d+)$")
_INTO_RESIDUAL = ("linear_proj", "linear_fc2")


def initialize(
    chunk: Any, *, seed: int, std: float, num_layers: int, tensor_parallel: Share, expert_parallel: Share
) -> None:
    """Overwrite the matrices of one model chunk; norms and biases keep Megatron's constants.

    Args:
        chunk: A GPTModel as built, not wrapped yet.
        seed: Seed of the contract.
        std: Standard deviation; matrices that write into the residual stream get ``std / sqrt(2 * num_layers)``.
        num_layers: Layers of the whole model.
        tensor_parallel: This rank's part of split matrices.
        expert_parallel: This rank's part of the experts.
    """
    layer_numbers = [layer.layer_number - 1 for layer in chunk.decoder.layers]
    first_expert = expert_parallel.rank * ((chunk.config.num_moe_experts or 0) // expert_parallel.size)
    for name, parameter in chunk.named_parameters():
        if parameter.dim() < 2:
            continue
        place = global_name(name, layer_numbers, first_expert)
        if getattr(parameter, "shared_embedding", False):
            place = "embedding.word_embeddings.weight"
        scale = std / (2.0 * num_layers) ** 0.5 if any(part in name for part in _INTO_RESIDUAL) else std
        # Experts are never split here (expert_tensor_parallel = 1), whatever their parameters are marked as.
        split = getattr(parameter, "tensor_model_parallel", False) and ".experts." not in name
        fill(parameter, f"{seed}:{place}", scale, tensor_parallel if split else Share())


def global_name(name: str, layer_numbers: list[int], first_expert: int) -> str:
    """A parameter's name in the unsplit model: local layer and expert numbers become global ones (from 0)."""
    name = _LAYER.sub(lambda match: f"decoder.layers.{layer_numbers[int(match.group(1))]}.", name)
    name = _LOCAL_EXPERT.sub(lambda match: f"local_experts.{first_expert + int(match.group(1))}.", name)
    # Transformer Engine numbers the matrices of a grouped layer instead of nesting layers.
    return _GROUPED_EXPERT.sub(
        lambda match: f"experts.local_experts.{first_expert + int(match.group(2))}.{match.group(1)}.weight", name
    )


@torch.no_grad()
def fill(parameter: Any, key: str, std: float, share: Share) -> None:
    """Draw the whole matrix from the key and keep this rank's share of it.

    Args:
        parameter: Target; ``partition_dim`` and ``partition_stride`` say how it is split when it is.
        key: What the values are a function of.
        std: Standard deviation.
        share: This rank's part.
    """
    digest = hashlib.blake2b(key.encode(), digest_size=7).digest()
    generator = torch.Generator(device=parameter.device).manual_seed(int.from_bytes(digest, "big"))
    shape = list(parameter.shape)
    dim = parameter.partition_dim if share.size > 1 else 0
    shape[dim] *= share.size
    whole = torch.empty(shape, dtype=torch.float32, device=parameter.device).normal_(0.0, std, generator=generator)
    if share.size > 1:
        # A gated layer holds two matrices one after the other (stride 2); every rank has its share of both.
        pieces = torch.chunk(whole, share.size * parameter.partition_stride, dim=dim)
        whole = torch.cat(pieces[share.rank :: share.size], dim=dim)
    parameter.copy_(whole)
