"""Did training run with what the policy says?"""

import enum
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune_policies import Policy, PolicyError, load_policy
from autotune_policies.release_fields import BACKEND_FIELDS
from autotune_policies.resolved import ABSENT, Difference
from autotune_policies.settings import FLEX_DISPATCHERS
from autotune_policies.surroundings import HYBRID_EP_VARIABLES, environment_of
from autotune_policies.verify import inspect_container, inspect_settings, verify_container
from tests.support.resolved_containers import BRIDGE, document_of, fields_of
from tests.support.settings_strategy import settings_for

EXAMPLE = load_policy(Path(__file__).parent / "example.yaml")
HYBRID_EP = {
    "NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN": "8", "NVLINK_DOMAIN_SIZE": "72", "USE_MNNVL": "1",
    "NUM_OF_TOKENS_PER_CHUNK_COMBINE_API": "64",
}  # fmt: skip


def policy_of(env: dict[str, str] | None = None, **changes: Any) -> Policy:
    values = {**EXAMPLE.settings, **changes}
    variables = environment_of(values) if env is None else env
    return EXAMPLE._replace(settings=values, env=variables)


POLICIES = {
    "deepep": EXAMPLE,
    "hybridep": policy_of(
        HYBRID_EP, dispatcher="hybridep", num_sms=32, cuda_graph_impl="full_iteration", cuda_graph_modules=[],
        permute_fusion_into_hybridep=True, rank_capacity_factor=1.5, paged_stash=True, op_fuser=True,
        virtual_pipeline=4, pipeline_layout=None, ep_overlap=True, delay_wgrad=False, manual_gc_interval=100,
    ),
    "alltoall": policy_of(
        {}, dispatcher="alltoall", num_sms=None, ep_overlap=False, delay_wgrad=False, pipeline_parallel=1,
        virtual_pipeline=1, pipeline_layout=None, cuda_graph_impl="none", cuda_graph_modules=[],
        recompute_granularity="full", recompute_method="uniform", recompute_num_layers=1, recompute_modules=[],
        overlap_grad_reduce=False, overlap_param_gather=False,
    ),
    "offload": policy_of(
        {}, tensor_parallel=2, sequence_parallel=True, cuda_graph_impl="local", cuda_graph_modules=["attn"],
        offload_modules=["moe_act"], recompute_granularity=None, recompute_modules=[], shared_expert_overlap=False,
    ),
}  # fmt: skip

WHERE_NOTHING_IS_SAID: dict[str, Any] = {
    "pipeline_model_parallel_layout": "Et|t|t|tL", "virtual_pipeline_model_parallel_size": 2,
    "recompute_granularity": "full", "recompute_method": "block", "recompute_num_layers": 2,
    "moe_expert_rank_capacity_factor": 1.2, "cuda_graph_scope": ["moe"], "moe_deepep_num_sms": 8,
    "moe_hybridep_num_sms": 8, "moe_flex_dispatcher_num_sms": 8, "moe_hybridep_num_blocks_permute": 8,
    "moe_hybridep_num_blocks_unpermute": 8, "num_layers_in_first_pipeline_stage": 1,
    "num_layers_in_last_pipeline_stage": 1, "overlap_p2p_comm": False, "batch_p2p_comm": True,
    "inference_cuda_graph_scope": ["attn"],
}  # fmt: skip
UNEVEN = (
    "num_layers_in_first_pipeline_stage", "num_layers_in_last_pipeline_stage",
    "account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split",
)  # fmt: skip
WORDS = {
    "moe_token_dispatcher_type": ("alltoall", "flex", "allgather"),
    "moe_flex_dispatcher_backend": ("deepep", "hybridep"),
    "cuda_graph_impl": ("none", "local", "transformer_engine", "full_iteration"),
    "recompute_granularity": ("selective", "full"), "recompute_method": ("uniform", "block"),
}  # fmt: skip


def others(path: str, value: Any) -> list[Any]:
    """Values that a field might plausibly have instead."""
    name = path.rpartition(".")[2]
    if path.startswith("env_vars."):
        return ["0" if value != "0" else "1", str(value) + "1", None]
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int | float):
        return [value + 1, value * 2 or 3]
    if isinstance(value, list):
        more = "mlp" if "graph" in name else "qkv_linear" if "offload" in name else "mla_up_proj"
        return [[*value, more], *([value[:-1]] if value else [])]
    if value is None:
        return [WHERE_NOTHING_IS_SAID[name]]
    if name == "pipeline_model_parallel_layout":
        return ["Ett|t|tt|tL", "Et|t|t|t|t|t|t|tL"]
    return [word for word in WORDS[name] if word != value]


