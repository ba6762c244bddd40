"""The legality rules, one function each.

MC numbers follow the validation code of Megatron-Core 0.16 to 0.19 (file and line of 0.19.2 in ``source``), AT numbers
are rules that upstream lacks although the run would die or the setting would have no effect. Upstream accepts more
than can run, so everything called legal here must be accepted by the installed TransformerConfig, not the reverse.
"""

from collections.abc import Callable

from autotune.constraint.rule import Candidate, Rule
from autotune_policies.errors import PolicyError
from autotune_policies.layout import layout_stages
from autotune_policies.settings import FLEX_DISPATCHERS

Verdict = tuple[float, str] | None
RULES: list[Rule] = []


def _rule(identifier: str, source: str) -> Callable[[Callable[[Candidate], Verdict]], Callable[[Candidate], Verdict]]:
    def register(check: Callable[[Candidate], Verdict]) -> Callable[[Candidate], Verdict]:
        RULES.append(Rule(identifier, source, check))
        return check

    return register


# -- topology ------------------------------------------------------------------------------------------------------


@_rule("MC001", "core/parallel_state.py:816")
def _model_parallel_divides_the_gang(c: Candidate) -> Verdict:
    model = c.number("tensor_parallel") * c.number("pipeline_parallel") * c.number("context_parallel")
    return _divides("tensor_parallel x pipeline_parallel x context_parallel", model, "the ranks", c.gang.world_size)


@_rule("MC002", "core/parallel_state.py:872")
def _expert_parallel_divides_the_gang(c: Candidate) -> Verdict:
    expert = c.number("expert_tensor_parallel") * c.number("expert_parallel") * c.number("pipeline_parallel")
    return _divides(
        "expert_tensor_parallel x expert_parallel x pipeline_parallel", expert, "the ranks", c.gang.world_size
    )


@_rule("MC008", "core/transformer/transformer_config.py:1468")
def _expert_parallel_needs_experts(c: Candidate) -> Verdict:
    if c.number("expert_parallel") > 1 and not c.is_moe:
        return 1.0, f"expert_parallel={c.number('expert_parallel')}, but the model has no experts"
    return None


@_rule("MC009", "core/transformer/moe/moe_layer.py:185")
def _experts_divide_evenly(c: Candidate) -> Verdict:
    if c.shape.num_experts is None:
        return None
    return _divides("expert_parallel", c.number("expert_parallel"), "num_experts", c.shape.num_experts)


@_rule("MC011", "core/transformer/transformer_config.py:1324")
def _heads_divide_evenly(c: Candidate) -> Verdict:
    return _divides("tensor_parallel", c.number("tensor_parallel"), "num_attention_heads", c.shape.num_attention_heads)


@_rule("MC012", "core/transformer/transformer_config.py:1338")
def _query_groups_divide_evenly(c: Candidate) -> Verdict:
    groups, tensor = c.shape.num_query_groups, c.number("tensor_parallel")
    if groups is None or groups % tensor == 0 or tensor % groups == 0:
        return None
    return 1.0, f"tensor_parallel={tensor} neither divides nor is a multiple of num_query_groups={groups}"


@_rule("MC014", "core/model_parallel_config.py __post_init__")
def _sequence_parallel_needs_tensor_parallel(c: Candidate) -> Verdict:
    if c.settings["sequence_parallel"] and c.number("tensor_parallel") == 1:
        return 1.0, "sequence_parallel=true needs tensor_parallel > 1"
    return None


@_rule("MC015", "core/transformer/moe/moe_layer.py:629")
def _moe_with_tensor_parallel_needs_sequence_parallel(c: Candidate) -> Verdict:
    if c.is_moe and c.number("tensor_parallel") > 1 and not c.settings["sequence_parallel"]:
        return 1.0, f"MoE training with tensor_parallel={c.number('tensor_parallel')} needs sequence_parallel=true"
    return None


@_rule("AT003", "core/tensor_parallel/mappings.py: equal chunks along the sequence")
def _sequence_divides_evenly(c: Candidate) -> Verdict:
    if not c.settings["sequence_parallel"]:
        return None
    return _divides(
        "tensor_parallel x context_parallel", c.number("tensor_parallel") * c.number("context_parallel"),
        "seq_length", c.contract.seq_length,
    )  # fmt: skip


@_rule("MC016", "training/arguments.py:1295")
def _context_parallel_halves_divide_evenly(c: Candidate) -> Verdict:
    context = c.number("context_parallel")
    return None if context == 1 else _divides("2 x context_parallel", 2 * context, "seq_length", c.contract.seq_length)


