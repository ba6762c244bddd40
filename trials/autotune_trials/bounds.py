"""Which values a model shape and a contract may have: numbers outside are typing mistakes, not models."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

Complaint = tuple[str, str]
"""A field, and the bound that its value breaks."""

_LARGEST = 2**24
"""Of any width or count that has no bound of its own: sixteen times the largest vocabulary or width in use."""

_RANGES: Mapping[str, tuple[int, int]] = {
    "num_layers": (1, 10_000),
    "num_experts": (1, 65_536),
    "num_dense_layers": (0, 10_000),
    "num_hash_layers": (0, 10_000),
    "mtp_num_layers": (0, 10_000),
    "rotary_base": (1, 10**12),
    "vision_parameters": (0, 10**13),
    "seq_length": (1, 2**30),
    "warmup_steps": (0, 10**6),
    "steps": (1, 10**6),
    "seed": (0, 2**32 - 1),  # what every generator of random numbers takes
}


def number_out_of_range(values: Mapping[str, Any]) -> Iterator[Complaint]:
    """The whole numbers outside their range, and the floats that are negative or not finite."""
    for name, value in values.items():
        if isinstance(value, bool):
            continue
        if isinstance(value, int):
            low, high = _RANGES.get(name, (1, _LARGEST))
            if not low <= value <= high:
                yield name, f"{low} <= {name} <= {high} must hold, but got {value}"
        elif isinstance(value, float) and not (math.isfinite(value) and value >= 0):
            yield name, f"{name} >= 0 and finite must hold, but got {value}"


def impossible_shape(values: Mapping[str, Any]) -> Iterator[Complaint]:
    """What the numbers of an architecture cannot be together, each alone being in its range."""
    heads, hidden = values["num_attention_heads"], values["hidden_size"]
    if values["attention"] == "mha" and values["kv_channels"] is None and hidden % heads:
        yield "num_attention_heads", _divides("num_attention_heads", heads, "hidden_size", hidden)
    groups = values["num_query_groups"]
    if groups is not None and heads % groups:
        yield "num_query_groups", _divides("num_query_groups", groups, "num_attention_heads", heads)
    experts = values["num_experts"]
    if experts is not None:
        if values["router_topk"] > experts:
            yield "router_topk", _at_most("router_topk", values["router_topk"], "num_experts", experts)
        router_groups = values["router_num_groups"]
        if router_groups is not None and experts % router_groups:
            yield "router_num_groups", _divides("router_num_groups", router_groups, "num_experts", experts)
        if router_groups is not None and (values["router_group_topk"] or 0) > router_groups:
            topk = values["router_group_topk"]
            yield "router_group_topk", _at_most("router_group_topk", topk, "router_num_groups", router_groups)
    layers = values["num_layers"]
    for name in ("num_dense_layers", "num_hash_layers"):
        if values[name] > layers:
            yield name, _at_most(name, values[name], "num_layers", layers)
    pattern = values["hybrid_pattern"]
    if pattern is not None and len(pattern) != layers:
        yield "hybrid_pattern", f"one letter per layer must hold, but got {len(pattern)} letters and {layers} layers"


def _at_most(name: str, value: int, bound: str, limit: int) -> str:
    return f"{name} <= {bound} must hold, but got {value} > {limit}"


def _divides(name: str, value: int, whole: str, size: int) -> str:
    return f"{whole} % {name} == 0 must hold, but got {size} % {value} = {size % value}"
