"""The grid of ranks: what must divide what."""

from autotune.constraint.rule import Candidate, Verdict
from autotune.constraint.rules.registry import Rules, divides
from autotune.constraint.versions import Versions

RULES = Rules()


@RULES.add("MC001", "core/parallel_state.py:816")
def _model_parallel_divides_the_gang(c: Candidate) -> Verdict:
    model = c.number("tensor_parallel") * c.number("pipeline_parallel") * c.number("context_parallel")
    return divides("tensor_parallel x pipeline_parallel x context_parallel", model, "the ranks", c.gang.world_size)


@RULES.add("MC002", "core/parallel_state.py:872")
def _expert_parallel_divides_the_gang(c: Candidate) -> Verdict:
    expert = c.expert_group * c.number("pipeline_parallel")
    return divides(
        "expert_tensor_parallel x expert_parallel x pipeline_parallel", expert, "the ranks", c.gang.world_size
    )


@RULES.add("MC008", "core/transformer/transformer_config.py:1468")
def _expert_parallel_needs_experts(c: Candidate) -> Verdict:
    if c.number("expert_parallel") > 1 and not c.is_moe:
        return 1.0, f"expert_parallel={c.number('expert_parallel')}, but the model has no experts"
    return None


@RULES.add("MC009", "core/transformer/moe/moe_layer.py:185")
def _experts_divide_evenly(c: Candidate) -> Verdict:
    if c.shape.num_experts is None:
        return None
    return divides("expert_parallel", c.number("expert_parallel"), "num_experts", c.shape.num_experts)


@RULES.add("MC011", "core/transformer/transformer_config.py:1324")
def _heads_divide_evenly(c: Candidate) -> Verdict:
    return divides("tensor_parallel", c.number("tensor_parallel"), "num_attention_heads", c.shape.num_attention_heads)


@RULES.add("MC012", "core/transformer/transformer_config.py:1338")
def _query_groups_divide_evenly(c: Candidate) -> Verdict:
    groups, tensor = c.shape.num_query_groups, c.number("tensor_parallel")
    if groups is None or groups % tensor == 0 or tensor % groups == 0:
        return None
    return 1.0, f"tensor_parallel={tensor} neither divides nor is a multiple of num_query_groups={groups}"


@RULES.add("MC013", "core/transformer/transformer_config.py:1347-1382")
def _delta_net_heads_divide_evenly(c: Candidate) -> Verdict:
    keys, values = c.shape.gdn_num_key_heads, c.shape.gdn_num_value_heads
    if keys is None or values is None:
        return None
    ranks = c.number("tensor_parallel") * c.number("context_parallel")
    return (
        divides("tensor_parallel x context_parallel", ranks, "gdn_num_key_heads", keys)
        or divides("tensor_parallel x context_parallel", ranks, "gdn_num_value_heads", values)
        or divides("gdn_num_key_heads", keys, "gdn_num_value_heads", values)
    )


@RULES.add("AT017", "core/ssm/mamba_mixer.py: heads and groups are split over tensor-parallel ranks")
def _mamba_heads_divide_evenly(c: Candidate) -> Verdict:
    if c.shape.mamba_num_heads is None:
        return None
    tensor = c.number("tensor_parallel")
    return divides("tensor_parallel", tensor, "mamba_num_heads", c.shape.mamba_num_heads) or divides(
        "tensor_parallel", tensor, "mamba_num_groups", c.shape.mamba_num_groups
    )


@RULES.add("MC014", "core/model_parallel_config.py __post_init__")
def _sequence_parallel_needs_tensor_parallel(c: Candidate) -> Verdict:
    if c.settings["sequence_parallel"] and c.number("tensor_parallel") == 1:
        return 1.0, "sequence_parallel=true needs tensor_parallel > 1"
    return None


@RULES.add("MC015", "core/transformer/moe/moe_layer.py:629")
def _moe_with_tensor_parallel_needs_sequence_parallel(c: Candidate) -> Verdict:
    if c.is_moe and c.number("tensor_parallel") > 1 and not c.settings["sequence_parallel"]:
        return 1.0, f"MoE training with tensor_parallel={c.number('tensor_parallel')} needs sequence_parallel=true"
    return None


@RULES.add("AT003", "core/tensor_parallel/mappings.py: equal chunks along the sequence")
def _sequence_divides_evenly(c: Candidate) -> Verdict:
    if not c.settings["sequence_parallel"]:
        return None
    ranks = c.number("tensor_parallel") * c.number("context_parallel")
    return divides("tensor_parallel x context_parallel", ranks, "seq_length", c.contract.seq_length)


@RULES.add("MC016", "training/arguments.py:1295")
def _context_parallel_halves_divide_evenly(c: Candidate) -> Verdict:
    context = c.number("context_parallel")
    return None if context == 1 else divides("2 x context_parallel", 2 * context, "seq_length", c.contract.seq_length)


@RULES.add("MC020", "core/transformer/transformer_config.py:2279")
def _biases_leave_experts_whole(c: Candidate) -> Verdict:
    split = c.number("expert_tensor_parallel")
    if c.is_moe and c.shape.add_linear_bias and split > 1:
        return float(split - 1), f"expert_tensor_parallel={split}, but experts with biases cannot be split; legal: 1"
    return None


@RULES.add(
    "AT006",
    "core/tensor_parallel/layers.py:886 of 0.16.1; 0.19.2 has it right, the releases between were not read",
    megatron_core=Versions(below=(0, 19)),
)
def _expert_gradients_are_summed(c: Candidate) -> Verdict:
    tensor = c.number("tensor_parallel")
    if c.is_moe and c.number("expert_parallel") == 1 and tensor not in (1, c.number("expert_tensor_parallel")):
        return 1.0, (
            f"tensor_parallel={tensor} with expert_parallel=1: megatron_core below 0.19 does not sum the experts' "
            "gradients over tensor-parallel ranks; use expert_parallel > 1"
        )
    return None
