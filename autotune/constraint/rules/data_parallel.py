"""Gradient reduction, parameter gathering, and the hardware queues that let them overlap."""

from autotune.constraint.rule import Candidate, Verdict
from autotune.constraint.rules.registry import Rules, at_most, divides

RULES = Rules()

_QUEUES = "CUDA_DEVICE_MAX_CONNECTIONS"


@RULES.add("MC178", "training/arguments.py:991")
def _param_gather_overlap_needs_grad_overlap(c: Candidate) -> Verdict:
    if not c.settings["overlap_param_gather"]:
        return None
    if c.settings["overlap_grad_reduce"] and c.settings["distributed_optimizer"]:
        return None
    return 1.0, "overlap_param_gather=true needs overlap_grad_reduce=true and distributed_optimizer=true"


@RULES.add("AT040", "our own: normalisation that leaves all SMs to communication has none")
def _normalisation_keeps_sms(c: Candidate) -> Verdict:
    margin = c.settings["layernorm_sm_margin"]
    if not isinstance(margin, int) or c.sm_count is None:
        return None
    return at_most("layernorm_sm_margin", margin, c.sm_count - 1)


@RULES.add("AT041", "our own: a NUMA node is a part of a node")
def _numa_nodes_are_parts_of_nodes(c: Candidate) -> Verdict:
    share = c.settings["gpus_per_numa_node"]
    if not isinstance(share, int) or c.gpus_per_node is None:
        return None
    return divides("gpus_per_numa_node", share, "the GPUs of a node", c.gpus_per_node)


@RULES.add("MC051", "training/arguments.py:1413-1439: an assertion of Megatron-LM's own program only", severity="warn")
def _launch_order_is_kept(c: Candidate) -> Verdict:
    if not c.is_hopper or c.settings["ep_overlap"] or c.variables is None:
        return None
    split = c.number("tensor_parallel") > 1 or c.number("context_parallel") > 1
    queues = c.variables.get(_QUEUES, "not set")
    if split and queues != "1":
        return 1.0, (
            f"tensor or context parallelism on {c.accelerator} overlaps as intended only with {_QUEUES}=1, "
            f"but it is {queues}"
        )
    return None
