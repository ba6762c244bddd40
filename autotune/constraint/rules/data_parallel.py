"""Gradient reduction, parameter gathering, and the hardware queues that let them overlap."""

from autotune.constraint.rule import Candidate, Verdict
from autotune.constraint.rules.registry import Rules

RULES = Rules()

_QUEUES = "CUDA_DEVICE_MAX_CONNECTIONS"


@RULES.add("MC178", "training/arguments.py:991")
def _param_gather_overlap_needs_grad_overlap(c: Candidate) -> Verdict:
    if not c.settings["overlap_param_gather"]:
        return None
    if c.settings["overlap_grad_reduce"] and c.settings["distributed_optimizer"]:
        return None
    return 1.0, "overlap_param_gather=true needs overlap_grad_reduce=true and distributed_optimizer=true"


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