def idle(path: str, other: Any, policy: Policy, core: str) -> str:
    """Why this one other value makes the same run; empty = it does not."""
    values, name = policy.settings, path.rpartition(".")[2]
    dispatcher, impl = values["dispatcher"], values["cuda_graph_impl"]
    hybrid_only = name.startswith("moe_hybridep_") or name == "moe_permute_fusion_into_hybridep"
    reasons = {
        "inference": name == "inference_cuda_graph_scope",
        "of a backend that is not chosen": name in {field for _, field, _, _ in BACKEND_FIELDS}
        or (hybrid_only and dispatcher != "hybridep")
        or (name.startswith("moe_deepep_") and dispatcher != "deepep"),
        "the unified number of SMs wins": core == "0.19" and name in ("moe_deepep_num_sms", "moe_hybridep_num_sms"),
        "only flex has a backend": name.startswith("moe_flex_dispatcher_") and dispatcher not in FLEX_DISPATCHERS,
        "blocks of a fused permutation": "num_blocks" in name and not values["permute_fusion_into_hybridep"],
        "an older word for the same": (name, dispatcher) == ("moe_enable_deepep", "deepep")
        or (name, impl) in (("enable_cuda_graph", "local"), ("external_cuda_graph", "transformer_engine"))
        # Before 0.18 the whole iteration is a scope of the local implementation.
        or (name, impl, core < "0.18") == ("enable_cuda_graph", "full_iteration", True),
        "only selective recompute has modules": name == "recompute_modules"
        and values["recompute_granularity"] != "selective",
        "no graph of modules": name in ("cuda_graph_modules",) and impl in ("none", "full_iteration"),
        "no graph at all": name == "cuda_graph_scope" and impl in ("none", "full_iteration") and core >= "0.18",
        "a recipe's own random state": name in ("use_te_rng_tracker", "te_rng_tracker") and impl == "none",
        "nothing to offload": name in ("offload_modules", "fine_grained_activation_offloading")
        and not values["offload_modules"],
        "no interval": name == "manual_gc_interval" and values["manual_gc_interval"] is None,
        "one stage": values["pipeline_parallel"] == 1
        and (name.endswith("p2p_comm") or (values["pipeline_layout"] is None and name in UNEVEN)),
        "no groups of chunks": name == "microbatch_group_size_per_vp_stage" and values["virtual_pipeline"] == 1,
        "as derived": path in ("comm_overlap.overlap_p2p_comm", "comm_overlap.batch_p2p_comm")
        and other == ((name == "overlap_p2p_comm") == (values["virtual_pipeline"] > 1)),
        "Bridge's recipes never tell DDP": path == "ddp.delay_wgrad_compute" and other is False,
    }  # fmt: skip
    return next((reason for reason, holds in reasons.items() if holds), "")


def verify(policy: Policy, document: Any, core: str = "0.19") -> list[Difference]:
    return verify_container(policy, document, megatron_core=core, megatron_bridge=BRIDGE[core])


@pytest.mark.parametrize("core", ["0.18", "0.19"])
@pytest.mark.parametrize("name", POLICIES)
def test_every_planted_difference_is_caught(name: str, core: str) -> None:
    policy = POLICIES[name]
    if core < "0.19":
        policy = policy._replace(env={})
    fields = fields_of(policy, core)
    assert verify(policy, document_of(fields, model__num_layers=8), core) == []
    missed = []
    for path, value in fields.items():
        for other in others(path, value):
            found = verify(policy, document_of({**fields, path: other}, model__num_layers=8), core)
            if bool(found) == bool(idle(path, other, policy, core)):
                missed.append((path, value, other, found))
    assert missed == []


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_any_policy_that_ran_as_asked_has_no_difference_and_a_planted_one_has(data: st.DataObject) -> None:
    core = data.draw(st.sampled_from(["0.16", "0.17", "0.18", "0.19"]))
    values = {**EXAMPLE.settings, **data.draw(settings_for(core)), "gpus_per_numa_node": None}
    policy = EXAMPLE._replace(settings=values, env={})
    fields = fields_of(policy, core)
    document = document_of(fields, model__num_layers=4096)
    assert verify(policy, document, core) == []
    path = data.draw(st.sampled_from([path for path in fields if isinstance(fields[path], bool | int)]))
    other = others(path, fields[path])[0]
    planted = document_of({**fields, path: other}, model__num_layers=4096)
    assert bool(verify(policy, planted, core)) != bool(idle(path, other, policy, core)), (path, other)


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_whatever_was_saved_there_is_no_traceback(data: st.DataObject) -> None:
    anything = st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.floats(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
        max_leaves=5,
    )
    fields = fields_of(EXAMPLE)
    for path in data.draw(st.lists(st.sampled_from(sorted(fields)), min_size=1, max_size=5)):
        fields[path] = data.draw(anything)
    verify(EXAMPLE, document_of(fields))


