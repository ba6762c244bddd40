"""Is it the policy's own model, trained on the tokens that its numbers were taken with? Seen in a ConfigContainer."""

from collections.abc import Mapping
from typing import Any

from autotune_policies.bridge_fields import model_path
from autotune_policies.container_facts import own_precision, precision_names
from autotune_policies.policy import Policy
from autotune_policies.resolved import ABSENT, Difference, Resolved
from autotune_policies.surroundings import HYBRID_EP_VARIABLES

_SHAPE: Mapping[str, str] = {
    "num_layers": "num_layers",
    "hidden_size": "hidden_size",
    "num_attention_heads": "num_attention_heads",
    "num_experts": "num_moe_experts",
    "router_topk": "moe_router_topk",
    "moe_ffn_hidden_size": "moe_ffn_hidden_size",
}
"""Parts of a recorded model's shape and their fields."""


def other_model(policy: Policy, view: Resolved) -> tuple[list[Difference], list[str]]:
    """Where the model is not of the shape that the policy's record has, and which fields were compared."""
    shape = (policy.evidence.get("contract") or {}).get("model")
    path = model_path(view)
    known: dict[str, Any] = {}
    if isinstance(shape, Mapping):
        known = {field: shape[name] for name, field in _SHAPE.items() if shape.get(name) is not None}
    fields = [field for field in known if view.get(f"{path}.{field}") is not ABSENT]
    rows = [Difference(f"{path}.{field}", known[field], view.get(f"{path}.{field}")) for field in fields]
    rows = [row for row in rows if row.found != row.wanted]
    experts = view.get(f"{path}.num_moe_experts")
    if not known.get("num_moe_experts") and experts in (None, 0, False):
        why = "the model has no experts, so nothing of the policy's dispatch happens"
        rows.append(Difference(f"{path}.num_moe_experts", "a number of experts", experts, why))
    return rows, [f"{path}.{field}" for field in fields]


def other_tokens(policy: Policy, view: Resolved) -> list[Difference]:
    """Where other tokens reach the experts than the policy's numbers were taken with."""
    routing = policy.evidence.get("routing")
    if not isinstance(routing, Mapping):
        recorded = (policy.evidence.get("contract") or {}).get("contract")
        routing = recorded.get("routing") if isinstance(recorded, Mapping) else None
    if not isinstance(routing, Mapping):
        return []
    path, rows = model_path(view), []
    factor = view.get(f"{path}.moe_expert_capacity_factor")
    if routing.get("token_policy") == "dropless" and factor not in (None, ABSENT):
        why = "tokens above an expert's capacity are dropped, but the policy's numbers are dropless"
        rows.append(Difference(f"{path}.moe_expert_capacity_factor", None, factor, why))
    forced = view.get(f"{path}.moe_router_force_load_balancing")
    if routing.get("source") == "natural" and forced is True:
        why = "the router is replaced by an even one, but the policy's numbers are of the model's own routing"
        rows.append(Difference(f"{path}.moe_router_force_load_balancing", False, forced, why))
    return rows


def other_precision(view: Resolved, wanted: str) -> str | None:
    """The low precision that the model asks for where ``mixed_precision`` names another; None = they agree."""
    names, own = precision_names(view), own_precision(view)
    if not own or set(own) & set(names):
        return None
    return wanted if wanted in own and not names else own[0]


def own_variables(policy: Policy, variables: Mapping[str, object]) -> list[Difference]:
    """Fine print of HybridEP that the policy does not say; a recipe's own stays in force, and may cost speed."""
    if policy.settings["dispatcher"] != "hybridep":
        return []
    why = "the policy does not say it, so what the recipe or the shell says is in force"
    remedy = "take it out, or tune with it"
    return [
        Difference(f"env_vars.{name}", ABSENT, variables[name], why, remedy)
        for name in HYBRID_EP_VARIABLES
        if name in variables and name not in policy.env
    ]
