"""What CUDA graphs can capture."""

from autotune.constraint.rule import Candidate, Verdict
from autotune.constraint.rules.registry import Rules, join, needs_version

RULES = Rules()

_EXPERT_PARTS = {"expert_fc1", "moe_act", "fused_group_mlp"}
_GRAPH_REGISTER = "NCCL_GRAPH_REGISTER"


@RULES.add("AT005", "CUDA graphs are CUDA's")
def _graphs_need_a_gpu(c: Candidate) -> Verdict:
    if c.settings["cuda_graph_impl"] != "none" and c.gang.device != "cuda":
        return 1.0, f"cuda_graph_impl={c.settings['cuda_graph_impl']} needs CUDA devices"
    return None


@RULES.add("AT024", "core/transformer/cuda_graphs.py: the layers are Transformer Engine's")
def _graphs_need_transformer_engine(c: Candidate) -> Verdict:
    if c.settings["cuda_graph_impl"] != "transformer_engine":
        return None
    return needs_version(c, "cuda_graph_impl=transformer_engine", "transformer_engine", (2, 3))


@RULES.add("MC128", "core/transformer/transformer_config.py:2461")
def _modules_belong_to_layers(c: Candidate) -> Verdict:
    modules = c.names("cuda_graph_modules")
    if modules and not c.per_layer_graphs:
        return float(len(modules)), f"cuda_graph_impl={c.settings['cuda_graph_impl']} takes no cuda_graph_modules"
    return None


@RULES.add("MC130", "core/transformer/transformer_config.py:2472-2482: it adds the other one silently")
def _local_router_and_preprocess_go_together(c: Candidate) -> Verdict:
    modules = set(c.names("cuda_graph_modules"))
    if c.settings["cuda_graph_impl"] == "local" and len(modules & {"moe_router", "moe_preprocess"}) == 1:
        return 1.0, "cuda_graph_impl=local captures moe_router and moe_preprocess together; name both or none"
    return None


@RULES.add("MC131", "core/transformer/transformer_config.py:2484")
def _moe_contains_the_router(c: Candidate) -> Verdict:
    if c.per_layer_graphs and {"moe", "moe_router"} <= set(c.names("cuda_graph_modules")):
        return 1.0, "cuda_graph_modules: moe contains moe_router; name one of them"
    return None


@RULES.add("MC132", "core/transformer/transformer_config.py:2488")
def _preprocess_needs_the_router(c: Candidate) -> Verdict:
    modules = c.names("cuda_graph_modules")
    if c.per_layer_graphs and "moe_preprocess" in modules and "moe_router" not in modules:
        return 1.0, "cuda_graph_modules: moe_preprocess needs moe_router"
    return None


@RULES.add("MC133", "core/transformer/transformer_config.py:2492")
def _moe_modules_need_experts(c: Candidate) -> Verdict:
    named = {"moe", "moe_router", "moe_preprocess"} & set(c.names("cuda_graph_modules"))
    if c.per_layer_graphs and named and (c.shape.num_experts or 0) <= 1:
        return float(len(named)), f"cuda_graph_modules names {join(named)}, but the model has no experts"
    return None


@RULES.add("MC134", "core/transformer/transformer_config.py:2498")
def _mlp_needs_a_dense_layer(c: Candidate) -> Verdict:
    if c.per_layer_graphs and "mlp" in c.names("cuda_graph_modules") and c.is_moe and c.shape.num_dense_layers == 0:
        return 1.0, "cuda_graph_modules: mlp, but every layer is an MoE layer"
    return None


@RULES.add("AT026", "core/ssm/mamba_layer.py: the module is a Mamba layer")
def _mamba_needs_mamba_layers(c: Candidate) -> Verdict:
    if c.per_layer_graphs and "mamba" in c.names("cuda_graph_modules") and "M" not in (c.shape.hybrid_pattern or ""):
        return 1.0, "cuda_graph_modules: mamba, but the model has no Mamba layer"
    return None


@RULES.add("MC135", "core/transformer/transformer_config.py:2505")
def _captured_experts_need_fixed_sizes(c: Candidate) -> Verdict:
    policy = c.contract.routing.token_policy
    if c.per_layer_graphs and "moe" in c.names("cuda_graph_modules") and policy != "capacity":
        return 1.0, (
            f"cuda_graph_modules: moe is captured with padded experts only (token_policy=capacity), but it is {policy}"
        )
    return None


@RULES.add("MC138", "our own: TransformerConfig accepts it, the capture dies; issue #1598")
def _captured_layers_need_fixed_sizes(c: Candidate) -> Verdict:
    if c.per_layer_graphs and not c.names("cuda_graph_modules") and c.is_moe and not c.has_fixed_sizes:
        return 1.0, (
            f"cuda_graph_impl={c.settings['cuda_graph_impl']} on whole layers cannot capture MoE whose sizes change; "
            "name cuda_graph_modules"
        )
    return None


