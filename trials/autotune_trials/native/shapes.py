"""Which architectures the native trainer can build. No torch here: the head side asks before anything is started."""

from collections.abc import Callable, Mapping

from autotune_trials.spec import ModelShape

_UNKNOWN: Mapping[str, Callable[[ModelShape], bool]] = {
    "compressed attention": lambda shape: shape.attention == "compressed",
    "gated delta nets": lambda shape: shape.gdn_num_value_heads is not None,
    "single-block layers (hybrid_pattern)": lambda shape: shape.hybrid_pattern is not None,
    "Mamba": lambda shape: shape.mamba_num_heads is not None,
    "sliding windows": lambda shape: shape.sliding_window is not None,
    "attention sinks": lambda shape: shape.attention_sink,
    "output gates of attention": lambda shape: shape.attention_output_gate,
    "biases (add_linear_bias)": lambda shape: shape.add_linear_bias,
    "feed-forward layers without a gate": lambda shape: not shape.gated_linear_unit,
    "gated shared experts": lambda shape: shape.shared_expert_gate,
    "latent experts": lambda shape: shape.moe_latent_size is not None,
    "hash routing": lambda shape: shape.num_hash_layers > 0,
    "hyper-connections": lambda shape: shape.num_residual_streams > 1,
    "multi-token-prediction layers that share weights": lambda shape: shape.mtp_shared_weights,
    "vision encoders": lambda shape: shape.vision_parameters is not None,
}


def unsupported(shape: ModelShape) -> list[str]:
    """What of a model the native trainer cannot build; empty = it can build all of it."""
    return [name for name, present in _UNKNOWN.items() if present(shape)]
