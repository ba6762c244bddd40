"""Model, cluster and guide put together: every shipped pair starts from points that fit and are legal."""

import functools
from collections.abc import Mapping
from dataclasses import replace

import pytest

from autotune import resources
from autotune.cluster import load_cluster
from autotune.constraint.check import check
from autotune.constraint.rule import Candidate
from autotune.request import TuneRequest
from autotune.request import load_request as load_request_anew
from autotune.space.compose import compose, nearest_point
from autotune.space.files import ParameterFile, complete_point, load_model
from autotune.space.guide import load_guide
from autotune.space.parameters import Parameter, Point
from autotune_policies.layout import layout_stages
from autotune_policies.megatron_core import render
from autotune_policies.surroundings import HYBRID_EP_TOPOLOGY, HYBRID_EP_VARIABLES
from autotune_trials.spec import contract_from

load_request = functools.cache(load_request_anew)
PAIRS = [(model, cluster) for model in resources.names("models") for cluster in load_model(model).gpus]


def violations(request: TuneRequest, point: Point) -> list[str]:
    candidate = Candidate(
        settings=request.settings(point),
        shape=request.shape,
        contract=request.contract,
        gang=request.gang,
        nvlink_domain_gpus=request.cluster.nvlink_domain_gpus,
    )
    return [f"{one.rule}: {one.message}" for one in check(candidate)]


@pytest.mark.parametrize(("model", "cluster"), PAIRS)
def test_the_baseline_of_every_shipped_pair_is_alltoall_and_legal(model: str, cluster: str) -> None:
    request = load_request(model, cluster)
    baseline = request.space.baseline
    settings = request.settings(baseline)

    assert settings["dispatcher"] == "alltoall"
    assert settings["cuda_graph_impl"] == "none"
    assert settings["ep_overlap"] is False
    assert violations(request, baseline) == []


@pytest.mark.parametrize(("model", "cluster"), PAIRS)
def test_every_seed_fits_its_space_and_its_layout_fits_the_model(model: str, cluster: str) -> None:
    request = load_request(model, cluster)
    for seed in request.space.seeds:
        assert complete_point(request.space.parameters, seed) == seed
        settings = request.settings(seed)
        render(settings, "0.19")
        stages = settings["pipeline_parallel"] * settings["virtual_pipeline"]  # type: ignore[operator]
        layout = settings["pipeline_layout"]
        if layout is None:
            assert request.shape.num_layers % stages == 0  # type: ignore[operator]
        else:
            parts = layout_stages(str(layout))
            assert len(parts) == stages
            assert "".join(parts).count("t") == request.shape.num_layers


@pytest.mark.parametrize(
    ("model", "cluster"),
    [(m, c) for m, c in PAIRS if (recipe := load_model(m).recipes.get(c)) is not None and recipe.settings],
)
def test_a_published_recipe_is_a_legal_seed(model: str, cluster: str) -> None:
    request = load_request(model, cluster)
    published = load_model(model).recipes[cluster].settings
    seed = nearest_point(request.space.parameters, published)

    assert {name: seed[name] for name in published} == published
    assert seed in (request.space.baseline, *request.space.seeds)
    assert violations(request, seed) == []


def test_the_first_seed_is_the_recipe_and_the_guide_follows_on_its_layout() -> None:
    request = load_request("dsv3", "gb300")
    recipe, *guide = request.space.seeds

    assert (recipe["dispatcher"], recipe["num_sms"], recipe["recompute_modules"]) == ("hybridep", 32, ["moe_act"])
    assert [(seed["dispatcher"], seed["num_sms"]) for seed in guide] == [("hybridep", 16)]
    assert all(seed["pipeline_layout"] == recipe["pipeline_layout"] == "packed" for seed in guide)


def test_an_unknown_cluster_starts_from_alltoall_only() -> None:
    model = load_model("dsv3")
    cluster = load_cluster("gb300").model_copy(update={"name": "our-own"})
    space = compose(model, cluster, model.default_contract(), load_guide())

    assert space.baseline["dispatcher"] == "alltoall"
    assert space.seeds == ()


