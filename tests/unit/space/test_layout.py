"""Generated pipeline layouts."""

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.space.files import load_model
from autotune.space.layout import BALANCED, EVEN, GENERATED, LIGHT_LAST, PACKED, LayerCosts, generate, layer_costs
from autotune_policies.layout import layout_stages
from autotune_trials.spec import ModelShape


def test_an_even_split_needs_no_layout() -> None:
    assert generate(EVEN, num_layers=8, stages=4) is None


def test_layers_left_over_stay_away_from_embedding_and_loss() -> None:
    assert generate(EVEN, num_layers=10, stages=4) == "Ett|ttt|ttt|ttL"


def test_multi_token_prediction_sits_beside_the_loss() -> None:
    assert generate(EVEN, num_layers=4, stages=2, mtp_num_layers=1) == "Ett|ttmL"


def test_light_last_takes_one_layer_from_the_loss_stage() -> None:
    assert generate(LIGHT_LAST, num_layers=4, stages=2) == "Ettt|tL"


PUBLISHED = [
    (61, 32, 1, "Et|(tt|)*30mL"),  # DeepSeek-V3 on 1,024 H100s
    (61, 16, 1, "Et*4|(t*4|)*14tmL"),  # DeepSeek-V3 on 256 GB300s
    (61, 8, 1, "Et*8|(t*8|)*6t*5mL"),  # DeepSeek-V3 on 256 B200s
    (61, 32, 0, "Et|(tt|)*30L"),  # Kimi-K2 on 1,024 H100s
    (61, 16, 0, "Et*4|(t*4|)*14tL"),  # Kimi-K2 on 256 GB200s
]


@pytest.mark.parametrize(("layers", "stages", "mtp", "published"), PUBLISHED)
def test_packed_is_what_the_published_recipes_use(layers: int, stages: int, mtp: int, published: str) -> None:
    text = generate(PACKED, layers, stages, mtp)
    assert text is not None
    assert layout_stages(text) == layout_stages(published)


def costs_of(text: str, costs: LayerCosts) -> list[float]:
    """What each stage of a layout costs, counted layer by layer."""
    stages, done = [], 0
    parts = layout_stages(text)
    for part in parts:
        layers = range(done, done + part.count("t"))
        stages.append(sum(costs.dense if layer < costs.dense_layers else 1.0 for layer in layers))
        done += part.count("t")
    stages[-1] += costs.last
    return stages


@given(
    layers=st.integers(2, 40),
    stages=st.integers(2, 12),
    dense_layers=st.integers(0, 3),
    dense=st.floats(0.1, 2),
    last=st.floats(0, 6),
    cuts=st.randoms(use_true_random=False),
)
def test_no_other_split_has_a_cheaper_costliest_stage_than_balanced(
    layers: int, stages: int, dense_layers: int, dense: float, last: float, cuts: random.Random
) -> None:
    if layers < stages:
        return
    costs = LayerCosts(dense_layers, dense, last)
    text = generate(BALANCED, layers, stages, 1, costs)
    assert text is not None
    ends = [0, *sorted(cuts.sample(range(1, layers), stages - 1)), layers]
    other = "|".join("t" * (end - begin) for begin, end in itertools.pairwise(ends))
    assert max(costs_of(text, costs)) <= max(costs_of(f"E{other}mL", costs)) + 1e-6


def test_the_output_layer_of_a_small_model_weighs_like_several_layers() -> None:
    assert 1.5 < layer_costs(load_model("dsv3").model_shape()).last < 4.5
    assert 2 < layer_costs(load_model("qwen3-30b").model_shape()).last < 10
    dense = ModelShape("dense", 4, 128, 4, vocab_size=0, ffn_hidden_size=512)
    assert layer_costs(dense) == LayerCosts()


def test_an_unknown_kind_names_the_legal_ones() -> None:
    with pytest.raises(ValueError, match="must be one of even, light_last"):
        generate("heavy", num_layers=4, stages=2)


@settings(deadline=None)  # a balanced split of 130 layers into 64 stages is no matter of milliseconds
@given(
    kind=st.sampled_from(GENERATED),
    layers=st.integers(1, 130),
    stages=st.integers(1, 64),
    mtp=st.integers(0, 2),
)
def test_a_generated_layout_holds_every_layer_once_in_order(kind: str, layers: int, stages: int, mtp: int) -> None:
    if layers < stages and stages > 1:
        with pytest.raises(ValueError, match="must hold"):
            generate(kind, layers, stages, mtp)
        return

    text = generate(kind, layers, stages, mtp)

    if text is None:
        assert stages == 1 or (layers % stages == 0 and mtp == 0)
        return
    parts = layout_stages(text)
    counts = [part.count("t") for part in parts]
    assert len(parts) == stages
    assert "".join(parts) == "E" + "t" * layers + "m" * mtp + "L"
    assert all(parts)
    assert max(counts[:-1]) - min(counts[:-1]) <= 2
    assert counts[-1] <= max(counts)