@pytest.mark.parametrize("document", [{}, {"model": None}, {"model": {}}, [], 3, "text"])
def test_what_is_no_container_is_refused(document: object) -> None:
    with pytest.raises(PolicyError, match="no ConfigContainer"):
        verify(EXAMPLE, document)


class CudaGraphModule(enum.Enum):
    attn = 2
    moe_router = 5
    moe_preprocess = 6


def saved(module: CudaGraphModule) -> dict[str, Any]:
    """As Megatron's YAML writer saves an enum."""
    target = "megatron.core.transformer.enums.CudaGraphModule"
    return {"_target_": target, "_call_": True, "_args_": [module.value], "_name_": module.name}


SPELLINGS: list[dict[str, Any]] = [
    {"model.moe_flex_dispatcher_num_sms": None, "model.moe_deepep_num_sms": 24},
    {"model.moe_deepep_num_sms": 24},
    {"model.cuda_graph_modules": list(CudaGraphModule)},
    {"model.cuda_graph_modules": [saved(module) for module in CudaGraphModule]},
    {"model.cuda_graph_modules": ["moe_preprocess", "attn", "moe_router"]},
    {"model.recompute_modules": ("layernorm", "moe_act")},
    {"model.pipeline_model_parallel_layout": [["embedding", "decoder"], *[["decoder"] * 2] * 2, ["decoder", "loss"]]},
    {"model.pipeline_model_parallel_layout": "Et|t*2|tt|tL"},
    {"model.pipeline_model_parallel_layout": SimpleNamespace(input_data="Et|tt|tt|tL")},
    {"model.expert_tensor_parallel_size": None},
    {"model.virtual_pipeline_model_parallel_size": None},
    {"model.microbatch_group_size_per_vp_stage": None},
    {"env_vars.CUDA_DEVICE_MAX_CONNECTIONS": 32, "env_vars.NCCL_GRAPH_REGISTER": 0},
    {"comm_overlap.overlap_grad_reduce": None, "comm_overlap.overlap_param_gather": None},
    {"model.moe_enable_deepep": True},
]  # fmt: skip


@pytest.mark.parametrize("spelling", SPELLINGS, ids=str)
def test_spellings_that_mean_the_same_are_no_differences(spelling: dict[str, Any]) -> None:
    assert verify(EXAMPLE, document_of({**fields_of(EXAMPLE), **spelling})) == []


def test_a_whole_layer_in_the_word_of_older_releases() -> None:
    policy = policy_of(cuda_graph_modules=[], cuda_graph_impl="transformer_engine")
    fields = {**fields_of(policy, "0.17"), "model.cuda_graph_scope": ["full"]}
    assert verify(policy, document_of(fields), "0.17") == []


def test_an_object_is_read_like_its_file() -> None:
    document = document_of({**fields_of(EXAMPLE), "model.moe_permute_fusion": False})
    container = SimpleNamespace(**{
        name: value if name == "env_vars" else SimpleNamespace(**value) for name, value in document.items()
    })  # fmt: skip
    assert verify(EXAMPLE, container) == verify(EXAMPLE, document) == [Difference("permute_fusion", True, False)]


@pytest.mark.parametrize("as_object", [False, True])
def test_what_was_saved_without_its_content_is_unchecked(as_object: bool) -> None:
    empty = {"_target_": "megatron.core.transformer.PipelineParallelLayerLayout", "_call_": True}
    document: Any = document_of({**fields_of(EXAMPLE), "model.pipeline_model_parallel_layout": empty})
    if as_object:
        document = SimpleNamespace(**{
            name: value if name == "env_vars" else SimpleNamespace(**value) for name, value in document.items()
        })  # fmt: skip
    found = inspect_container(EXAMPLE, document, megatron_core="0.19", megatron_bridge="0.6")
    assert found.differences == ()
    assert "model.pipeline_model_parallel_layout" in found.unchecked
    assert "model.pipeline_model_parallel_layout" not in found.checked


