"""Expert-parallel communication hidden behind another micro-batch, and weight gradients moved for it."""

from autotune.constraint.rule import Candidate, Verdict
from autotune.constraint.rules.dispatcher import ALLGATHER, WITHOUT_ALLGATHER
from autotune.constraint.rules.registry import Rules, join, needs_version
from autotune.constraint.versions import Versions

RULES = Rules()

_BEFORE_0_19 = Versions(below=(0, 19))


@RULES.add("MC108", "core/transformer/transformer_config.py:2671")
def _overlap_needs_torch(c: Candidate) -> Verdict:
    return needs_version(c, "ep_overlap=true", "torch", (2, 6)) if c.settings["ep_overlap"] else None


@RULES.add("MC109", "core/transformer/transformer_config.py:2674")
def _overlap_needs_interleaving(c: Candidate) -> Verdict:
    if c.settings["ep_overlap"] and c.number("pipeline_parallel") > 1 and c.number("virtual_pipeline") == 1:
        return 1.0, f"ep_overlap=true with pipeline_parallel={c.number('pipeline_parallel')} needs virtual_pipeline > 1"
    return None


@RULES.add("MC110", "core/transformer/transformer_config.py:2680-2686")
def _overlap_needs_communication(c: Candidate) -> Verdict:
    if not c.settings["ep_overlap"]:
        return None
    if c.number("expert_parallel") == 1:
        return 1.0, "ep_overlap=true needs expert_parallel > 1"
    if c.backend.name == ALLGATHER:
        return 1.0, f"ep_overlap=true needs dispatcher {WITHOUT_ALLGATHER}"
    return None


@RULES.add("MC111", "core/transformer/transformer_config.py:2688-2699")
def _overlap_excludes_recomputing_experts(c: Candidate) -> Verdict:
    if not c.settings["ep_overlap"]:
        return None
    if c.settings["recompute_granularity"] == "full" or "moe" in c.names("recompute_modules"):
        return 1.0, "ep_overlap=true allows neither full recompute nor moe among recompute_modules"
    return None


@RULES.add(
    "AT025",
    "core/transformer/transformer_config.py:1892 of 0.16.1; gone in 0.19.2, the releases between were not read",
    megatron_core=_BEFORE_0_19,
)
def _overlap_with_a_prediction_layer_needs_pipeline(c: Candidate) -> Verdict:
    if c.settings["ep_overlap"] and c.shape.mtp_num_layers and c.number("pipeline_parallel") == 1:
        return 1.0, "ep_overlap=true with a multi-token-prediction layer needs pipeline_parallel > 1"
    return None


@RULES.add(
    "AT027",
    "core/transformer/transformer_config.py:1898 of 0.16.1; gone in 0.19.2, the releases between were not read",
    megatron_core=_BEFORE_0_19,
)
def _overlap_excludes_other_graphs(c: Candidate) -> Verdict:
    implementation = c.settings["cuda_graph_impl"]
    if c.settings["ep_overlap"] and implementation not in ("none", "transformer_engine"):
        return 1.0, f"ep_overlap=true with cuda_graph_impl={implementation}; legal: none, transformer_engine"
    return None


@RULES.add("MC112", "core/transformer/transformer_config.py:2702")
def _overlap_needs_16_bits(c: Candidate) -> Verdict:
    if c.settings["ep_overlap"] and c.contract.precision == "fp32":
        return 1.0, "ep_overlap=true needs bf16 or a smaller precision, but it is fp32"
    return None


@RULES.add("MC113", "core/transformer/transformer_config.py:2706")
def _overlap_excludes_shared_expert_overlap(c: Candidate) -> Verdict:
    if c.settings["ep_overlap"] and c.settings["shared_expert_overlap"]:
        return 1.0, "ep_overlap=true and shared_expert_overlap=true exclude each other"
    return None


@RULES.add("MC114", "core/transformer/transformer_config.py:2709")
def _overlap_allows_one_prediction_layer(c: Candidate) -> Verdict:
    layers = c.shape.mtp_num_layers
    if c.settings["ep_overlap"] and layers > 1:
        return float(layers - 1), f"ep_overlap=true allows one multi-token-prediction layer, but there are {layers}"
    return None


@RULES.add("MC115", "core/transformer/transformer_config.py:2738-2746: Transformer Engine's graphs only")
def _overlap_keeps_the_experts_out_of_graphs(c: Candidate) -> Verdict:
    captured = {"moe", "mlp"} & set(c.names("cuda_graph_modules"))
    if c.settings["ep_overlap"] and c.settings["cuda_graph_impl"] == "transformer_engine" and captured:
        return float(len(captured)), f"ep_overlap=true excludes {join(captured)} among cuda_graph_modules"
    return None


@RULES.add("MC116", "core/transformer/transformer_layer.py:1263")
def _overlap_excludes_whole_layer_graphs(c: Candidate) -> Verdict:
    if c.settings["ep_overlap"] and c.per_layer_graphs and not c.names("cuda_graph_modules"):
        return 1.0, "ep_overlap=true excludes capturing whole layers; name cuda_graph_modules"
    return None


@RULES.add("MC117", "core/transformer/transformer_config.py:2717-2736")
def _overlap_on_ncclep_keeps_its_experts_on_the_gpu(c: Candidate) -> Verdict:
    if c.settings["ep_overlap"] and c.backend.name == "ncclep" and "expert_fc1" in c.names("offload_modules"):
        return 1.0, "ep_overlap=true with dispatcher=ncclep excludes expert_fc1 among offload_modules"
    return None


@RULES.add("MC119", "core/transformer/transformer_config.py:2749; training/arguments.py:1822")
def _delayed_wgrad_needs_overlap(c: Candidate) -> Verdict:
    if c.settings["delay_wgrad"] and not c.settings["ep_overlap"]:
        return 1.0, "delay_wgrad=true needs ep_overlap=true"
    return None


@RULES.add("MC122", "training/arguments.py:1848")
def _delayed_wgrad_needs_transformer_engine(c: Candidate) -> Verdict:
    return needs_version(c, "delay_wgrad=true", "transformer_engine", (2, 7)) if c.settings["delay_wgrad"] else None


@RULES.add("MC120", "core/transformer/transformer_config.py:2753")
def _delayed_wgrad_in_graphs_needs_transformer_engine(c: Candidate) -> Verdict:
    if not (c.settings["delay_wgrad"] and c.settings["cuda_graph_impl"] == "transformer_engine"):
        return None
    return needs_version(c, "delay_wgrad=true with transformer_engine graphs", "transformer_engine", (2, 10))


@RULES.add("MC121", "training/arguments.py:1825-1847")
def _delayed_wgrad_beside_gradient_reduction_needs_transformer_engine(c: Candidate) -> Verdict:
    if not (c.settings["delay_wgrad"] and c.settings["overlap_grad_reduce"]):
        return None
    captured = set(c.names("cuda_graph_modules")) if c.per_layer_graphs else set()
    shared = c.shape.shared_expert_size is not None and not c.settings["shared_expert_overlap"]
    if "attn" in captured and c.shape.add_linear_bias:
        return 1.0, "delay_wgrad=true with overlap_grad_reduce=true excludes capturing attn that has biases"
    inside = "attn" in captured or ("moe_router" in captured and shared)
    return needs_version(
        c, "delay_wgrad=true with overlap_grad_reduce=true", "transformer_engine", (2, 12) if inside else (2, 8)
    )
