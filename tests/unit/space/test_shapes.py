"""Shapes of the shipped models: their parameters are the published ones."""

import pytest

from autotune import resources
from autotune.predict.parameters import active_parameters, count_parameters
from autotune.space.files import load_model

# Billions, as the model cards and technical reports say. Multi-token-prediction layers are left out where the family
# counts without them.
TOTAL = {
    "deepseek-moe-16b": 16.4,
    "deepseek-v2-lite": 15.7,
    "dsv3": 671.0,
    "dsv4-flash": 284.0,
    "gpt-oss-120b": 116.8,
    "gpt-oss-20b": 20.9,
    "kimi-k2": 1030.0,
    "llama3-70b": 70.6,
    "llama3-8b": 8.03,
    "mixtral-8x7b": 46.7,
    "nemotron3-nano": 31.6,
    "nemotron3-super": 120.6,
    "qwen3-235b": 235.0,
    "qwen3-30b": 30.5,
    "qwen3-next": 79.67,
    "qwen3-vl-235b": 235.7,
    "qwen3-vl-30b": 31.1,
    "qwen35-35b": 35.1,
}

# Billions per token, and whether the family counts the input embedding.
ACTIVE = {
    "deepseek-v2-lite": (2.4, False, 0.05),
    "deepseek-moe-16b": (2.8, True, 0.05),
    "dsv3": (37.0, False, 0.5),
    "gpt-oss-120b": (5.13, False, 0.005),
    "gpt-oss-20b": (3.61, False, 0.005),
    "kimi-k2": (32.6, True, 0.05),
    "mixtral-8x7b": (12.9, True, 0.05),
    "nemotron3-nano": (3.2, False, 0.05),
    "qwen3-235b": (22.0, True, 0.5),
    "qwen3-30b": (3.3, True, 0.05),
}
"""The last number is half of the published one's last digit: what rounding may hide."""


@pytest.mark.parametrize("name", [name for name in resources.names("models") if name != "tiny-moe"])
def test_the_total_is_the_published_one_within_a_hundredth(name: str) -> None:
    counts = count_parameters(load_model(name).model_shape())
    assert (counts.total - counts.mtp) / 1e9 == pytest.approx(TOTAL[name], rel=0.01)


@pytest.mark.parametrize("name", ACTIVE)
def test_the_active_parameters_are_the_published_ones_within_a_hundredth_and_rounding(name: str) -> None:
    shape = load_model(name).model_shape()
    published, with_embedding, rounding = ACTIVE[name]
    active = active_parameters(shape) - (0 if with_embedding else count_parameters(shape).embedding)
    assert active / 1e9 == pytest.approx(published, abs=0.01 * published + rounding)


def test_every_layer_of_a_hybrid_model_has_a_letter() -> None:
    for name in resources.names("models"):
        shape = load_model(name).model_shape()
        assert len(shape.layer_kinds) == shape.num_layers, name
    super_ = load_model("nemotron3-super").model_shape()
    assert {letter: super_.layer_kinds.count(letter) for letter in "ME*"} == {"M": 40, "E": 40, "*": 8}
    assert load_model("qwen3-next").model_shape().layer_kinds == "ggga" * 12
    assert load_model("gpt-oss-20b").model_shape().layer_kinds == "wa" * 12


def test_compressed_attention_names_a_ratio_for_every_layer() -> None:
    shape = load_model("dsv4-flash").model_shape()
    assert shape.kv_compression is not None
    assert len(shape.kv_compression.split(",")) == shape.num_layers + shape.mtp_num_layers
