"""Known ways in which training starts with other settings than were asked for, without an error.

Each was seen in Megatron-Bridge 0.4 to 0.6 or Megatron-Core 0.16 to 0.19. A row tells which difference it explains;
:func:`suspects` finds those that a resolved configuration shows by contradicting itself, whatever the policy says.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from autotune_policies.resolved import ABSENT, Difference, Resolved
from autotune_policies.same import settled
from autotune_policies.settings import FLEX_DISPATCHERS


@dataclass(frozen=True)
class SilentChange:
    """One way.

    Attributes:
        name: Short name.
        fields: Canonical settings and last words of dotted paths that it changes.
        shows: Whether a difference, seen in its configuration, can come from it.
        why: How it happens.
        remedy: What to do about it.
    """

    name: str
    fields: tuple[str, ...]
    shows: Callable[[Difference, Resolved], bool]
    why: str
    remedy: str


_DISPATCHER = ("dispatcher", "moe_token_dispatcher_type", "moe_flex_dispatcher_backend")
_OVERLAP = ("ep_overlap", "delay_wgrad", "overlap_moe_expert_parallel_comm", "delay_wgrad_compute")
_GRAPHS = ("cuda_graph_modules", "cuda_graph_scope")
_CHUNKS = tuple(f"NUM_OF_TOKENS_PER_CHUNK_{name}_API" for name in ("DISPATCH", "COMBINE", "PREPROCESSING"))

BACKEND = "model.moe_flex_dispatcher_backend"
KIND = "model.moe_token_dispatcher_type"


def _wants_flex(difference: Difference) -> bool:
    return difference.wanted in ("flex", *FLEX_DISPATCHERS)


def _dense(difference: Difference, resolved: Resolved) -> bool:
    return _wants_flex(difference) and resolved.get("model.num_moe_experts") in (None, 0)


def _no_backend(difference: Difference, resolved: Resolved) -> bool:
    return resolved.get(KIND) == "flex" and resolved.get(BACKEND) is None


def _fell_back(difference: Difference, resolved: Resolved) -> bool:
    return _wants_flex(difference) and resolved.get(KIND) == "alltoall" and resolved.get(BACKEND) is None


def _not_put_in(difference: Difference, resolved: Resolved) -> bool:
    return _wants_flex(difference) and resolved.get(BACKEND) not in (None, ABSENT)


def _packed(difference: Difference, resolved: Resolved) -> bool:
    return difference.wanted is True and not difference.found and "Energon" in resolved.target("dataset")


def _is_text(difference: Difference, resolved: Resolved) -> bool:
    return isinstance(difference.found, str)


def _absent(difference: Difference, resolved: Resolved) -> bool:
    return difference.found is ABSENT


def _variable(difference: Difference, resolved: Resolved) -> bool:
    return difference.field.startswith(("env_vars.", "env."))


def _leftover(difference: Difference, resolved: Resolved) -> bool:
    return _variable(difference, resolved) and difference.wanted is ABSENT


def _switched_off(difference: Difference, resolved: Resolved) -> bool:
    return difference.wanted is True and not difference.found


def _stays_on(difference: Difference, resolved: Resolved) -> bool:
    return difference.wanted is False and difference.found is True


def _default_modules(difference: Difference, resolved: Resolved) -> bool:
    return difference.found in (None, ["core_attn"])


def _no_tensor_parallel(difference: Difference, resolved: Resolved) -> bool:
    ranks = resolved.get("model.tensor_model_parallel_size")
    return difference.wanted is True and ranks in (1, ABSENT)


def _asked(difference: Difference, resolved: Resolved) -> bool:
    return difference.wanted is not ABSENT


def _always(difference: Difference, resolved: Resolved) -> bool:
    return True


SILENT_CHANGES = (
    SilentChange(
        "no experts", _DISPATCHER, _dense,
        "the model has no experts, so Megatron-Bridge skips the dispatcher backend with a warning on rank 0",
        "is this the policy of another model?",
    ),
    SilentChange(
        "no backend", _DISPATCHER, _no_backend,
        "the dispatcher is flex without a backend; newer Megatron-Bridge turns that into alltoall without a word",
        "set model.moe_flex_dispatcher_backend beside model.moe_token_dispatcher_type",
    ),
    SilentChange(
        "fallback to alltoall", _DISPATCHER, _fell_back,
        "Megatron-Bridge goes on with alltoall after one warning on rank 0 where it does not know the backend for "
        "this GPU (and, in newer releases, without a word where no backend is set)",
        "look for 'Falling back to alltoall' in rank 0's log; use the policy's fallback, or tune for this GPU",
    ),
    SilentChange(
        "backend not put in", _DISPATCHER, _not_put_in,
        "a backend that Megatron-Bridge does not know is only warned of, and the recipe's own dispatcher stays; "
        "model.moe_token_dispatcher_type decides, and a backend beside alltoall does nothing",
        "set model.moe_token_dispatcher_type=flex and the backend, spelled as the policy renders it",
    ),
    SilentChange(
        "packed data", _OVERLAP, _packed,
        "Megatron-Bridge clears EP overlap and delayed weight gradients for packed Energon data sets, with a "
        "Python warning only",
        "use unpacked data, or a policy without ep_overlap",
    ),
    SilentChange(
        "overlap stays on", _OVERLAP, _stays_on,
        "the benchmark scripts' --moe_a2a_overlap false leaves a recipe's own overlap on, and its true also sets "
        "delay_wgrad_compute",
        "set comm_overlap.overlap_moe_expert_parallel_comm and comm_overlap.delay_wgrad_compute by name",
    ),
    SilentChange(
        "overlap not put in", _OVERLAP, _switched_off,
        "comm_overlap, where it is set, decides over the model's own fields when training starts; a comm_overlap "
        "that is null cannot be entered by an override",
        "apply the policy to the container in Python, which builds a CommOverlapConfig",
    ),
    SilentChange(
        "shared expert", ("shared_expert_overlap", "moe_shared_expert_overlap"), _switched_off,
        "choosing a flex backend, or EP overlap by the benchmark scripts' flag, switches shared-expert overlap off",
        "apply the policy after the dispatcher is chosen",
    ),
    SilentChange(
        "default modules", ("recompute_modules",), _default_modules,
        "selective recompute without modules becomes core_attn when the configuration is finished",
        "write the modules out, an empty list included",
    ),
    SilentChange(
        "graphs that never engage", _GRAPHS, _is_text,
        "a text where a list of modules belongs compares equal to no module, so nothing is captured",
        "give a list, such as model.cuda_graph_modules=[attn,moe_router]",
    ),
    SilentChange(
        "rank capacity", ("rank_capacity_factor", "moe_expert_rank_capacity_factor"), _always,
        "HybridEP drops the tokens above an expert rank's capacity without an error, so this changes what is "
        "trained as well as its speed",
        "set it as the policy does; its loss and parity were taken with that value",
    ),
    SilentChange(
        "SM count", ("num_sms", "moe_flex_dispatcher_num_sms", "moe_deepep_num_sms", "moe_hybridep_num_sms"), _always,
        "there are several names for this number: the unified one silently beats the older ones, an older one "
        "reaches the other backend too, and Megatron-Bridge's benchmark recipes set 32 by an older one",
        "set the unified name and null the older ones",
    ),
    SilentChange(
        "chunks", _CHUNKS, _asked,
        "with fused permutation HybridEP needs the same chunk size in all three kernels, and without it some of "
        "the three do nothing; the default changed between releases",
        "set all three variables before the first torch import",
    ),
    SilentChange(
        "sequence parallel", ("sequence_parallel",), _no_tensor_parallel,
        "Megatron-LM switches sequence parallelism off where tensor_parallel is 1",
        "is the tensor-parallel size the policy's?",
    ),
    SilentChange(
        "leftover variable", (), _leftover,
        "a variable of a dispatcher that was given up stays behind unless something takes it out",
        "take it out of the recipe and of the shell; policy exec does both",
    ),
    SilentChange(
        "shell variable", (), _variable,
        "Megatron-Bridge sets a container's variables only where the shell has not set them, and never after the "
        "first torch import",
        "start with: autotune policy exec FILE -- COMMAND",
    ),
    SilentChange(
        "skipped name", (), _absent,
        "the configuration has no such field; Megatron-Bridge skips unknown names of a YAML override file with a "
        "warning",
        "render the policy for the release that runs: policy render --megatron-core",
    ),
)  # fmt: skip
"""Most telling first; a row without fields may explain any field."""


def explained(difference: Difference, resolved: Resolved) -> Difference:
    """The difference with the known silent change that it shows, if there is one."""
    name = difference.field.rpartition(".")[2]
    for row in SILENT_CHANGES:
        if (not row.fields or name in row.fields) and row.shows(difference, resolved):
            return replace(difference, why=row.why, remedy=row.remedy)
    return difference


def suspects(resolved: Resolved) -> list[Difference]:
    """Silent changes outside a policy's settings that a container shows by contradicting itself."""
    found = []
    asked = settled(resolved) and resolved.get("comm_overlap.tp_comm_overlap") is True
    if asked and resolved.get("model.tp_comm_overlap") is not True:
        found.append(
            Difference(
                "model.tp_comm_overlap",
                True,
                resolved.get("model.tp_comm_overlap"),
                "comm_overlap asks for it, but it is switched off with a warning where tensor_parallel is below 2, "
                "sequence_parallel is off or Transformer Engine is missing",
                "sequence_parallel=true and tensor_parallel of at least 2, or comm_overlap.tp_comm_overlap=false",
            )
        )
    fused = resolved.get("model.gradient_accumulation_fusion")
    if fused is False and resolved.get("ddp.use_megatron_fsdp") is not True:
        found.append(
            Difference(
                "model.gradient_accumulation_fusion",
                True,
                False,
                "it is switched off where neither Transformer Engine nor APEX offers it, which once cost "
                "DeepSeek-V3 on GB300 29 % of its speed; a recipe may also have chosen it",
                "set model.gradient_accumulation_fusion=true to learn at start what is missing",
            )
        )
    wanted, winner = (resolved.get(f"{part}.grad_reduce_in_fp32") for part in ("ddp", "mixed_precision"))
    if isinstance(wanted, bool) and isinstance(winner, bool) and wanted != winner:
        found.append(
            Difference(
                "ddp.grad_reduce_in_fp32",
                wanted,
                winner,
                "mixed_precision writes its own value over it when training starts",
                f"set mixed_precision.grad_reduce_in_fp32={str(wanted).lower()}",
            )
        )
    if _is_plain_overlap(resolved):
        found.append(
            Difference(
                "comm_overlap",
                "CommOverlapConfig",
                "a plain mapping",
                "a YAML override of a comm_overlap that was null is a mapping without behaviour, which sets nothing up",
                "apply the policy to the container in Python, which builds a CommOverlapConfig",
            )
        )
    return found


def _is_plain_overlap(resolved: Resolved) -> bool:
    """Whether the overlap section alone has no class; a document without any class says nothing."""
    known = resolved.target("model") not in ("", "dict")
    raw = resolved.raw("comm_overlap")
    return known and isinstance(raw, dict) and "_target_" not in raw
