"""Router, permutation and expert kernels."""

from autotune.constraint.rule import Candidate, Verdict
from autotune.constraint.rules.registry import Rules, at_most, join, multiple, needs_version
from autotune_policies.backends import BACKENDS
from autotune_policies.settings import SETTINGS

RULES = Rules()

CHUNKS = "NUM_OF_TOKENS_PER_CHUNK_{}_API"
_GROUPED_MLP = "NVTE_CUTEDSL_FUSED_GROUPED_MLP"
_OF_EXPERTS = ("expert_tensor_parallel", "grouped_gemm", "op_fuser", "permute_fusion", "router_fusion")
_WARP = 32
_MEETING_STATIC_SHAPES = join([name for name, row in BACKENDS.items() if row.limits.static_shapes])


@RULES.add("AT021", "our own: a setting without effect would be measured twice")
def _settings_have_an_effect(c: Candidate) -> Verdict:
    for name, row in SETTINGS.items():
        if row.only_with and c.settings[name] != row.default and not row.effective(c.settings):
            needed = " and ".join(f"{other}={'|'.join(map(str, legal))}" for other, legal in row.only_with.items())
            return 1.0, f"{name}={c.settings[name]} has an effect only with {needed}"
    return None


@RULES.add("MC099", "core/transformer/transformer_config.py:2651")
def _permute_fusion_needs_transformer_engine(c: Candidate) -> Verdict:
    if not c.settings["permute_fusion"]:
        return None
    return needs_version(c, "permute_fusion=true", "transformer_engine", (2, 1))


@RULES.add("MC098", "core/transformer/moe/moe_utils.py:129,774,923")
def _router_fusion_needs_transformer_engine(c: Candidate) -> Verdict:
    if not c.settings["router_fusion"]:
        return None
    minimum = (2, 13) if c.shape.router_score_function == "sqrtsoftplus" else (2, 7)
    return needs_version(c, "router_fusion=true", "transformer_engine", minimum)


@RULES.add("AT004", "core/models/gpt/gpt_layer_specs.py: grouped experts are Transformer Engine's")
def _grouped_gemm_needs_transformer_engine(c: Candidate) -> Verdict:
    return needs_version(c, "grouped_gemm=true", "transformer_engine", (1, 9)) if c.settings["grouped_gemm"] else None


@RULES.add("MC107", "core/transformer/moe/experts.py:332-400: otherwise silently not fused")
def _op_fuser_is_effective(c: Candidate) -> Verdict:
    if not c.settings["op_fuser"]:
        return None
    if not c.settings["grouped_gemm"]:
        return 1.0, "op_fuser=true needs grouped_gemm=true"
    if c.number("expert_tensor_parallel") > 1:
        return 1.0, f"op_fuser=true needs expert_tensor_parallel=1, but it is {c.number('expert_tensor_parallel')}"
    split = {"expert_fc1", "moe_act"} & set(c.names("offload_modules"))
    if split:
        return float(len(split)), f"op_fuser=true keeps no {join(split)} to offload; use fused_group_mlp"
    return needs_version(c, "op_fuser=true", "transformer_engine", (2, 14))


@RULES.add("MC057", "core/transformer/moe/experts.py:396-400: silently not fused", severity="warn")
def _op_fuser_is_switched_on(c: Candidate) -> Verdict:
    if not c.settings["op_fuser"] or c.variables is None or not c.shape.gated_linear_unit:
        return None
    if c.variables.get(_GROUPED_MLP, "0") in ("", "0"):
        return 1.0, f"op_fuser=true with a gated activation is fused only where {_GROUPED_MLP}=1"
    return None


@RULES.add("MC083", "core/transformer/transformer_config.py:1692-1705")
def _rank_capacity_needs_the_fuser(c: Candidate) -> Verdict:
    factor = c.settings["rank_capacity_factor"]
    if factor is None or c.backend.name != "hybridep" or c.settings["op_fuser"]:
        return None
    return 1.0, f"rank_capacity_factor={factor} with dispatcher=hybridep needs op_fuser=true"


