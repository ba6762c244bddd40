"""What would shorten the part of a step that is longest."""

from collections.abc import Mapping

from autotune.predict.time import TimeEstimate
from autotune_policies.settings import Settings, Value

_FEWER_RANKS = "fewer tensor-parallel ranks, if memory allows"

_RELIEF: Mapping[str, tuple[tuple[str, Mapping[str, Value]], ...]] = {
    "gemm": (
        ("a larger micro_batch_size: larger matrices", {}),
        ("less recomputation, if memory allows", {"recompute_granularity": None}),
        (_FEWER_RANKS, {"tensor_parallel": 1}),
    ),
    "grouped_gemm": (
        ("a larger micro_batch_size or expert_parallel: more tokens per expert", {}),
        ("whole experts: expert_tensor_parallel=1", {"expert_tensor_parallel": 1}),
    ),
    "attention": (("no recomputation of attention", {"recompute_granularity": None}),),
    "contention": (("a smaller num_sms: more SMs for compute", {}),),
    "elementwise": (("a larger micro_batch_size, fused kernels", {}),),
    "permutation": (("fused permutation: permute_fusion=true", {"permute_fusion": True}),),
    "optimizer": (("more GPUs that share the optimizer", {"distributed_optimizer": True}),),
    "tensor_parallel": ((_FEWER_RANKS, {"tensor_parallel": 1}),),
    "context_parallel": (("fewer context-parallel ranks, if memory allows", {"context_parallel": 1}),),
    "dispatch": (
        ("hide it behind compute: ep_overlap=true", {"ep_overlap": True}),
        ("hide part of it behind the shared expert: shared_expert_overlap=true", {"shared_expert_overlap": True}),
        ("a smaller expert_parallel, inside one NVLink domain", {"expert_parallel": 1}),
    ),
    "pipeline_transfer": (("fewer pipeline ranks", {"pipeline_parallel": 1}),),
    "bubble": (
        ("fewer pipeline ranks, more virtual_pipeline, or more micro-batches", {}),
        ("another pipeline_layout, if stages are uneven", {}),
    ),
    "data_parallel": (
        ("reduce gradients during the backward pass: overlap_grad_reduce=true", {"overlap_grad_reduce": True}),
        ("gather parameters during the forward pass: overlap_param_gather=true", {"overlap_param_gather": True}),
        ("more micro-batches per step", {}),
    ),
    "activation_offload": (
        ("offload less: copies to the host outlast the passes they run beside", {"offload_modules": []}),
    ),
    "host": (
        ("CUDA graphs: cuda_graph_impl=transformer_engine", {"cuda_graph_impl": "transformer_engine"}),
        ("a larger micro_batch_size: fewer launches per token", {}),
    ),
}
"""By part: advice, and the settings under which it is already followed."""


def longest_parts(time: TimeEstimate, count: int = 2) -> list[str]:
    """The longest parts of a step, longest first."""
    return sorted(time.parts, key=lambda name: -time.parts[name])[:count]


def relief(part: str, settings: Settings) -> list[str]:
    """What would shorten a part and has not been done yet; empty when nothing is known."""
    return [
        advice
        for advice, done in _RELIEF.get(part, ())
        if not done or any(settings.get(name) != value for name, value in done.items())
    ]