@_rule("MC091", "our own: TransformerConfig accepts it")
def _enough_experts(c: Candidate) -> Verdict:
    if c.shape.num_experts is not None and c.shape.router_topk > c.shape.num_experts:
        return 1.0, f"router_topk={c.shape.router_topk} must not exceed num_experts={c.shape.num_experts}"
    return None


# -- batch and pipeline --------------------------------------------------------------------------------------------


@_rule("MC023", "core/num_microbatches_calculator.py:381")
def _batch_divides_evenly(c: Candidate) -> Verdict:
    if c.data_parallel != int(c.data_parallel):
        return None  # MC001 says it
    share = c.number("micro_batch_size") * int(c.data_parallel)
    return _divides("micro_batch_size x data parallel", share, "global_batch_size", c.contract.global_batch_size)


@_rule("MC029", "core/parallel_state.py:829")
def _virtual_pipeline_needs_pipeline(c: Candidate) -> Verdict:
    if c.number("virtual_pipeline") > 1 and c.number("pipeline_parallel") == 1:
        return 1.0, f"virtual_pipeline={c.number('virtual_pipeline')} needs pipeline_parallel > 1"
    return None


@_rule("MC027", "core/pipeline_parallel/schedules.py:1131-1154")
def _interleaving_needs_whole_rounds(c: Candidate) -> Verdict:
    pipeline = c.number("pipeline_parallel")
    if c.number("virtual_pipeline") == 1 or c.num_microbatches % 1 or c.num_microbatches % pipeline == 0:
        return None
    return 1.0, (
        f"interleaved schedule: micro-batches per step ({c.num_microbatches:.0f}) must be a multiple of "
        f"pipeline_parallel={pipeline}"
    )


@_rule("MC035", "core/transformer/transformer_block.py:150-169")
def _even_split_is_even(c: Candidate) -> Verdict:
    if c.settings["pipeline_layout"] is not None:
        return None
    stages = c.number("pipeline_parallel") * c.number("virtual_pipeline")
    if stages > 1 and c.shape.mtp_num_layers:
        return 1.0, "a model with multi-token prediction needs a pipeline_layout above one stage"
    return _divides("pipeline_parallel x virtual_pipeline", stages, "num_layers", c.shape.num_layers)


@_rule("MC045", "core/transformer/pipeline_parallel_layer_layout.py; issue #1852 (empty stages)")
def _layout_fits_the_model(c: Candidate) -> Verdict:
    text = c.settings["pipeline_layout"]
    if not isinstance(text, str):
        return None
    try:
        stages = layout_stages(text)
    except PolicyError as error:
        return 1.0, error.message
    wanted = c.number("pipeline_parallel") * c.number("virtual_pipeline")
    if len(stages) != wanted:
        return float(abs(len(stages) - wanted)), (
            f"pipeline_layout={text!r} has {len(stages)} stages, but pipeline_parallel x virtual_pipeline = {wanted}"
        )
    flat = "".join(stages)
    pattern = "E" + "t" * c.shape.num_layers + "m" * c.shape.mtp_num_layers + "L"
    if flat != pattern:
        return 1.0 + abs(flat.count("t") - c.shape.num_layers), (
            f"pipeline_layout={text!r} must hold, in order, E, {c.shape.num_layers} x t, "
            f"{c.shape.mtp_num_layers} x m and L"
        )
    if "E" not in stages[0] or "L" not in stages[-1] or not all(stages):
        return 1.0, f"pipeline_layout={text!r}: E must be in the first stage, L in the last, and no stage empty"
    if any("m" in stage for stage in stages[:-1]):
        return 1.0, f"pipeline_layout={text!r}: m must be in the last stage"
    return None


# -- dispatcher ----------------------------------------------------------------------------------------------------


@_rule("AT001", "our own: the SM count is always explicit, and has no meaning elsewhere")
def _sm_count_belongs_to_flex(c: Candidate) -> Verdict:
    flex, given = c.settings["dispatcher"] in FLEX_DISPATCHERS, c.settings["num_sms"] is not None
    if flex and not given:
        return 1.0, f"dispatcher={c.settings['dispatcher']} needs num_sms"
    if given and not flex:
        return 1.0, f"num_sms={c.settings['num_sms']} has no meaning for dispatcher={c.settings['dispatcher']}"
    return None


