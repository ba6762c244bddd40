"""Core attention for multi-latent attention without Transformer Engine.

Upstream's own core attention takes queries, keys and values of one common head size, and is refused by its
multi-latent attention, which has two. The arithmetic of it holds for both; only the size of its output does not.
"""

from typing import Any

from megatron.core.transformer.dot_product_attention import DotProductAttention


class LatentCoreAttention(DotProductAttention):
    """Upstream's core attention with values of another head size than queries and keys."""

    def __init__(
        self, *args: Any, k_channels: int | None = None, v_channels: int | None = None, **keywords: Any
    ) -> None:
        super().__init__(*args, **keywords)
        # Upstream builds it twice, first for the common base class, which does not know of two head sizes yet.
        if v_channels is not None:
            self.hidden_size_per_partition = v_channels * self.num_attention_heads_per_partition


def use_latent_core_attention(layer_specs: list[Any]) -> None:
    """Put :class:`LatentCoreAttention` into decoder-layer specifications."""
    for spec in layer_specs:
        spec.submodules.self_attention.submodules.core_attention = LatentCoreAttention
