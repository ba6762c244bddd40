"""Resolved configurations as training would save them, built from what a policy renders to."""

import copy
import enum
from typing import Any

from autotune_policies.megatron_bridge import render_container
from autotune_policies.megatron_core import render
from autotune_policies.megatron_lm_flags import flags_of
from autotune_policies.policy import Policy

BRIDGE = {"0.16": "0.4", "0.17": "0.4", "0.18": "0.5", "0.19": "0.6"}
"""A Megatron-Bridge release for each Megatron-Core release."""


def fields_of(policy: Policy, core: str = "0.19") -> dict[str, Any]:
    """Dotted path -> value of everything that the policy sets."""
    bridge = BRIDGE[core]
    env = policy.env if bridge == "0.6" else {}
    settings = {name: value for name, value in policy.settings.items() if name != "gpus_per_numa_node"}
    return dict(render_container(settings, env, megatron_core=core, megatron_bridge=bridge))


def document_of(fields: dict[str, Any], **others: Any) -> dict[str, Any]:
    """The nested mapping of dotted paths, as it stands once training has settled it; ``a__b=1`` adds ``a.b``."""
    document: dict[str, Any] = {"model": {}, "ddp": {}, "train": {}, "comm_overlap": {"data_parallel_size": 2}}
    for path, value in {**fields, **{name.replace("__", "."): value for name, value in others.items()}}.items():
        *parents, last = path.split(".")
        holder = document
        for parent in parents:
            holder = holder.setdefault(parent, {})
        holder[last] = copy.deepcopy(value)
    return document


CudaGraphModule = enum.Enum("CudaGraphModule", ["attn", "mlp", "moe", "moe_router", "moe_preprocess", "mamba"])


def arguments_of_run(policy: Policy, **changes: Any) -> dict[str, Any]:
    """What Megatron-LM 0.19 holds as its arguments once it has validated the policy's command line."""
    fields = render(policy.settings, "0.19").merged()
    values = {flag.printed: fields[flag.field] for flag in flags_of("0.19").values() if flag.field in fields}
    values["virtual_pipeline_model_parallel_size"] = fields["virtual_pipeline_model_parallel_size"]
    values["overlap_p2p_comm"] = fields["overlap_p2p_comm"]
    values["cuda_graph_modules"] = [CudaGraphModule[name] for name in policy.settings["cuda_graph_modules"] or ()]  # type: ignore[union-attr]
    return {**values, "world_size": 32, "seq_length": 4096, "global_batch_size": 256, **changes}


def printed_arguments(values: dict[str, Any]) -> str:
    """The log of a run with these arguments."""
    lines = [f"[rank0]:   {name} {'.' * (48 - len(name))} {value}" for name, value in sorted(values.items())]
    title = "-" * 20
    return "\n".join(
        ["starting", f"{title} arguments {title}", *lines, f"{title} end of arguments {title}", "iteration 1"]
    )