@_rule("AT002", "core/transformer/moe/fused_a2a.py: the kernels are CUDA kernels")
def _flex_needs_a_gpu(c: Candidate) -> Verdict:
    if c.settings["dispatcher"] in FLEX_DISPATCHERS and c.gang.device != "cuda":
        return 1.0, f"dispatcher={c.settings['dispatcher']} runs on CUDA devices only"
    return None


@_rule("MC065", "core/transformer/moe/token_dispatcher.py:1769")
def _deepep_needs_a_group(c: Candidate) -> Verdict:
    group = c.number("expert_parallel") * c.number("expert_tensor_parallel")
    if c.settings["dispatcher"] in ("deepep", "ncclep") and group == 1:
        return 1.0, f"dispatcher={c.settings['dispatcher']} needs expert_parallel x expert_tensor_parallel > 1"
    return None


@_rule("MC067", "DeepEP deep_ep/buffer.py set_num_sms")
def _deepep_sms_are_even(c: Candidate) -> Verdict:
    if c.settings["dispatcher"] == "deepep" and isinstance(c.settings["num_sms"], int) and c.settings["num_sms"] % 2:
        return 1.0, f"num_sms={c.settings['num_sms']} must be even for dispatcher=deepep (one channel is two SMs)"
    return None


_DEEPEP_GROUPS = (2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 144, 160)


@_rule("MC068", "DeepEP V1 deep_ep/buffer.py get_dispatch_config")
def _deepep_group_size_is_tabled(c: Candidate) -> Verdict:
    group = c.number("expert_parallel") * c.number("expert_tensor_parallel")
    if c.settings["dispatcher"] != "deepep" or group == 1 or group in _DEEPEP_GROUPS:
        return None
    return 1.0, f"dispatcher=deepep knows groups of {', '.join(map(str, _DEEPEP_GROUPS))} ranks, but this is {group}"