@RULES.add("MC139", "our own: TransformerConfig accepts it, the capture dies")
def _full_iteration_needs_static_shapes(c: Candidate) -> Verdict:
    if c.settings["cuda_graph_impl"] != "full_iteration" or not c.is_moe or c.has_fixed_sizes:
        return None
    if c.is_dropless:
        return 1.0, "cuda_graph_impl=full_iteration needs experts of a fixed size, but the contract is dropless"
    return 1.0, (
        "cuda_graph_impl=full_iteration needs experts of a fixed size; use dispatcher hybridep or ncclep with "
        "rank_capacity_factor"
    )


@RULES.add("MC140", "core/transformer/moe/fused_a2a.py:100: the CPU waits for the GPU's counts")
def _deepep_stays_outside(c: Candidate) -> Verdict:
    if c.backend.name != "deepep":
        return None
    if c.settings["cuda_graph_impl"] == "full_iteration" or "moe" in c.names("cuda_graph_modules"):
        return 1.0, "dispatcher=deepep cannot be captured; use neither full_iteration nor moe among cuda_graph_modules"
    return None


@RULES.add("MC141", "core/transformer/transformer_config.py:2521")
def _full_recompute_excludes_layer_graphs(c: Candidate) -> Verdict:
    if c.settings["recompute_granularity"] == "full" and c.per_layer_graphs:
        return 1.0, "recompute_granularity=full allows no per-layer CUDA graphs"
    return None


@RULES.add("MC142", "core/transformer/transformer_config.py:2529: Transformer Engine's graphs only")
def _recomputed_experts_exclude_a_captured_router(c: Candidate) -> Verdict:
    engine = c.settings["cuda_graph_impl"] == "transformer_engine"
    if engine and "moe" in c.names("recompute_modules") and "moe_router" in c.names("cuda_graph_modules"):
        return 1.0, "recompute_modules: moe excludes moe_router among cuda_graph_modules"
    return None


@RULES.add("MC144", "core/transformer/transformer_config.py:2596-2633")
def _offloading_stays_outside_local_graphs(c: Candidate) -> Verdict:
    offloaded = set(c.names("offload_modules"))
    if not offloaded or not c.per_layer_graphs:
        return None
    if "moe" in c.names("cuda_graph_modules"):
        return 1.0, "offload_modules exclude moe among cuda_graph_modules"
    if c.settings["cuda_graph_impl"] != "local":
        return None
    if not c.names("cuda_graph_modules"):
        return 1.0, "offload_modules exclude capturing whole layers with cuda_graph_impl=local; name cuda_graph_modules"
    other = offloaded - _EXPERT_PARTS
    if other:
        return float(len(other)), f"cuda_graph_impl=local offloads {join(_EXPERT_PARTS)} only, not {join(other)}"
    return None


@RULES.add(
    "MC146", "core/transformer/transformer_config.py:2634: needs a bound on offloads in flight, which is no setting"
)
def _offloading_stays_outside_full_iteration(c: Candidate) -> Verdict:
    offloaded = c.names("offload_modules")
    if c.settings["cuda_graph_impl"] == "full_iteration" and offloaded:
        return float(len(offloaded)), "cuda_graph_impl=full_iteration excludes offload_modules"
    return None


@RULES.add("MC147", "core/transformer/transformer_layer.py:1504")
def _captured_offloading_needs_versions(c: Candidate) -> Verdict:
    captured = c.per_layer_graphs and "attn" in c.names("cuda_graph_modules")
    inside = {"attn_norm", "qkv_linear", "core_attn", "attn_proj"} & set(c.names("offload_modules"))
    if not (captured and inside):
        return None
    what = f"offloading {join(inside)} inside the captured attn"
    return needs_version(c, what, "torch", (2, 9)) or needs_version(c, what, "transformer_engine", (2, 14))


@RULES.add("MC055", "training/arguments.py:1880")
def _expandable_segments_exclude_registration(c: Candidate) -> Verdict:
    if c.settings["cuda_graph_impl"] != "transformer_engine" or c.variables is None:
        return None
    expandable = "expandable_segments:True" in c.variables.get("PYTORCH_CUDA_ALLOC_CONF", "")
    if expandable and c.variables.get(_GRAPH_REGISTER) != "0":
        return 1.0, (
            "cuda_graph_impl=transformer_engine with expandable segments needs "
            f"{_GRAPH_REGISTER}=0, but it is {c.variables.get(_GRAPH_REGISTER, 'not set')}"
        )
    return None
