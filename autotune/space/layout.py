"""Pipeline layouts that search spaces may name instead of writing them out.

What is generated is a strict subset of what Megatron-Core accepts (grammar: :mod:`autotune_policies.layout`): the
embedding is in the first stage, the loss in the last, and no stage is empty.
"""

from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise

from autotune_trials.spec import ModelShape

EVEN = "even"
LIGHT_LAST = "light_last"
BALANCED = "balanced"
PACKED = "packed"
GENERATED = (EVEN, LIGHT_LAST, BALANCED, PACKED)
"""Names that a search space may give instead of a layout: equal shares; one decoder layer less beside the loss; equal
cost per stage; full stages, and what is left over beside multi-token prediction and the loss."""


@dataclass(frozen=True)
class LayerCosts:
    """What the parts of a pipeline cost, in units of one expert layer (of any layer in a dense model).

    Attributes:
        dense_layers: Leading layers without experts.
        dense: Cost of one of them.
        last: Cost of what stands behind the decoder: multi-token prediction, output layer and loss.
    """

    dense_layers: int = 0
    dense: float = 1.0
    last: float = 0.0


def generate(
    kind: str, num_layers: int, stages: int, mtp_num_layers: int = 0, costs: LayerCosts | None = None
) -> str | None:
    """The layout of a generated kind; None = Megatron's own even split, which needs no layout.

    Equal shares that do not divide evenly leave the first and then the last stages lighter, since those also hold the
    embedding and the loss (or the multi-token-prediction layers). The embedding itself costs next to nothing.

    Args:
        kind: One of ``GENERATED``.
        num_layers: Decoder layers.
        stages: Pipeline ranks x model chunks per rank.
        mtp_num_layers: Multi-token-prediction layers, all in the last stage.
        costs: For ``balanced``: what layers cost; None = all the same, and the loss nothing.

    Raises:
        ValueError: fewer layers than stages, or an unknown kind.
    """
    if kind not in GENERATED:
        raise ValueError(f"layout kind {kind!r} must be one of {', '.join(GENERATED)}")
    if stages == 1 or (kind == EVEN and num_layers % stages == 0 and mtp_num_layers == 0):
        return None
    if num_layers < stages:
        raise ValueError(f"num_layers >= stages must hold, but got {num_layers} layers and {stages} stages")
    if kind == PACKED:
        counts = _packed(num_layers, stages)
    elif kind == BALANCED:
        counts = list(_balanced(num_layers, stages, costs or LayerCosts()))
    else:
        counts = _shares(num_layers, stages, light_last=kind == LIGHT_LAST)
    texts = ["t" * count for count in counts]
    texts[0] = "E" + texts[0]
    texts[-1] += "m" * mtp_num_layers + "L"
    return "|".join(texts)


def layer_costs(shape: ModelShape) -> LayerCosts:
    """What the parts of a model cost, by the weights that a token meets in them."""
    hidden = shape.hidden_size
    matrices = 3 if shape.gated_linear_unit else 2
    head = shape.kv_channels or hidden // shape.num_attention_heads
    heads, groups = shape.num_attention_heads, shape.num_query_groups or shape.num_attention_heads
    mixer = 2 * hidden * head * (heads + groups)
    if shape.attention == "mla":
        query = heads * ((shape.qk_head_dim or 0) + (shape.qk_pos_emb_head_dim or 0))
        rank, values = shape.kv_lora_rank or 0, heads * (shape.v_head_dim or 0)
        mixer = (shape.q_lora_rank or hidden) * query + hidden * (rank + values)
        mixer += rank * (heads * (shape.qk_head_dim or 0) + values) + hidden * (shape.q_lora_rank or 0)
    dense = mixer + matrices * hidden * shape.ffn_hidden_size
    output = shape.vocab_size * hidden
    if shape.num_experts is None:
        return LayerCosts(last=(output + shape.mtp_num_layers * (dense + output)) / dense)
    width = shape.router_topk * (shape.moe_ffn_hidden_size or shape.ffn_hidden_size)
    routed = matrices * (shape.moe_latent_size or hidden) * width
    layer = mixer + routed + matrices * hidden * (shape.shared_expert_size or 0)
    last = output + shape.mtp_num_layers * (layer + output + 2 * hidden * hidden)
    return LayerCosts(dense_layers=shape.num_dense_layers, dense=dense / layer, last=last / layer)


def _shares(num_layers: int, stages: int, *, light_last: bool) -> list[int]:
    counts = [num_layers // stages] * stages
    order = [*range(1, stages - 1), stages - 1, 0]  # who takes the layers left over, first one first
    for index in range(num_layers % stages):
        counts[order[index % stages]] += 1
    if light_last:
        counts[-1] -= 1
        counts[counts.index(min(counts[:-1]))] += 1
    return counts


def _packed(num_layers: int, stages: int) -> list[int]:
    """All stages as full as the fullest must be, and the rest in the last; too few layers are missed from the front."""
    full = -(-num_layers // stages)
    counts = [full] * (stages - 1) + [num_layers - full * (stages - 1)]
    missing, counts[-1] = max(0, -counts[-1]), max(0, counts[-1])
    for index in range(missing):
        counts[index] -= 1
    return counts


@lru_cache(maxsize=4096)
def _balanced(num_layers: int, stages: int, costs: LayerCosts) -> tuple[int, ...]:
    """Layers per stage such that the costliest stage costs as little as possible, with at least one layer in each."""
    sums = [0.0, *accumulate(costs.dense if i < costs.dense_layers else 1.0 for i in range(num_layers))]
    # Nothing that costs more than equal shares need can be part of the answer.
    ends = [0, *accumulate(_shares(num_layers, stages, light_last=False))]
    costs_of_shares = [sums[end] - sums[begin] for begin, end in pairwise(ends)]
    enough = max(*costs_of_shares[:-1], costs_of_shares[-1] + costs.last)
    # By the number of layers so far: costliest stage, sum of squares (evens out the other stages), layers per stage.
    best: dict[int, tuple[float, float, tuple[int, ...]]] = {0: (0.0, 0.0, ())}
    for stage in range(stages):
        final = stage == stages - 1
        reached = {}
        for end in [num_layers] if final else range(stage + 1, num_layers - (stages - 1 - stage) + 1):
            options = []
            for begin, (most, squares, counts) in best.items():
                cost = sums[end] - sums[begin] + (costs.last if final else 0.0)
                if begin < end and cost <= enough + 1e-9:
                    options.append((max(most, round(cost, 9)), squares + cost * cost, (*counts, end - begin)))
            if options:
                reached[end] = min(options)
        best = reached
    return best[num_layers][2]