@_rule("MC069", "DeepEP hybrid-ep csrc config.cuh")
def _hybridep_limits(c: Candidate) -> Verdict:
    if c.settings["dispatcher"] != "hybridep" or c.shape.num_experts is None:
        return None
    if c.shape.hidden_size % 16:
        return float(
            c.shape.hidden_size % 16
        ), f"dispatcher=hybridep needs hidden_size % 16 == 0, but it is {c.shape.hidden_size}"
    expert = c.number("expert_parallel")
    inside = min(expert, c.nvlink_domain_gpus)
    if expert % inside:
        return 1.0, f"dispatcher=hybridep: expert_parallel={expert} must be whole NVLink domains of {inside} ranks"
    if (c.shape.num_experts // expert) * inside % 4:
        return (
            1.0,
            f"dispatcher=hybridep: experts of one NVLink domain must be a multiple of 4, expert_parallel={expert}",
        )
    return None


@_rule("AT006", "core/tensor_parallel/layers.py:886 of 0.16.1; 0.19.2 has it right, the releases between were not read")
def _expert_gradients_are_summed(c: Candidate) -> Verdict:
    tensor = c.number("tensor_parallel")
    old = c.stack is not None and "megatron_core" in c.stack and _version(c.stack["megatron_core"]) < (0, 19)
    if old and c.is_moe and c.number("expert_parallel") == 1 and tensor not in (1, c.number("expert_tensor_parallel")):
        return 1.0, (
            f"tensor_parallel={tensor} with expert_parallel=1: megatron_core below 0.19 does not sum the experts' "
            "gradients over tensor-parallel ranks; use expert_parallel > 1"
        )
    return None


@_rule("MC099", "core/transformer/transformer_config.py:2651")
def _permute_fusion_needs_transformer_engine(c: Candidate) -> Verdict:
    return _needs_transformer_engine(c, "permute_fusion", (2, 1))


@_rule("MC098", "core/transformer/moe/moe_utils.py:129")
def _router_fusion_needs_transformer_engine(c: Candidate) -> Verdict:
    return _needs_transformer_engine(c, "router_fusion", (2, 7))


@_rule("AT004", "core/models/gpt/gpt_layer_specs.py: grouped experts are Transformer Engine's")
def _grouped_gemm_needs_transformer_engine(c: Candidate) -> Verdict:
    return _needs_transformer_engine(c, "grouped_gemm", (1, 9))


@_rule("MC086", "core/transformer/transformer_config.py:1644")
def _shared_expert_overlap_needs_a_dispatcher(c: Candidate) -> Verdict:
    if not c.settings["shared_expert_overlap"]:
        return None
    if c.shape.shared_expert_size is None:
        return 1.0, "shared_expert_overlap=true has no effect without a shared expert"
    if c.settings["dispatcher"] == "allgather":
        return 1.0, "shared_expert_overlap=true needs dispatcher alltoall, deepep, hybridep or ncclep"
    return None


# -- expert-parallel overlap ---------------------------------------------------------------------------------------


@_rule("MC108", "core/transformer/transformer_config.py:2671-2712")
def _overlap_requirements(c: Candidate) -> Verdict:
    if not c.settings["ep_overlap"]:
        return None
    if c.stack is not None and _version(c.stack.get("torch", "0")) < (2, 6):
        return 1.0, f"ep_overlap=true needs torch >= 2.6, but it is {c.stack.get('torch', 'not installed')}"
    if c.number("expert_parallel") == 1:
        return 1.0, "ep_overlap=true needs expert_parallel > 1"
    if c.settings["dispatcher"] == "allgather":
        return 1.0, "ep_overlap=true needs dispatcher alltoall, deepep, hybridep or ncclep"
    if c.number("pipeline_parallel") > 1 and c.number("virtual_pipeline") == 1:
        return 1.0, f"ep_overlap=true with pipeline_parallel={c.number('pipeline_parallel')} needs virtual_pipeline > 1"
    if c.settings["recompute_granularity"] == "full" or "moe" in _list(c, "recompute_modules"):
        return 1.0, "ep_overlap=true allows neither full recompute nor moe among recompute_modules"
    if c.contract.precision == "fp32":
        return 1.0, "ep_overlap=true needs bf16 or a smaller precision"
    if c.settings["shared_expert_overlap"]:
        return 1.0, "ep_overlap=true and shared_expert_overlap=true exclude each other"
    if c.shape.mtp_num_layers > 1:
        return 1.0, f"ep_overlap=true allows one multi-token-prediction layer, but there are {c.shape.mtp_num_layers}"
    return None


@_rule("MC119", "core/transformer/transformer_config.py:2749; training/arguments.py:1822")
def _delayed_wgrad_needs_overlap(c: Candidate) -> Verdict:
    if c.settings["delay_wgrad"] and not c.settings["ep_overlap"]:
        return 1.0, "delay_wgrad=true needs ep_overlap=true"
    return _needs_transformer_engine(c, "delay_wgrad", (2, 7))


# -- CUDA graphs ---------------------------------------------------------------------------------------------------


@_rule("AT005", "CUDA graphs are CUDA's")
def _graphs_need_a_gpu(c: Candidate) -> Verdict:
    if c.settings["cuda_graph_impl"] != "none" and c.gang.device != "cuda":
        return 1.0, f"cuda_graph_impl={c.settings['cuda_graph_impl']} needs CUDA devices"
    return None


@_rule("MC131", "core/transformer/transformer_config.py:2445-2512; issue #1598")
def _graph_modules_fit(c: Candidate) -> Verdict:
    implementation, modules = c.settings["cuda_graph_impl"], _list(c, "cuda_graph_modules")
    if implementation in ("none", "full_iteration"):
        return (1.0, f"cuda_graph_impl={implementation} takes no cuda_graph_modules") if modules else None
    if "moe_preprocess" in modules and "moe_router" not in modules:
        return 1.0, "cuda_graph_modules: moe_preprocess needs moe_router"
    if "moe" in modules and c.contract.routing.token_policy == "dropless":
        return 1.0, "cuda_graph_modules: moe cannot be captured with dropless routing (sizes change every step)"
    if not modules and c.is_moe and c.contract.routing.token_policy == "dropless":
        return (
            1.0,
            f"cuda_graph_impl={implementation} on whole layers cannot capture dropless MoE; name cuda_graph_modules",
        )
    if "mlp" in modules and c.is_moe and c.shape.num_dense_layers == 0:
        return 1.0, "cuda_graph_modules: mlp, but every layer is an MoE layer"
    if {"moe_router", "moe"} & set(modules) and not c.is_moe:
        return 1.0, "cuda_graph_modules names MoE modules, but the model has no experts"
    return None


@_rule("MC139", "our own: TransformerConfig accepts it, the capture dies")
def _full_iteration_needs_static_shapes(c: Candidate) -> Verdict:
    if c.settings["cuda_graph_impl"] == "full_iteration" and c.is_moe and c.contract.routing.token_policy == "dropless":
        return 1.0, "cuda_graph_impl=full_iteration needs fixed sizes, but routing is dropless"
    return None


# -- recompute, offload, data parallel -----------------------------------------------------------------------------


@_rule("MC152", "core/transformer/transformer_config.py:1725-1749")
def _recompute_is_complete(c: Candidate) -> Verdict:
    granularity = c.settings["recompute_granularity"]
    grouped = c.settings["recompute_method"] is not None or c.settings["recompute_num_layers"] is not None
    if granularity == "full":
        if c.settings["recompute_method"] is None or c.settings["recompute_num_layers"] is None:
            return 1.0, "recompute_granularity=full needs recompute_method and recompute_num_layers"
        if c.settings["cuda_graph_impl"] not in ("none", "full_iteration"):
            return 1.0, "recompute_granularity=full allows no per-layer CUDA graphs"
    elif grouped:
        return 1.0, "recompute_method and recompute_num_layers need recompute_granularity=full"
    if granularity != "selective" and _list(c, "recompute_modules"):
        return 1.0, "recompute_modules need recompute_granularity=selective"
    if granularity == "selective" and not _list(c, "recompute_modules"):
        return 1.0, "recompute_granularity=selective needs recompute_modules"
    return None


@_rule("MC156", "core/transformer/transformer_config.py:1784-1812")
def _recompute_modules_exist(c: Candidate) -> Verdict:
    modules = _list(c, "recompute_modules")
    if "moe_act" in modules and not c.settings["grouped_gemm"]:
        return 1.0, "recompute_modules: moe_act needs grouped_gemm=true"
    if "mla_up_proj" in modules and c.shape.attention != "mla":
        return 1.0, f"recompute_modules: mla_up_proj, but attention is {c.shape.attention}"
    if "shared_experts" in modules and c.settings["shared_expert_overlap"]:
        return 1.0, "recompute_modules: shared_experts excludes shared_expert_overlap=true"
    if "gdn_norm_out" in modules:
        return 1.0, f"recompute_modules: gdn_norm_out, but attention is {c.shape.attention}"
    if "moe" in modules and "moe_router" in _list(c, "cuda_graph_modules"):
        return 1.0, "recompute_modules: moe excludes capturing moe_router"
    return None


@_rule("MC163", "core/transformer/transformer_config.py:1848-1874")
def _offload_is_possible(c: Candidate) -> Verdict:
    modules = _list(c, "offload_modules")
    if not modules:
        return None
    if "attn_proj" in modules and "core_attn" not in modules:
        return 1.0, "offload_modules: attn_proj needs core_attn"
    if "moe" in _list(c, "recompute_modules") and {"moe_act", "expert_fc1"} & set(modules):
        return 1.0, "offload_modules: moe_act and expert_fc1 exclude recomputing moe"
    return _transformer_engine(c, f"offload_modules={','.join(modules)}", (2, 3))


@_rule("MC178", "training/arguments.py:991")
def _param_gather_overlap_needs_grad_overlap(c: Candidate) -> Verdict:
    if not c.settings["overlap_param_gather"]:
        return None
    if c.settings["overlap_grad_reduce"] and c.settings["distributed_optimizer"]:
        return None
    return 1.0, "overlap_param_gather=true needs overlap_grad_reduce=true and distributed_optimizer=true"


# -- helpers -------------------------------------------------------------------------------------------------------


def _divides(name: str, divisor: int, of: str, total: int) -> Verdict:
    if total % divisor == 0:
        return None
    legal = [number for number in range(1, total + 1) if total % number == 0]
    near = sorted(legal, key=lambda number: abs(number - divisor))[:3]
    return 1.0 + total % divisor / divisor, (
        f"{name} = {divisor} does not divide {of} = {total} (closest that do: {', '.join(map(str, sorted(near)))})"
    )


def _list(c: Candidate, name: str) -> list[str]:
    value = c.settings[name]
    assert isinstance(value, list)
    return value


def _needs_transformer_engine(c: Candidate, name: str, minimum: tuple[int, int]) -> Verdict:
    return _transformer_engine(c, f"{name}=true", minimum) if c.settings[name] else None


def _transformer_engine(c: Candidate, what: str, minimum: tuple[int, int]) -> Verdict:
    if c.stack is None:
        return None
    found = c.stack.get("transformer_engine")
    if found is not None and _version(found) >= minimum:
        return None
    return 1.0, f"{what} needs transformer_engine >= {minimum[0]}.{minimum[1]}, but it is {found or 'not installed'}"


def _version(text: str) -> tuple[int, ...]:
    numbers = []
    for part in text.split("+")[0].split(".")[:3]:
        digits = "".join(character for character in part if character.isdigit())
        numbers.append(int(digits) if digits else 0)
    return tuple(numbers)