def test_a_hybrid_ep_variable_that_stayed_behind_is_a_difference() -> None:
    for name in HYBRID_EP_VARIABLES:
        document = document_of({**fields_of(EXAMPLE), f"env_vars.{name}": "8"})
        (row,) = verify(EXAMPLE, document)
        assert (row.field, row.wanted, row.found) == (f"env_vars.{name}", ABSENT, "8")
        assert "stays behind" in row.why


def test_the_contract_is_compared_where_the_container_tells_it() -> None:
    fields = fields_of(EXAMPLE)
    right = document_of(fields, model__seq_length=4096, train__global_batch_size=256, mixed_precision="bf16_mixed")
    found = inspect_container(EXAMPLE, right, megatron_core="0.19", megatron_bridge="0.6")
    assert found.differences == ()
    assert {"seq_length", "global_batch_size", "precision"} <= set(found.checked)
    assert {"model", "cluster", "num_gpus", "stack.torch", "launch.segment", "GPU"} <= set(found.unchecked)
    wrong = document_of(
        fields, model__seq_length=8192, train__global_batch_size=128, mixed_precision={"bf16": False, "fp16": True}
    )
    assert [(row.field, row.wanted, row.found) for row in verify(EXAMPLE, wrong)] == [
        ("precision", "bf16", "fp16"), ("seq_length", "4096", 8192), ("global_batch_size", "256", 128),
    ]  # fmt: skip


def test_the_scaling_recipe_of_fp8_is_part_of_the_precision() -> None:
    policy = EXAMPLE._replace(applies_to={**EXAMPLE.applies_to, "precision": "fp8_mx"})
    right = document_of(fields_of(EXAMPLE), mixed_precision="bf16_with_mxfp8_mixed")
    assert verify(policy, right) == []
    wrong = document_of(fields_of(EXAMPLE), mixed_precision="bf16_with_fp8_current_scaling_mixed")
    assert [(row.field, row.found) for row in verify(policy, wrong)] == [("precision", "fp8_cs")]


def test_variables_of_the_process_count_more_than_those_of_the_container() -> None:
    document = document_of(fields_of(EXAMPLE))
    releases = {"megatron_core": "0.19", "megatron_bridge": "0.6"}
    found = inspect_container(EXAMPLE, document, **releases, environment={"CUDA_DEVICE_MAX_CONNECTIONS": "1"})
    assert [(row.field, row.found) for row in found.differences] == [
        ("env_vars.CUDA_DEVICE_MAX_CONNECTIONS", "1"), ("env_vars.NCCL_GRAPH_REGISTER", ABSENT),
    ]  # fmt: skip
    assert "environment" not in found.unchecked


def test_the_release_is_the_policys_own_before_the_installed_one(monkeypatch: pytest.MonkeyPatch) -> None:
    document = document_of(fields_of(EXAMPLE))
    monkeypatch.setattr("autotune_policies.verify.detect_stack", lambda: {"megatron_core": "0.19.2"})
    with pytest.raises(PolicyError, match="which megatron_bridge ran"):
        verify_container(EXAMPLE, document)
    applies_to = {**EXAMPLE.applies_to, "stack": {"megatron_core": "0.19.2", "megatron_bridge": {"exact": "0.6.2"}}}
    assert verify_container(EXAMPLE._replace(applies_to=applies_to), document) == []


def test_settings_from_another_record() -> None:
    values = {**EXAMPLE.settings, "num_sms": 20, "recompute_modules": ["layernorm", "moe_act"]}
    del values["gpus_per_numa_node"]
    found = inspect_settings(EXAMPLE, values, {"num_gpus": 48, "stack.torch": "2.5.1"})
    assert [(row.field, row.wanted, row.found) for row in found.differences] == [
        ("num_sms", 24, 20), ("stack.torch", "at least 2.6", "2.5.1"),
    ]  # fmt: skip
    assert {"gpus_per_numa_node", "env.NCCL_GRAPH_REGISTER", "launch.segment", "model"} <= set(found.unchecked)
    assert {"num_sms", "num_gpus"} <= set(found.checked)


def test_what_follows_from_another_dispatcher_is_told_once() -> None:
    fields = {**fields_of(EXAMPLE), "model.moe_token_dispatcher_type": "alltoall"}
    assert [row.field for row in verify(EXAMPLE, document_of(fields))] == ["dispatcher"]


def test_a_document_survives_its_file(tmp_path: Path) -> None:
    document = document_of(fields_of(EXAMPLE))
    assert verify(EXAMPLE, yaml.safe_load(yaml.safe_dump(document))) == []


