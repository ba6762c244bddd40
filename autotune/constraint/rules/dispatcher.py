"""How tokens reach their experts: what holds for every backend."""

from autotune.constraint.rule import Candidate, Verdict
from autotune.constraint.rules.registry import Rules, at_most, join
from autotune.constraint.versions import Versions
from autotune_policies.backends import DISPATCHERS, FLEX_DISPATCHERS
from autotune_policies.errors import PolicyError
from autotune_policies.megatron_core import RELEASES, release_of, render

RULES = Rules()

ALLGATHER = "allgather"
WITHOUT_ALLGATHER = join([name for name in DISPATCHERS if name != ALLGATHER])


@RULES.add("AT001", "our own: the SM count is always explicit, and has no meaning elsewhere")
def _sm_count_belongs_to_flex(c: Candidate) -> Verdict:
    flex, given = c.backend.flex, c.num_sms is not None
    if flex and not given:
        return 1.0, f"dispatcher={c.backend.name} needs num_sms"
    if given and not flex:
        return 1.0, (
            f"num_sms={c.num_sms} has no meaning for dispatcher={c.backend.name}, only for {join(FLEX_DISPATCHERS)}"
        )
    return None


@RULES.add("AT002", "core/transformer/moe/fused_a2a.py: the kernels are CUDA kernels")
def _flex_needs_a_gpu(c: Candidate) -> Verdict:
    if c.backend.flex and c.gang.device != "cuda":
        return 1.0, f"dispatcher={c.backend.name} runs on CUDA devices only"
    return None


@RULES.add("AT007", "autotune_policies.megatron_core: what a release cannot say")
def _the_release_can_express_it(c: Candidate) -> Verdict:
    version = None if c.stack is None else c.stack.get("megatron_core")
    if version is None:
        return None
    try:
        release_of(version)
    except PolicyError:
        return 1.0, f"megatron_core={version} is not supported; legal: {join(RELEASES)}"
    try:
        render(c.settings, version)
    except PolicyError as error:
        return 1.0, error.message + (f"; {error.hint}" if error.hint else "")
    return None


@RULES.add("AT008", "our own: a dense model dispatches nothing")
def _flex_needs_experts(c: Candidate) -> Verdict:
    if c.backend.flex and not c.is_moe:
        return 1.0, f"dispatcher={c.backend.name}, but the model has no experts"
    return None


@RULES.add("AT009", "our own: more SMs than a GPU has")
def _sms_are_there(c: Candidate) -> Verdict:
    if c.num_sms is None or c.sm_count is None:
        return None
    return at_most("num_sms", c.num_sms, c.sm_count - 1)


@RULES.add("AT038", "our own: what HybridEP's preprocessing kernel borrows must be there too")
def _preprocessing_sms_are_there(c: Candidate) -> Verdict:
    if c.sm_count is None or c.backend.name != "hybridep":
        return None
    return at_most("num_sms_preprocessing", c.number("num_sms_preprocessing"), c.sm_count)


@RULES.add(
    "AT039", "derived: blocks beyond the SMs wait for those before them, which nobody has measured", certainty="suspect"
)
def _permutation_blocks_run_at_once(c: Candidate) -> Verdict:
    if c.sm_count is None or not c.settings["permute_fusion_into_hybridep"]:
        return None
    for name in ("num_blocks_permute", "num_blocks_unpermute"):
        blocks = c.settings[name]
        if isinstance(blocks, int) and blocks > c.sm_count:
            return at_most(name, blocks, c.sm_count)
    return None


@RULES.add("AT010", "DeepEP and HybridEP kernels move 8- and 16-bit elements; ncclep follows the same path")
def _flex_tokens_are_small(c: Candidate) -> Verdict:
    if c.backend.flex and c.contract.precision == "fp32":
        return 1.0, f"dispatcher={c.backend.name} carries bf16 tokens, but precision is fp32"
    return None


@RULES.add("MC086", "core/transformer/transformer_config.py:1644")
def _shared_expert_overlap_needs_a_dispatcher(c: Candidate) -> Verdict:
    if not c.settings["shared_expert_overlap"]:
        return None
    if c.shape.shared_expert_size is None:
        return 1.0, "shared_expert_overlap=true has no effect without a shared expert"
    if c.backend.name == ALLGATHER:
        return 1.0, f"shared_expert_overlap=true needs dispatcher {WITHOUT_ALLGATHER}"
    return None


@RULES.add(
    "AT032",
    "core/transformer/transformer_config.py:1089 of 0.16.1; 0.19.2 allows flex, the releases between were not read",
    megatron_core=Versions(below=(0, 19)),
)
def _shared_expert_overlap_needs_alltoall(c: Candidate) -> Verdict:
    if c.settings["shared_expert_overlap"] and c.backend.flex:
        return 1.0, f"shared_expert_overlap=true with dispatcher={c.backend.name}; legal below 0.19: alltoall"
    return None


@RULES.add("MC087", "core/transformer/moe/moe_layer.py:470")
def _shared_expert_overlap_excludes_latent_experts(c: Candidate) -> Verdict:
    if c.settings["shared_expert_overlap"] and c.shape.moe_latent_size is not None:
        return 1.0, f"shared_expert_overlap=true, but the experts work in a latent width ({c.shape.moe_latent_size})"
    return None


@RULES.add("MC062", "core/transformer/transformer_config.py:1600-1607")
def _deepep_takes_no_padding(c: Candidate) -> Verdict:
    if c.backend.name == "deepep" and c.contract.routing.token_policy == "capacity":
        return 1.0, "dispatcher=deepep cannot pad experts to their capacity, but token_policy is capacity"
    return None
