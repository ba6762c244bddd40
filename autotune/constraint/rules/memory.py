"""What is computed again, or waits in host memory."""

from autotune.constraint.rule import Candidate, Verdict
from autotune.constraint.rules.registry import Rules, at_most, join, needs_version

RULES = Rules()

_INSIDE_MOE = {"expert_fc1", "moe_act", "fused_group_mlp"}
_OFFLOAD_V1 = "NVTE_CPU_OFFLOAD_V1"


@RULES.add("MC152", "core/transformer/transformer_config.py:1731-1748")
def _full_recompute_is_complete(c: Candidate) -> Verdict:
    if c.settings["recompute_granularity"] != "full":
        return None
    missing = [name for name in ("recompute_method", "recompute_num_layers") if c.settings[name] is None]
    if missing:
        return float(len(missing)), f"recompute_granularity=full needs {' and '.join(missing)}"
    layers = c.number("recompute_num_layers")
    return at_most("recompute_num_layers", layers, c.shape.num_layers)


@RULES.add("MC153", "core/transformer/transformer_config.py:1749; training/arguments.py:1386")
def _grouping_belongs_to_full_recompute(c: Candidate) -> Verdict:
    if c.settings["recompute_granularity"] == "full":
        return None
    if c.settings["recompute_method"] is not None or c.settings["recompute_num_layers"] is not None:
        return 1.0, "recompute_method and recompute_num_layers need recompute_granularity=full"
    return None


@RULES.add("MC155", "core/transformer/transformer_config.py:1766-1782")
def _modules_belong_to_selective_recompute(c: Candidate) -> Verdict:
    selective, modules = c.settings["recompute_granularity"] == "selective", c.names("recompute_modules")
    if modules and not selective:
        return float(len(modules)), "recompute_modules need recompute_granularity=selective"
    if selective and not modules:
        return 1.0, "recompute_granularity=selective needs recompute_modules"
    return None


@RULES.add("MC156", "core/transformer/transformer_config.py:1784")
def _activation_recompute_needs_grouped_experts(c: Candidate) -> Verdict:
    if "moe_act" in c.names("recompute_modules") and not c.settings["grouped_gemm"]:
        return 1.0, "recompute_modules: moe_act needs grouped_gemm=true"
    return None


@RULES.add("MC157", "core/transformer/transformer_config.py:1789")
def _projection_recompute_needs_latent_attention(c: Candidate) -> Verdict:
    if "mla_up_proj" in c.names("recompute_modules") and c.shape.attention == "mha":
        return 1.0, f"recompute_modules: mla_up_proj, but attention is {c.shape.attention}; it needs mla"
    return None


@RULES.add("MC158", "core/transformer/transformer_config.py:1795")
def _delta_net_recompute_needs_one(c: Candidate) -> Verdict:
    if "gdn_norm_out" in c.names("recompute_modules") and c.shape.gdn_num_value_heads is None:
        return 1.0, "recompute_modules: gdn_norm_out, but the model has no gated delta net"
    return None


@RULES.add("MC159", "core/transformer/transformer_config.py:1812")
def _shared_expert_is_recomputed_or_overlapped(c: Candidate) -> Verdict:
    if "shared_experts" not in c.names("recompute_modules"):
        return None
    if c.shape.shared_expert_size is None:
        return 1.0, "recompute_modules: shared_experts, but the model has none"
    if c.settings["shared_expert_overlap"]:
        return 1.0, "recompute_modules: shared_experts excludes shared_expert_overlap=true"
    return None


@RULES.add("AT028", "our own: modules that the model lacks would be measured twice")
def _recomputed_modules_exist(c: Candidate) -> Verdict:
    modules = set(c.names("recompute_modules"))
    named = {"moe", "moe_act"} & modules
    if named and not c.is_moe:
        return float(len(named)), f"recompute_modules names {join(named)}, but the model has no experts"
    if "mlp" in modules and not c.has_dense_layers:
        return 1.0, "recompute_modules: mlp, but every layer is an MoE layer"
    return None


@RULES.add("MC163", "core/transformer/transformer_config.py:1848-1867; training/arguments.py:1855")
def _offloading_needs_transformer_engine(c: Candidate) -> Verdict:
    modules = c.names("offload_modules")
    if not modules:
        return None
    if c.gang.device != "cuda":
        return 1.0, f"offload_modules={','.join(modules)} needs CUDA devices"
    return needs_version(c, f"offload_modules={','.join(modules)}", "transformer_engine", (2, 3))


@RULES.add("MC164", "core/transformer/transformer_config.py:1868")
def _projection_follows_attention(c: Candidate) -> Verdict:
    modules = c.names("offload_modules")
    if "attn_proj" in modules and "core_attn" not in modules:
        return 1.0, "offload_modules: attn_proj needs core_attn"
    return None


@RULES.add("MC165", "core/transformer/transformer_config.py:1874")
def _recomputed_experts_are_not_offloaded(c: Candidate) -> Verdict:
    named = _INSIDE_MOE & set(c.names("offload_modules"))
    if named and "moe" in c.names("recompute_modules"):
        return float(len(named)), f"offload_modules: {join(named)} excludes recomputing moe"
    return None


@RULES.add("MC167", "core/transformer/transformer_config.py:1895")
def _fused_experts_are_offloaded_whole(c: Candidate) -> Verdict:
    modules = set(c.names("offload_modules"))
    if "fused_group_mlp" not in modules:
        return None
    if not c.settings["op_fuser"]:
        return 1.0, "offload_modules: fused_group_mlp needs op_fuser=true"
    parts = {"expert_fc1", "moe_act"} & modules
    return (float(len(parts)), f"offload_modules: fused_group_mlp already holds {join(parts)}") if parts else None


@RULES.add("AT029", "our own: a module is computed again or kept in host memory, not both")
def _offloaded_is_not_recomputed(c: Candidate) -> Verdict:
    both = {"core_attn", "moe_act"} & set(c.names("offload_modules")) & set(c.names("recompute_modules"))
    return (float(len(both)), f"{join(both)} among both offload_modules and recompute_modules") if both else None


@RULES.add("MC056", "training/arguments.py:1857")
def _offloading_needs_its_variable(c: Candidate) -> Verdict:
    if not c.names("offload_modules") or c.variables is None or c.stack is None:
        return None
    if needs_version(c, "", "transformer_engine", (2, 10)) is None and c.variables.get(_OFFLOAD_V1) != "1":
        return 1.0, (
            f"offload_modules with transformer_engine >= 2.10 need {_OFFLOAD_V1}=1, "
            f"but it is {c.variables.get(_OFFLOAD_V1, 'not set')}"
        )
    return None
