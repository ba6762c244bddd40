"""Whether CUDA graphs really were captured and replayed: the configuration that asks for them proves nothing."""

from collections.abc import Iterable
from typing import Any

import torch


def captured(chunks: Iterable[Any]) -> int:
    """Graphs that the modules of these model chunks hold and replay; a graph of the whole iteration counts once.

    Transformer Engine's graphs hang on their layer, Megatron-Core's own on the runners of a layer's manager, and the
    graph of a whole iteration on the class that wraps the schedule.
    """
    count = 0
    for chunk in chunks:
        for module in chunk.modules():
            count += len(getattr(module, "cuda_graphs", None) or ())
            manager = getattr(module, "cudagraph_manager", None)
            runners = getattr(manager, "cudagraph_runners", None) or ()
            count += sum(getattr(runner, "fwd_graph", None) is not None for runner in runners)
    return count + _whole_iteration()


def _whole_iteration() -> int:
    from megatron.core.full_cuda_graph import FullCudaGraphWrapper

    graphs = getattr(FullCudaGraphWrapper, "cuda_graph", None) or {}
    return int(graphs.get("training") is not None)


class Replays:
    """Counts the graphs that are replayed from now on, whoever replays them.

    Megatron-Core's own graphs, Transformer Engine's and a whole iteration's all go through torch's one class.
    """

    def __init__(self) -> None:
        self.count = 0
        replay = torch.cuda.CUDAGraph.replay

        def counted(graph: torch.cuda.CUDAGraph) -> None:
            self.count += 1
            replay(graph)

        torch.cuda.CUDAGraph.replay = counted