def test_the_cluster_adds_its_parameters_and_the_model_wins() -> None:
    model, cluster = load_model("dsv3"), load_cluster("gb300")
    space = compose(model, cluster, model.default_contract(), load_guide())
    assert [parameter.name for parameter in space.parameters][-4:] == list(cluster.parameters)
    assert space.baseline["cuda_device_max_connections"] == 32

    own = cluster.model_copy(update={"parameters": {"micro_batch_size": [64]}})
    space = compose(model, own, model.default_contract(), load_guide())
    assert next(p.choices for p in space.parameters if p.name == "micro_batch_size") == (1, 2)


def test_fixed_buffers_exist_only_where_the_contract_has_a_budget() -> None:
    model, cluster = load_model("dsv3"), load_cluster("gb300")
    budget = {**model.contract, "routing": {**model.contract["routing"], "token_policy": "rank_budget"}}

    def parameters(contract: dict[str, object]) -> dict[str, Parameter]:
        space = compose(model, cluster, contract_from(contract), load_guide())
        return {parameter.name: parameter for parameter in space.parameters}

    dropless, budgeted = parameters(model.contract), parameters(budget)
    assert set(budgeted) - set(dropless) == {"rank_capacity_factor", "paged_stash"}
    assert "ncclep" in budgeted["dispatcher"].choices
    assert "ncclep" not in dropless["dispatcher"].choices
    assert "full_iteration" in budgeted["cuda_graph_impl"].choices
    assert "full_iteration" not in dropless["cuda_graph_impl"].choices


def test_every_choice_that_is_left_is_legal_somewhere_under_its_contract_or_named() -> None:
    model, cluster = load_model("dsv3"), load_cluster("gb300")
    sizes = ParameterFile(choices=[1, 2, 3, 2999, 4096])
    wide = model.model_copy(update={"parameters": {**model.parameters, "micro_batch_size": sizes}})
    space = compose(wide, cluster, model.default_contract(), load_guide())

    assert next(p.choices for p in space.parameters if p.name == "micro_batch_size") == (1, 2, 4096)
    assert [(item.parameter, item.value) for item in space.left_out] == [
        ("dispatcher", "ncclep"), ("rank_capacity_factor", 1.5), ("micro_batch_size", 3), ("micro_batch_size", 2999),
        ("cuda_graph_impl", "full_iteration"),
    ]  # fmt: skip
    assert all(item.why for item in space.left_out)
    by_name = {parameter.name: parameter for parameter in space.parameters}
    assert "ncclep" not in by_name["num_sms"].when["dispatcher"]


def test_a_seed_with_a_choice_that_is_left_out_is_none() -> None:
    model, cluster = load_model("dsv3"), load_cluster("gb300")
    seed = {"dispatcher": "ncclep", "num_sms": 16, "rank_capacity_factor": 1.5}
    seeded = model.model_copy(update={"seeds": [seed], "recipes": {}})
    space = compose(seeded, cluster, model.default_contract(), load_guide())

    assert all(point["dispatcher"] != "ncclep" for point in space.seeds)


def test_settings_of_the_environment_become_variables_of_every_rank() -> None:
    request = load_request("dsv3", "gb300")
    spec = request.spec(0, request.space.seeds[0])

    assert spec.env["CUDA_DEVICE_MAX_CONNECTIONS"] == "32"
    assert spec.env["NVTE_FWD_LAYERNORM_SM_MARGIN"] == spec.env["NVTE_BWD_LAYERNORM_SM_MARGIN"] == "20"
    assert spec.env["PYTORCH_CUDA_ALLOC_CONF"] == "expandable_segments:True"
    assert topology(spec.env) == ("64", "72", "1")
    assert not set(HYBRID_EP_VARIABLES) & set(request.spec(0, request.space.baseline).env)
    b200 = load_request("dsv3", "b200")
    assert topology(b200.spec(0, b200.space.seeds[0]).env) == ("8", "8", "0")


def topology(env: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(env[name] for name in HYBRID_EP_TOPOLOGY)


def test_what_a_cluster_sets_for_hybridep_never_reaches_another_dispatcher() -> None:
    request = load_request("dsv3", "gb300")
    env = {**request.cluster.env, "USE_MNNVL": "0", "OMP_NUM_THREADS": "4"}
    request = replace(request, cluster=request.cluster.model_copy(update={"env": env}))
    plain = request.spec(0, request.space.baseline).env
    assert (plain["OMP_NUM_THREADS"], "USE_MNNVL" in plain) == ("4", False)
    assert topology(request.spec(0, request.space.seeds[0]).env) == ("64", "72", "1")
