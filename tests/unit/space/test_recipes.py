"""The vendor recipes that model files name exist, and their settings are the published ones."""

import csv
from pathlib import Path

import pytest

from autotune import resources
from autotune.request import load_request
from autotune.space.compose import nearest_point
from autotune.space.files import ModelFile, load_model
from autotune_policies.layout import layout_stages
from autotune_policies.settings import FLEX_DISPATCHERS

TABLE = Path(__file__).parents[2] / "data" / "bridge_recipes_of_the_spaces.tsv"
LINES = [line for line in TABLE.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
PUBLISHED = {f"{row['module']}:{row['name']}": row for row in csv.DictReader(LINES, delimiter="\t")}
MODELS: dict[str, ModelFile] = {name: load_model(name) for name in resources.names("models")}
RECIPES = [(name, cluster) for name, model in MODELS.items() for cluster in model.recipes]


@pytest.mark.parametrize(("name", "cluster"), RECIPES)
def test_a_recipe_is_a_published_function_for_this_gpu(name: str, cluster: str) -> None:
    model = MODELS[name]
    function = model.recipes[cluster].function
    # No recipe is published for the H200, which runs the H100's.
    assert f".{'h100' if cluster == 'h200' else cluster}." in function
    row = PUBLISHED[function]
    if model.recipes[cluster].settings:
        assert int(row["num_gpus"]) == model.gpus[cluster]
        assert row["precision"] == model.contract["precision"]


@pytest.mark.parametrize(("name", "cluster"), [pair for pair in RECIPES if MODELS[pair[0]].recipes[pair[1]].settings])
def test_the_settings_of_a_recipe_are_the_published_ones(name: str, cluster: str) -> None:
    recipe = MODELS[name].recipes[cluster]
    row = PUBLISHED[recipe.function]
    request = load_request(name, cluster)
    settings = request.settings(nearest_point(request.space.parameters, recipe.settings))

    for setting, column in (
        ("tensor_parallel", "tp"), ("pipeline_parallel", "pp"), ("virtual_pipeline", "vp"), ("expert_parallel", "ep"),
        ("micro_batch_size", "mbs"),
    ):  # fmt: skip
        assert settings[setting] == int(row[column] or 1), setting
    kind = row["dispatcher_type"] or "alltoall"
    assert settings["dispatcher"] == (row["backend"] if kind == "flex" else kind)
    if settings["dispatcher"] in FLEX_DISPATCHERS:
        assert settings["num_sms"] == int(row["num_sms"] or 20)  # DeepEP's default where the recipe says nothing
    assert settings["cuda_graph_impl"] == (row["cuda_graph_impl"] or "none")
    if settings["cuda_graph_impl"] != "none":
        assert sorted(settings["cuda_graph_modules"]) == sorted(row["cuda_graph_modules"].split(","))  # type: ignore[arg-type]
    assert settings["ep_overlap"] == (row["ep_overlap"] == "True")
    assert settings["delay_wgrad"] == (row["delay_wgrad"] == "True")
    if row["layout"]:
        assert layout_stages(str(settings["pipeline_layout"])) == layout_stages(row["layout"])
    if row["recompute_granularity"] == "selective":
        assert sorted(settings["recompute_modules"]) == sorted(row["recompute_modules"].split(","))  # type: ignore[arg-type]
    else:
        assert settings["recompute_granularity"] is None
