"""How many micro-batches a pipeline rank has in flight."""

from functools import lru_cache


@lru_cache(maxsize=65536)
def in_flight(
    pipeline_parallel: int, rank: int, virtual_pipeline: int, num_microbatches: int, ep_overlap: bool = False
) -> tuple[int, ...]:
    """Micro-batches whose activations a rank keeps when its first backward pass begins, per virtual chunk.

    One forward, one backward (1F1B): ``P - rank``. Interleaved: the warm-up goes through the chunks in groups of ``P``
    micro-batches; with ``ep_overlap`` one pass more (``get_pp_rank_microbatches`` of Megatron-Core).
    """
    if virtual_pipeline == 1:
        return (min(num_microbatches, pipeline_parallel - rank),)
    passes = (pipeline_parallel - rank - 1) * 2 + (virtual_pipeline - 1) * pipeline_parallel + 1 + ep_overlap
    passes = min(passes, num_microbatches * virtual_pipeline)
    full, rest = divmod(passes, pipeline_parallel * virtual_pipeline)
    return tuple(
        full * pipeline_parallel + min(pipeline_parallel, max(0, rest - chunk * pipeline_parallel))
        for chunk in range(virtual_pipeline)
    )
