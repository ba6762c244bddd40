"""The architecture itself: shapes that no setting can repair."""

from autotune.constraint.rule import Candidate, Verdict
from autotune.constraint.rules.registry import Rules, at_most, divides
from autotune.constraint.versions import Versions

RULES = Rules()


@RULES.add("MC010", "core/transformer/transformer_config.py:1531")
def _there_are_experts(c: Candidate) -> Verdict:
    experts = c.shape.num_experts
    if experts is None or experts >= 1:
        return None
    return 1.0 - experts, f"num_experts={experts} must be at least 1, or null for a dense model"


@RULES.add("MC022", "training/arguments.py:1292")
def _heads_divide_the_width(c: Candidate) -> Verdict:
    if c.shape.kv_channels is not None or c.shape.attention != "mha":
        return None
    return divides("num_attention_heads", c.shape.num_attention_heads, "hidden_size", c.shape.hidden_size)


@RULES.add("MC085", "core/transformer/transformer_config.py:1638")
def _shared_expert_has_a_width(c: Candidate) -> Verdict:
    size = c.shape.shared_expert_size
    if size is None or size >= 1:
        return None
    return 1.0 - size, f"shared_expert_size={size} must be at least 1, or null"


@RULES.add("MC021", "core/transformer/moe/shared_experts.py:124")
def _shared_expert_has_no_bias(c: Candidate) -> Verdict:
    if c.is_moe and c.shape.shared_expert_size is not None and c.shape.add_linear_bias:
        return 1.0, "add_linear_bias=true, but a shared expert has no biases in Megatron-Core"
    return None


@RULES.add("MC089", "core/transformer/moe/moe_layer.py:266")
def _latent_experts_are_moe(c: Candidate) -> Verdict:
    latent = c.shape.moe_latent_size
    if latent is None:
        return None
    if not c.is_moe or latent < 1:
        return 1.0, f"moe_latent_size={latent} must be at least 1, in a model with experts"
    return None


@RULES.add("MC091", "our own: TransformerConfig accepts it")
def _enough_experts(c: Candidate) -> Verdict:
    return None if c.shape.num_experts is None else at_most("router_topk", c.shape.router_topk, c.shape.num_experts)


@RULES.add("MC092", "core/transformer/transformer_config.py:2284")
def _expert_bias_needs_independent_scores(c: Candidate) -> Verdict:
    legal = ("sigmoid", "sqrtsoftplus")
    if c.is_moe and c.shape.expert_bias and c.shape.router_score_function not in legal:
        return 1.0, (
            f"router_score_function={c.shape.router_score_function} with expert_bias=true; legal: {', '.join(legal)}"
        )
    return None


@RULES.add(
    "AT034",
    "core/transformer/transformer_config.py:1595 of 0.16.1; 0.19.2 allows it, the releases between were not read",
    megatron_core=Versions(below=(0, 19)),
)
def _scores_are_known_to_the_release(c: Candidate) -> Verdict:
    if c.is_moe and c.shape.router_score_function == "sqrtsoftplus":
        return 1.0, "router_score_function=sqrtsoftplus needs megatron_core >= 0.19; legal below: softmax, sigmoid"
    return None


@RULES.add("MC093", "core/transformer/transformer_config.py:2338-2356")
def _router_groups_divide_evenly(c: Candidate) -> Verdict:
    groups, visited = c.shape.router_num_groups, c.shape.router_group_topk
    if not c.is_moe or visited is None:
        return None
    if groups is None:
        return 1.0, f"router_group_topk={visited} needs router_num_groups"
    return divides("router_num_groups", groups, "num_experts", c.shape.num_experts or groups) or at_most(
        "router_group_topk", visited, groups
    )
