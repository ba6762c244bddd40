"""Pipeline layouts that search spaces may name instead of writing them out.

What is generated is a strict subset of what Megatron-Core accepts (grammar: :mod:`autotune_policies.layout`): the
embedding is in the first stage, the loss in the last, and no stage is empty.
"""

EVEN = "even"
LIGHT_LAST = "light_last"
GENERATED = (EVEN, LIGHT_LAST)
"""Names that a search space may give instead of a layout: equal shares; one decoder layer less beside the loss."""


def generate(kind: str, num_layers: int, stages: int, mtp_num_layers: int = 0) -> str | None:
    """The layout of a generated kind; None = Megatron's own even split, which needs no layout.

    Layers that do not divide evenly leave the first and then the last stages lighter, since those also hold the
    embedding and the loss (or the multi-token-prediction layers).

    Raises:
        ValueError: fewer layers than stages, or an unknown kind.
    """
    if kind not in GENERATED:
        raise ValueError(f"layout kind {kind!r} must be one of {', '.join(GENERATED)}")
    if stages == 1 or (kind == EVEN and num_layers % stages == 0 and mtp_num_layers == 0):
        return None
    if num_layers < stages:
        raise ValueError(f"num_layers >= stages must hold, but got {num_layers} layers and {stages} stages")
    counts = [num_layers // stages] * stages
    order = [*range(1, stages - 1), stages - 1, 0]  # who takes the layers left over, first one first
    for index in range(num_layers % stages):
        counts[order[index % stages]] += 1
    if kind == LIGHT_LAST:
        counts[-1] -= 1
        counts[counts.index(min(counts[:-1]))] += 1
    texts = ["t" * count for count in counts]
    texts[0] = "E" + texts[0]
    texts[-1] += "m" * mtp_num_layers + "L"
    return "|".join(texts)
