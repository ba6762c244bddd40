"""The limits of the backends' libraries; the numbers are those of :mod:`autotune_policies.backends`."""

from autotune.constraint.rule import Candidate, Verdict
from autotune.constraint.rules.registry import Rules, at_most, join, multiple
from autotune.constraint.versions import Versions

RULES = Rules()

_V1 = Versions(below=(2,))


@RULES.add("MC065", "core/transformer/moe/token_dispatcher.py:1769,1787")
def _group_is_large_enough(c: Candidate) -> Verdict:
    group, least = c.expert_group, c.backend.limits.min_group
    if group >= least:
        return None
    return float(least - group), (
        f"dispatcher={c.backend.name} needs expert_parallel x expert_tensor_parallel >= {least}, but it is {group}"
    )


@RULES.add("MC067", "DeepEP deep_ep/buffer.py set_num_sms: one channel is two SMs", deep_ep=_V1)
def _sms_make_whole_channels(c: Candidate) -> Verdict:
    if c.num_sms is None:
        return None
    return multiple(f"num_sms of dispatcher={c.backend.name}", c.num_sms, c.backend.limits.sm_multiple)


@RULES.add("MC068", "DeepEP V1 deep_ep/buffer.py get_dispatch_config", deep_ep=_V1)
def _group_size_is_tabled(c: Candidate) -> Verdict:
    group, legal = c.expert_group, c.backend.limits.group_sizes
    if not legal or group in legal or group < c.backend.limits.min_group:
        return None
    return float(min(abs(group - size) for size in legal)), (
        f"dispatcher={c.backend.name} knows groups of {join(legal)} ranks, but "
        f"expert_parallel x expert_tensor_parallel = {group}"
    )


@RULES.add("MC069", "DeepEP hybrid-ep csrc/hybrid_ep/config.cuh, hybrid_ep_buffer.py")
def _group_is_whole_domains(c: Candidate) -> Verdict:
    if not c.backend.limits.whole_domains:
        return None
    group, domain = c.expert_group, c.nvlink_domain_gpus
    if group <= domain or group % domain == 0:
        return None
    return float(group % domain), (
        f"dispatcher={c.backend.name}: expert_parallel x expert_tensor_parallel = {group} must fit one NVLink domain "
        f"of {domain} GPUs or be whole ones"
    )


@RULES.add("AT011", "DeepEP hybrid-ep csrc/hybrid_ep/config.cuh: ranks of one NVLink domain")
def _domain_is_small_enough(c: Candidate) -> Verdict:
    bound = c.backend.limits.max_domain_ranks
    if bound is None:
        return None
    return at_most(
        f"dispatcher={c.backend.name}: ranks of one NVLink domain", min(c.expert_group, c.nvlink_domain_gpus), bound
    )


@RULES.add("AT012", "DeepEP hybrid-ep csrc/hybrid_ep/config.cuh: four experts of a domain are packed in one word")
def _domain_experts_pack(c: Candidate) -> Verdict:
    experts, of = c.shape.num_experts, c.backend.limits.domain_experts_multiple
    if experts is None or of == 1 or experts % c.number("expert_parallel"):
        return None
    inside = min(c.expert_group, c.nvlink_domain_gpus)
    local = experts // c.number("expert_parallel")
    what = f"dispatcher={c.backend.name}: experts of one NVLink domain ({local} x {inside} ranks)"
    return multiple(what, local * inside, of)


@RULES.add("AT013", "DeepEP V1 csrc (combine: hidden in 16-byte words % 32); hybrid-ep config.cuh (hidden % 16)")
def _hidden_size_fits_the_kernels(c: Candidate) -> Verdict:
    return multiple(
        f"dispatcher={c.backend.name}: hidden_size",
        c.shape.moe_latent_size or c.shape.hidden_size,
        c.backend.limits.hidden_multiple,
    )


@RULES.add("AT014", "DeepEP V1 csrc/kernels/configs.cuh, internode.cu", deep_ep=_V1)
def _topk_fits_the_kernels(c: Candidate) -> Verdict:
    topk, local = c.backend.limits.max_topk, c.backend.limits.max_local_experts
    if c.shape.num_experts is None:
        return None
    if topk is not None and c.shape.router_topk > topk:
        return at_most(f"dispatcher={c.backend.name}: router_topk", c.shape.router_topk, topk)
    if local is None:
        return None
    here = c.shape.num_experts / c.number("expert_parallel")
    return at_most(f"dispatcher={c.backend.name}: experts per rank", here, local)


@RULES.add("AT015", "NCCL EP: the token count of a rank is even")
def _tokens_fit_the_kernels(c: Candidate) -> Verdict:
    if c.tokens_per_rank % 1:
        return None  # AT003 and MC016 say it
    return multiple(
        f"dispatcher={c.backend.name}: tokens per rank and micro-batch",
        int(c.tokens_per_rank),
        c.backend.limits.token_multiple,
    )


@RULES.add("AT016", "NCCL EP README: reported up to eight nodes of eight GPUs", severity="warn")
def _group_was_tried_by_its_authors(c: Candidate) -> Verdict:
    bound = c.backend.limits.tested_group
    return None if bound is None else at_most(f"dispatcher={c.backend.name}: ranks of a group", c.expert_group, bound)


# -- suspect: derived from code that nobody ran, or guarded upstream for a while and then not -------------------------


@RULES.add(
    "MC070",
    "DeepEP hybrid-ep: three queue entries per token and one more must stay below 65536; "
    "Megatron-LM #4719 and #4846 added a guard and took it away",
    certainty="suspect",
)
def _queue_holds_the_tokens(c: Candidate) -> Verdict:
    bound = c.backend.limits.max_tokens_across_domains
    if bound is None or c.expert_group <= c.nvlink_domain_gpus:
        return None
    return at_most(
        f"dispatcher={c.backend.name} across NVLink domains: tokens per rank and micro-batch", c.tokens_per_rank, bound
    )


@RULES.add(
    "AT019",
    "derived from DeepEP V1 csrc/kernels/internode.cu:386 and Megatron-Core's call of Buffer with its default of 24 "
    "queue pairs; not run",
    certainty="suspect",
    deep_ep=_V1,
)
def _every_sm_has_a_queue_pair(c: Candidate) -> Verdict:
    pairs, sms = c.backend.limits.queue_pairs, c.num_sms
    if pairs is None or sms is None or c.expert_group <= c.gang.ranks_per_node or sms <= pairs or sms == 2 * pairs:
        return None
    return float(min(sms - pairs, abs(sms - 2 * pairs))), (
        f"num_sms={sms} of dispatcher={c.backend.name} between nodes: {pairs} queue pairs serve at most {pairs} SMs, "
        f"or exactly {2 * pairs}"
    )


@RULES.add(
    "AT020",
    "DeepEP V1: NUM_MAX_NVL_PEERS = 8 is compiled in; issues #50, #392, #477, #579; untried with newer builds",
    certainty="suspect",
    deep_ep=_V1,
)
def _nodes_have_the_peers(c: Candidate) -> Verdict:
    peers, here = c.backend.limits.node_peers, c.gang.ranks_per_node
    if peers is None or c.expert_group <= here or here == peers:
        return None
    return float(abs(peers - here)), (
        f"dispatcher={c.backend.name} between nodes is built for nodes of {peers} GPUs, but these have {here}"
    )
