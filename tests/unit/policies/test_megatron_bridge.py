"""Canonical settings in a ConfigContainer: read, applied, as overrides; on plain objects."""

import os
import sys
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as effort
from hypothesis import strategies as st

from autotune_policies import PolicyError, PolicyMismatch, load_policy
from autotune_policies.bridge_changes import Change
from autotune_policies.bridge_fields import effective
from autotune_policies.hydra import override_word
from autotune_policies.megatron_bridge import (
    apply_container,
    overrides_of,
    plan_changes,
    read_container,
    render_container,
)
from autotune_policies.settings import SETTINGS, Settings, resolve
from autotune_policies.surroundings import HYBRID_EP_VARIABLES, environment_of
from tests.support.containers import (
    TOPOLOGY,
    VERSIONS,
    CommOverlapConfig,
    container_of,
    legal_settings,
    recipes,
    state_of,
)

# Other tests share the machine: how long one draw takes says nothing.
QUICK = effort(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
HYBRID = {"dispatcher": "hybridep", "num_sms": 24, "expert_parallel": 8}


def variables_of(settings: Settings) -> dict[str, str]:
    return {**(TOPOLOGY if settings["dispatcher"] == "hybridep" else {}), **environment_of(settings)}


def said(settings: Settings) -> dict[str, Any]:
    """Without what the launcher does, and without variables of which nothing is said; lists have no order."""
    return {
        name: set(value) if isinstance(value, list) else value
        for name, value in settings.items()
        if SETTINGS[name].home != "launch" and not (SETTINGS[name].home == "env" and value is None)
    }


def read(container: object) -> Settings:
    return read_container(container, **VERSIONS)


def assert_in_force(settings: Settings, container: object) -> None:
    wanted, found = said(effective(settings)), said(read(container))
    assert {name: found[name] for name in wanted} == wanted


@QUICK
@given(recipes(), legal_settings())
def test_what_is_applied_is_read_back(recipe: Any, settings: Settings) -> None:
    apply_container(recipe, settings, variables_of(settings), **VERSIONS)
    assert_in_force(settings, recipe)
    assert apply_container(recipe, settings, variables_of(settings), **VERSIONS) == ()


@QUICK
@given(recipes())
def test_what_a_recipe_says_already_keeps_its_spelling(recipe: Any) -> None:
    variables = {name: str(value) for name, value in recipe.env_vars.items()}
    assert plan_changes(recipe, read(recipe), variables, **VERSIONS) == []


@QUICK
@given(recipes(), legal_settings(), legal_settings())
def test_a_second_policy_leaves_nothing_of_the_first(recipe: Any, first: Settings, second: Settings) -> None:
    alone = deepcopy(recipe)
    apply_container(alone, second, variables_of(second), **VERSIONS)
    apply_container(recipe, first, variables_of(first), **VERSIONS)
    apply_container(recipe, second, variables_of(second), **VERSIONS)
    assert_in_force({name: value for name, value in read(alone).items() if SETTINGS[name].home != "env"}, recipe)
    if second["dispatcher"] != "hybridep":
        assert not set(HYBRID_EP_VARIABLES) & set(recipe.env_vars)


class _Stubborn(SimpleNamespace):
    """Refuses to have one of its fields set."""

    def __setattr__(self, name: str, value: object) -> None:
        if name == self.__dict__.get("refused"):
            raise TypeError(f"{name} is fixed")
        super().__setattr__(name, value)


@QUICK
@given(recipes(), legal_settings(), st.data())
def test_all_is_applied_or_nothing(recipe: Any, settings: Settings, data: st.DataObject) -> None:
    changes = [
        row for row in plan_changes(recipe, settings, variables_of(settings), **VERSIONS) if row.path[:4] != "env_"
    ]
    changes = [row for row in changes if row.path != "comm_overlap" and not row.path.startswith("comm_overlap.")]
    if not changes:
        return
    section, _, name = data.draw(st.sampled_from(changes)).path.rpartition(".")
    setattr(recipe, section, _Stubborn(**vars(getattr(recipe, section)), refused=name))
    before = state_of(recipe)
    with pytest.raises(PolicyError, match=rf"{section}\.{name} cannot be set"):
        apply_container(recipe, settings, variables_of(settings), **VERSIONS)
    assert state_of(recipe) == before


@pytest.mark.parametrize(
    "path", ["model.moe_router_fusion", "model.moe_flex_dispatcher_num_sms", "ddp.overlap_grad_reduce"]
)
def test_a_missing_field_is_named_and_nothing_applied(path: str) -> None:
    recipe = container_of()
    section, _, name = path.partition(".")
    delattr(getattr(recipe, section), name)
    before = state_of(recipe)
    with pytest.raises(PolicyError, match=name):
        apply_container(recipe, {**HYBRID, "router_fusion": True, "overlap_grad_reduce": True}, TOPOLOGY, **VERSIONS)
    assert state_of(recipe) == before


def test_a_companion_field_that_does_not_exist_is_named() -> None:
    recipe = container_of()
    del recipe.rng.te_rng_tracker
    with pytest.raises(PolicyError, match=r"rng\.te_rng_tracker"):
        apply_container(recipe, {"cuda_graph_impl": "full_iteration"}, {}, **VERSIONS)


def test_switching_to_hybridep_and_back_is_complete() -> None:
    recipe = container_of(settings={"shared_expert_overlap": True})
    recipe.env_vars = {"TORCH_NCCL_HIGH_PRIORITY": 1}
    former = read(recipe)
    changed = apply_container(recipe, {**HYBRID, "num_sms_preprocessing": 64}, TOPOLOGY, **VERSIONS)
    model = recipe.model
    assert (model.moe_token_dispatcher_type, model.moe_flex_dispatcher_backend) == ("flex", "hybridep")
    assert (model.moe_flex_dispatcher_num_sms, model.moe_deepep_num_sms, model.moe_hybridep_num_sms) == (24, None, None)
    assert model.moe_shared_expert_overlap is False
    assert recipe.env_vars == {"TORCH_NCCL_HIGH_PRIORITY": 1, **TOPOLOGY}
    assert "env_vars.USE_MNNVL" in changed
    apply_container(recipe, former, {}, **VERSIONS)
    assert (model.moe_token_dispatcher_type, model.moe_hybridep_num_sms_preprocessing) == ("alltoall", 108)
    assert (model.moe_flex_dispatcher_num_sms, model.moe_shared_expert_overlap) == (None, True)
    assert recipe.env_vars == {"TORCH_NCCL_HIGH_PRIORITY": 1}
    assert read(recipe) == former


def test_an_older_alias_goes_when_the_number_changes() -> None:
    recipe = container_of(settings=HYBRID, moe_flex_dispatcher_num_sms=None, moe_hybridep_num_sms=32)
    recipe.env_vars = dict(TOPOLOGY)
    apply_container(recipe, HYBRID, TOPOLOGY, **VERSIONS)
    assert (recipe.model.moe_flex_dispatcher_num_sms, recipe.model.moe_hybridep_num_sms) == (24, None)


def test_half_of_a_group_of_variables_never_stays() -> None:
    recipe = container_of(settings=HYBRID)
    recipe.env_vars = {**TOPOLOGY, "NUM_OF_TOKENS_PER_CHUNK_DISPATCH_API": "64", "NUM_OF_STAGES_DISPATCH_API": "2"}
    env = {**TOPOLOGY, "NUM_OF_TOKENS_PER_CHUNK_COMBINE_API": "128"}
    apply_container(recipe, read(recipe), env, **VERSIONS)
    assert recipe.env_vars == {**env, "NUM_OF_STAGES_DISPATCH_API": "2"}


def test_a_missing_overlap_configuration_is_built_without_other_effects() -> None:
    recipe = container_of(settings={"overlap_grad_reduce": True, "overlap_param_gather": False}, align_param=1)
    wanted = {**read(recipe), "ep_overlap": True, "expert_parallel": 8}
    assert "comm_overlap" in apply_container(recipe, wanted, {}, **VERSIONS)
    assert recipe.comm_overlap == CommOverlapConfig(
        tp_comm_overlap=False,
        overlap_p2p_comm=False,
        batch_p2p_comm=True,
        overlap_grad_reduce=True,
        overlap_param_gather=False,
        overlap_param_gather_with_optimizer_step=False,
        align_param_gather=False,
        bucket_size=40_000_000,
        defer_embedding_wgrad_compute=False,
        wgrad_deferral_limit=0,
        overlap_moe_expert_parallel_comm=True,
        delay_wgrad_compute=False,
    )
    assert recipe.model.overlap_moe_expert_parallel_comm is True


def test_no_overlap_configuration_is_built_where_none_is_needed() -> None:
    recipe = container_of()
    apply_container(recipe, {"overlap_grad_reduce": True, "pipeline_parallel": 2}, {}, **VERSIONS)
    assert recipe.comm_overlap is None
    assert recipe.ddp.overlap_grad_reduce is True


def test_a_container_of_an_unknown_kind_cannot_get_an_overlap_configuration() -> None:
    recipe = SimpleNamespace(**vars(container_of()))
    before = state_of(recipe)
    with pytest.raises(PolicyError, match="no comm_overlap"):
        apply_container(recipe, {"ep_overlap": True}, {}, **VERSIONS)
    assert state_of(recipe) == before


def test_what_an_overlap_configuration_leaves_unsaid_is_read_as_bridge_means_it() -> None:
    recipe = container_of()
    recipe.comm_overlap = CommOverlapConfig(tp_comm_overlap=False)
    recipe.model.overlap_moe_expert_parallel_comm = True  # setup() sets it to false again
    found = read(recipe)
    assert (found["ep_overlap"], found["overlap_grad_reduce"], found["overlap_param_gather"]) == (False, True, True)
    recipe.comm_overlap.data_parallel_size = 1  # training has been there: the fields hold what it made of it
    assert read(recipe)["overlap_grad_reduce"] is False


def _stages(*layers: int, end: str = "L") -> str:
    return "E" + "|".join("t" * number for number in layers) + end


_FIRST, _LAST = "num_layers_in_first_pipeline_stage", "num_layers_in_last_pipeline_stage"
_EMBEDDING, _LOSS = "account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split"


@pytest.mark.parametrize(
    ("fields", "layout"),
    [
        ({_FIRST: 10, _LAST: 14}, _stages(10, 12, 12, 14)),
        ({_EMBEDDING: True, _LOSS: True, "num_layers": 46}, _stages(11, 12, 12, 11)),
        ({_LOSS: True, "num_layers": 47, "mtp_num_layers": 1}, _stages(12, 12, 12, 11, end="mL")),
        ({}, None),
    ],
)
def test_an_uneven_split_is_read_as_the_layout_it_amounts_to(fields: dict[str, Any], layout: str | None) -> None:
    recipe = container_of(settings={"pipeline_parallel": 4}, **fields)
    assert read(recipe)["pipeline_layout"] == layout
    assert plan_changes(recipe, read(recipe), {}, **VERSIONS) == []


def test_an_uneven_split_that_does_not_divide_is_refused() -> None:
    with pytest.raises(PolicyError, match="48 layers cannot be split over 4 x 1 stages"):
        read(container_of(settings={"pipeline_parallel": 4}, num_layers_in_first_pipeline_stage=11))


def test_the_transformer_may_stand_in_a_section_of_its_own() -> None:
    recipe = container_of()
    recipe.model = SimpleNamespace(transformer=recipe.model, seq_length=4096)
    apply_container(recipe, HYBRID, TOPOLOGY, **VERSIONS)
    assert recipe.model.transformer.moe_token_dispatcher_type == "flex"
    assert read(recipe)["dispatcher"] == "hybridep"


def test_a_saved_container_is_read_like_the_object() -> None:
    module = "megatron.core.transformer.enums.CudaGraphModule"
    recipe = container_of(settings={**HYBRID, "cuda_graph_impl": "transformer_engine", "cuda_graph_modules": ["attn"]})
    recipe.env_vars = {**TOPOLOGY, "CUDA_DEVICE_MAX_CONNECTIONS": 32}
    saved = {"_target_": "x.ConfigContainer", **state_of(recipe)}
    saved["model"]["cuda_graph_modules"] = [{"_args_": [1], "_call_": True, "_name_": "attn", "_target_": module}]
    assert read(saved) == read(recipe)
    assert read(saved)["cuda_device_max_connections"] == 32


@pytest.mark.parametrize(("bridge", "core"), [("0.4.2", "0.17.1"), ("0.5.1", "0.18.2"), ("0.6.2", "0.19.2")])
def test_every_supported_release_goes_there_and_back(bridge: str, core: str) -> None:
    releases = {"megatron_core": core, "megatron_bridge": bridge}
    recipe = container_of(core)
    wanted = effective(resolve({**HYBRID, "cuda_graph_impl": "full_iteration", "pipeline_parallel": 2}))
    env = TOPOLOGY if bridge == "0.6.2" else {}
    rendered = render_container(wanted, env, **releases)
    apply_container(recipe, wanted, env, **releases)
    assert read_container(recipe, **releases) == {
        name: value for name, value in wanted.items() if SETTINGS[name].home != "launch"
    }
    for path, value in rendered.items():
        section, _, name = path.partition(".")
        if section not in ("comm_overlap", "env_vars"):
            assert getattr(getattr(recipe, section), name) == value, path


@QUICK
@given(legal_settings())
def test_the_complete_rendering_says_everything(settings: Settings) -> None:
    rendered = render_container(settings, variables_of(settings), **VERSIONS)
    view: dict[str, Any] = {"comm_overlap": {"tp_comm_overlap": False}, "env_vars": {}}
    for path, value in rendered.items():
        section, _, name = path.partition(".")
        view.setdefault(section, {})[name] = value
    assert said(read(view)) == said(settings)


def test_a_release_without_variables_of_its_own_refuses_them() -> None:
    releases = {"megatron_core": "0.18.2", "megatron_bridge": "0.5.1"}
    with pytest.raises(PolicyError, match=r"Megatron-Bridge 0\.5 has no env_vars for USE_MNNVL"):
        render_container(HYBRID, {"USE_MNNVL": "0"}, **releases)
    recipe = container_of("0.18", moe_hybridep_num_sms=16)
    del recipe.env_vars
    with pytest.raises(PolicyError, match="no env_vars"):
        apply_container(recipe, HYBRID, TOPOLOGY, **releases)


@pytest.mark.parametrize("version", ["0.3.1", "0.7", "0.60", "x"])
def test_other_releases_are_refused(version: str) -> None:
    with pytest.raises(PolicyError, match="is not supported") as caught:
        render_container({}, {}, megatron_core="0.19.2", megatron_bridge=version)
    assert caught.value.hint == "supported: 0.4, 0.5, 0.6"


def test_what_is_no_container_is_refused() -> None:
    with pytest.raises(PolicyError, match="no ConfigContainer"):
        read(SimpleNamespace(model=1))


def test_launch_settings_cannot_be_said_in_overrides() -> None:
    with pytest.raises(PolicyError, match="gpus_per_numa_node=2 cannot be said") as caught:
        overrides_of({"gpus_per_numa_node": 2}, {}, **VERSIONS)
    assert caught.value.hint == "autotune policy exec FILE -- COMMAND"


def test_overrides_for_a_recipe_are_what_differs() -> None:
    recipe = container_of(settings=HYBRID)
    recipe.comm_overlap = CommOverlapConfig(tp_comm_overlap=False)
    recipe.env_vars = {**TOPOLOGY, "NVTE_FWD_LAYERNORM_SM_MARGIN": 20}
    before = state_of(recipe)
    wanted = {**read(recipe), "dispatcher": "alltoall", "num_sms": None, "layernorm_sm_margin": 16, "delay_wgrad": True}
    words = overrides_of(wanted, {}, **VERSIONS, container=recipe)
    assert state_of(recipe) == before
    assert words == [
        "model.moe_token_dispatcher_type=alltoall",
        "model.moe_flex_dispatcher_backend=deepep",
        "model.moe_flex_dispatcher_num_sms=null",
        "model.delay_wgrad_compute=true",
        "ddp.delay_wgrad_compute=true",
        "comm_overlap.overlap_moe_expert_parallel_comm=false",
        "comm_overlap.delay_wgrad_compute=true",
        "env_vars.NVTE_FWD_LAYERNORM_SM_MARGIN='16'",
        "++env_vars.NVTE_BWD_LAYERNORM_SM_MARGIN='16'",
        "~env_vars.NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN",
        "~env_vars.NVLINK_DOMAIN_SIZE",
        "~env_vars.USE_MNNVL",
    ]


def test_a_missing_overlap_configuration_is_one_override() -> None:
    words = overrides_of({"ep_overlap": True}, {}, **VERSIONS, container=container_of())
    built = next(word for word in words if word.startswith("comm_overlap="))
    assert built.startswith("comm_overlap={_target_:tests.support.containers.CommOverlapConfig,tp_comm_overlap:false,")
    assert "overlap_moe_expert_parallel_comm:true" in built


def test_overrides_for_any_recipe_are_the_complete_set() -> None:
    words = overrides_of(HYBRID, TOPOLOGY, **VERSIONS)
    assert {word.partition("=")[0].lstrip("+") for word in words} == set(render_container(HYBRID, TOPOLOGY, **VERSIONS))
    assert "++env_vars.USE_MNNVL='0'" in words


@pytest.mark.parametrize(
    ("value", "word"),
    [
        (None, "null"), (True, "true"), (16, "16"), (1.5, "1.5"), ([], "[]"), (["attn", "mlp"], "[attn,mlp]"),
        ("Et*4|(t*4|)*14tmL", "'Et*4|(t*4|)*14tmL'"), ("16", "'16'"), ("null", "'null'"), ("flex", "flex"),
        ("it's", r"'it\'s'"), ("a\\", r"'a\\'"), ("a\\'b", r"'a\\\'b'"), ("", "''"),
    ],
)  # fmt: skip
def test_values_are_quoted_for_hydra(value: Any, word: str) -> None:
    assert override_word(Change("model.x", value), added=False) == f"model.x={word}"


@pytest.fixture
def _own_environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


EXAMPLE = load_policy(Path(__file__).parent / "example.yaml")
RUN: dict[str, Any] = {
    "model": "example-moe", "cluster": "example-cluster", "num_gpus": 32, "global_batch_size": 256,
    "stack": {"megatron_core": "0.19.2", "megatron_bridge": "0.6.2", "torch": "2.13.0", "deep_ep": "1.2.1"},
}  # fmt: skip


@pytest.mark.usefixtures("_own_environment")
def test_a_policy_applies_to_a_container() -> None:
    recipe = container_of()
    recipe.train.global_batch_size = 256
    applied = EXAMPLE.apply(recipe, **RUN)
    assert_in_force(EXAMPLE.settings, recipe)
    assert applied.fields["model.expert_model_parallel_size"] == EXAMPLE.settings["expert_parallel"]
    assert not {"ddp", "training"} & applied.elsewhere.keys()
    assert recipe.env_vars == EXAMPLE.env
    assert applied.unchecked == ()
    assert EXAMPLE.apply(recipe, **RUN).fields == {}


@pytest.mark.usefixtures("_own_environment")
def test_what_only_a_launcher_can_do_is_named() -> None:
    policy = EXAMPLE._replace(settings={**EXAMPLE.settings, "gpus_per_numa_node": 2})
    applied = policy.apply(container_of(), **{**RUN, "global_batch_size": 256})
    assert applied.elsewhere == {"launch": {"gpus_per_numa_node": 2}}


@pytest.mark.usefixtures("_own_environment")
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seq_length": 8192}, "seq_length is 8192"),
        ({"mixed_precision": "bf16_with_mxfp8_mixed"}, "precision is fp8_mx"),
    ],
)
def test_a_container_for_another_contract_is_refused(change: dict[str, Any], message: str) -> None:
    recipe = container_of()
    for name, value in change.items():
        setattr(recipe if name == "mixed_precision" else recipe.model, name, value)
    before = state_of(recipe)
    with pytest.raises(PolicyMismatch, match=message):
        EXAMPLE.apply(recipe, **RUN)
    assert state_of(recipe) == before