def differing(document: Any, policy: Policy = EXAMPLE, **others: Any) -> list[str]:
    found = inspect_container(policy, document, megatron_core="0.19", megatron_bridge="0.6", **others)
    return [row.field for row in found.differences]


def test_a_container_that_lost_its_variables_differs_where_the_release_has_them() -> None:
    document = document_of(fields_of(EXAMPLE))
    del document["env_vars"]
    assert differing(document) == [f"env_vars.{name}" for name in EXAMPLE.env]
    older = document_of(fields_of(EXAMPLE, "0.18"))
    found = inspect_container(EXAMPLE, older, megatron_core="0.18", megatron_bridge="0.5")
    assert found.differences == ()
    assert found.unchecked["env_vars.NCCL_GRAPH_REGISTER"] == "a container of Megatron-Bridge 0.5 has no variables"


def test_a_precision_of_the_model_that_mixed_precision_does_not_name() -> None:
    fields = {**fields_of(EXAMPLE), "model.fp8": "hybrid", "model.fp8_recipe": "mxfp8"}
    assert differing(document_of(fields, mixed_precision="bf16_mixed")) == ["precision"]
    assert differing(document_of(fields_of(EXAMPLE), mixed_precision="bf16_mixed", model__fp8=None)) == []


SHAPE = {"num_layers": 8, "hidden_size": 64, "num_experts": 16}
RECORDED = {**EXAMPLE.evidence, "contract": {"model": SHAPE}}


@pytest.mark.parametrize("other", [{"num_layers": 4}, {"hidden_size": 128}, {"num_moe_experts": None}], ids=str)
def test_a_model_of_another_shape_than_the_recorded_one(other: dict[str, Any]) -> None:
    policy = EXAMPLE._replace(evidence=RECORDED)
    right = {"model__num_layers": 8, "model__hidden_size": 64, "model__num_moe_experts": 16}
    found = inspect_container(
        policy, document_of(fields_of(EXAMPLE), **right), megatron_core="0.19", megatron_bridge="0.6"
    )
    assert found.differences == ()
    assert "model.hidden_size" in found.checked
    assert found.unchecked["model"] == "its name is not in this record; its shape was compared"
    changes = {f"model__{name}": value for name, value in other.items()}
    wrong = document_of(fields_of(EXAMPLE), **{**right, **changes})
    assert differing(wrong, policy) == [f"model.{name}" for name in other]


def test_a_model_without_experts_is_no_model_of_a_policy() -> None:
    assert differing(document_of(fields_of(EXAMPLE), model__num_moe_experts=None)) == ["model.num_moe_experts"]


def test_other_tokens_than_those_the_numbers_were_taken_with() -> None:
    natural = EXAMPLE._replace(
        evidence={**EXAMPLE.evidence, "routing": {"source": "natural", "token_policy": "dropless"}}
    )
    capacity = document_of(fields_of(EXAMPLE), model__moe_expert_capacity_factor=1.0)
    forced = document_of(fields_of(EXAMPLE), model__moe_router_force_load_balancing=True)
    assert differing(capacity, natural) == differing(capacity) == ["model.moe_expert_capacity_factor"]
    assert differing(forced, natural) == ["model.moe_router_force_load_balancing"]
    assert differing(forced) == []


def test_fine_print_of_hybrid_ep_that_the_policy_does_not_say_is_told() -> None:
    policy = POLICIES["hybridep"]
    document = document_of({**fields_of(policy), "env_vars.NUM_OF_STAGES_DISPATCH_API": "9"})
    found = inspect_container(policy, document, megatron_core="0.19", megatron_bridge="0.6")
    assert found.differences == ()
    assert [row.field for row in found.suspects] == ["env_vars.NUM_OF_STAGES_DISPATCH_API"]


def test_a_number_in_another_form_makes_no_other_field_differ() -> None:
    fields = fields_of(EXAMPLE) | {"model.moe_hybridep_num_sms": 24, "model.moe_deepep_num_sms": 24}
    fields["model.moe_flex_dispatcher_num_sms"] = None
    number = fields["model.moe_hybridep_num_sms_preprocessing"]
    assert differing(document_of({**fields, "model.moe_hybridep_num_sms_preprocessing": float(number)})) == []
    text = document_of({**fields, "model.tensor_model_parallel_size": "1"})
    assert differing(text) == ["model.tensor_model_parallel_size"]
    assert differing(document_of({**fields, "model.tensor_model_parallel_size": True})) == [
        "model.tensor_model_parallel_size"
    ]