@RULES.add("AT033", "our own: tokens beyond a rank's capacity are dropped, which a dropless contract forbids")
def _rank_capacity_is_agreed(c: Candidate) -> Verdict:
    factor = c.settings["rank_capacity_factor"]
    if factor is None or not c.is_dropless:
        return None
    return 1.0, f"rank_capacity_factor={factor} drops tokens, but the contract's token_policy is dropless; legal: null"


@RULES.add("AT035", "our own: a setting of experts has no effect on a dense model and would be measured twice")
def _expert_settings_need_experts(c: Candidate) -> Verdict:
    if c.is_moe:
        return None
    named = [name for name in _OF_EXPERTS if c.settings[name] != SETTINGS[name].default]
    return (float(len(named)), f"{join(named)}: the model has no experts") if named else None


@RULES.add("AT036", "our own: a module named twice is the same run as named once")
def _modules_are_named_once(c: Candidate) -> Verdict:
    for name, row in SETTINGS.items():
        if row.kind == "list":
            modules = c.names(name)
            twice = {module for module in modules if modules.count(module) > 1}
            if twice:
                return float(len(twice)), f"{name} names {join(twice)} more than once"
    return None


@RULES.add("MC073", "core/transformer/moe/token_dispatcher.py:1563")
def _backend_has_its_rank_capacity(c: Candidate) -> Verdict:
    if c.backend.limits.needs_rank_capacity and c.settings["rank_capacity_factor"] is None:
        return 1.0, f"dispatcher={c.backend.name} needs rank_capacity_factor"
    return None


@RULES.add("MC084", "core/transformer/transformer_config.py:1904-1921")
def _paged_stash_has_a_capacity(c: Candidate) -> Verdict:
    if not c.settings["paged_stash"]:
        return None
    if c.settings["rank_capacity_factor"] is None:
        return 1.0, f"paged_stash=true needs rank_capacity_factor, which dispatchers {_MEETING_STATIC_SHAPES} take"
    stashed = {"expert_fc1", "moe_act", "fused_group_mlp"} & set(c.names("offload_modules"))
    if stashed:
        return float(len(stashed)), f"paged_stash=true excludes offloading {join(stashed)}"
    return None


@RULES.add(
    "AT022",
    "DeepEP hybrid-ep csrc/hybrid_ep/config.cuh: one chunk size while permutation is fused; a published recipe "
    "(Megatron-Bridge, Qwen3-30B on 64 H100s) has two",
    certainty="suspect",
)
def _chunks_are_equal(c: Candidate) -> Verdict:
    if not (c.backend.limits.equal_chunks and c.settings["permute_fusion_into_hybridep"]) or c.variables is None:
        return None
    sizes = {name: c.variables.get(CHUNKS.format(name), "64") for name in ("DISPATCH", "COMBINE", "PREPROCESSING")}
    if len(set(sizes.values())) == 1:
        return None
    given = ", ".join(f"{name.lower()} {size}" for name, size in sizes.items())
    return float(len(set(sizes.values())) - 1), (
        f"permute_fusion_into_hybridep=true needs equal tokens per chunk, but they are {given}; set tokens_per_chunk"
    )


@RULES.add("AT023", "DeepEP hybrid-ep csrc/hybrid_ep/config.cuh: routing words of a chunk are packed by four")
def _chunks_pack(c: Candidate) -> Verdict:
    chunk = c.settings["tokens_per_chunk"]
    if not isinstance(chunk, int) or not c.backend.limits.equal_chunks:
        return None
    inside = min(c.expert_group, c.nvlink_domain_gpus)
    rest = chunk * inside % 4
    if rest == 0:
        return None
    return float(rest), f"tokens_per_chunk={chunk} x {inside} ranks of one NVLink domain must be a multiple of 4"


@RULES.add(
    "AT037",
    "DeepEP hybrid-ep: a chunk is a part of a rank's tokens, in steps of a warp; published runs have 64 and 128",
    certainty="suspect",
)
def _chunks_are_whole_warps(c: Candidate) -> Verdict:
    chunk = c.settings["tokens_per_chunk"]
    if not isinstance(chunk, int) or not c.backend.limits.equal_chunks:
        return None
    return multiple("tokens_per_chunk", chunk, _WARP) or at_most(
        "tokens_per_chunk", chunk, max(_WARP, c.tokens_per_rank)
    )