@pytest.mark.usefixtures("_own_environment")
def test_a_variable_that_the_shell_has_set_otherwise_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    name = next(iter(EXAMPLE.env))
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=SimpleNamespace(is_initialized=lambda: False)))
    recipe = container_of()
    EXAMPLE.apply(recipe, **RUN)  # not set: env_vars decide
    os.environ[name] = "7"
    with pytest.raises(PolicyError, match=f"{name} is 7"):
        EXAMPLE.apply(recipe, **RUN)


@pytest.mark.usefixtures("_own_environment")
def test_an_older_container_needs_no_place_for_variables_that_the_process_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """As under ``policy exec``, which is what its refusal advises."""
    recipe = container_of("0.17", EXAMPLE.settings)
    recipe.train.global_batch_size = 256
    del recipe.env_vars
    run = {**RUN, "stack": {**RUN["stack"], "megatron_core": "0.17.1", "megatron_bridge": "0.4.2"}}
    for name in EXAMPLE.env:
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(PolicyError, match=r"Megatron-Bridge 0\.4 has no env_vars") as caught:
        EXAMPLE.apply(recipe, **run)
    assert caught.value.hint == "start it with: autotune policy exec FILE -- COMMAND"
    os.environ.update(EXAMPLE.env)
    assert EXAMPLE.apply(recipe, **run).env == EXAMPLE.env


@pytest.mark.usefixtures("_own_environment")
def test_the_release_of_bridge_must_be_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autotune_policies.apply.detect_stack", lambda: {"megatron_core": "0.19.2"})
    stack = {name: version for name, version in RUN["stack"].items() if name != "megatron_bridge"}
    with pytest.raises(PolicyError, match="Megatron-Bridge release of this run is unknown"):
        EXAMPLE.apply(container_of(), **{**RUN, "stack": stack})


WITHOUT_LAUNCH = {name: value for name, value in EXAMPLE.settings.items() if name != "gpus_per_numa_node"}


def test_overrides_for_an_older_container_need_its_variables_in_the_process() -> None:
    releases = {"megatron_core": "0.17.1", "megatron_bridge": "0.4.2"}
    recipe = container_of("0.17", EXAMPLE.settings)
    del recipe.env_vars
    for container in (None, recipe):
        with pytest.raises(PolicyError, match=r"Megatron-Bridge 0\.4 has no env_vars"):
            overrides_of(WITHOUT_LAUNCH, EXAMPLE.env, **releases, container=container)
        words = overrides_of(
            WITHOUT_LAUNCH, EXAMPLE.env, **releases, container=container, environment={**EXAMPLE.env, "OTHER": "1"}
        )
        assert not any("env_vars" in word for word in words)


def test_what_graphs_demanded_goes_with_them() -> None:
    recipe = container_of()
    graphs = {"cuda_graph_impl": "transformer_engine", "cuda_graph_modules": ["attn"]}
    apply_container(recipe, {**read(recipe), **graphs}, {}, **VERSIONS)
    assert (recipe.rng.te_rng_tracker, recipe.model.use_te_rng_tracker) == (True, True)
    without = {"cuda_graph_impl": "none", "cuda_graph_modules": []}
    apply_container(recipe, {**read(recipe), **without}, {}, **VERSIONS)
    assert (recipe.rng.te_rng_tracker, recipe.model.use_te_rng_tracker) == (False, False)


def test_a_random_state_that_a_recipe_has_without_graphs_stays() -> None:
    recipe = container_of()
    recipe.rng.te_rng_tracker = True
    assert plan_changes(recipe, read(recipe), {}, **VERSIONS) == []
