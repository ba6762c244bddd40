import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.predict.layers import Block, decoder_blocks, pipeline_chunks
from autotune.predict.parameters import active_parameters, count_parameters
from autotune.predict.static import rank_contents
from autotune_policies.errors import PolicyError
from autotune_trials.spec import ModelShape


# Published totals, multi-token prediction and vision left out.
@pytest.mark.parametrize(
    ("model", "total", "active"),
    [
        ("dsv3", 671.0e9, 37.6e9),
        ("qwen3-235b", 235.1e9, 22.2e9),
        ("qwen3-30b", 30.53e9, 3.35e9),
        ("kimi-k2", 1026.4e9, 32.9e9),
        ("mixtral-8x7b", 46.7e9, 12.9e9),
        ("llama3-70b", 70.55e9, 70.55e9),
        ("llama3-8b", 8.03e9, 8.03e9),
        ("deepseek-v2-lite", 15.7e9, 2.66e9),
        ("gpt-oss-120b", 116.8e9, 5.7e9),
        ("nemotron3-nano", 31.6e9, 3.6e9),
    ],
)
def test_totals_match_the_published_sizes(shape, model, total, active):
    counts = count_parameters(shape(model))
    assert counts.total - counts.mtp - counts.vision == pytest.approx(total, rel=0.005)
    assert active_parameters(shape(model)) == pytest.approx(active, rel=0.02)


@given(
    st.integers(1, 12),
    st.sampled_from([1, 2, 3, 4]),
    st.sampled_from([1, 2, 3]),
    st.booleans(),
    st.integers(0, 2),
)
def test_ranks_together_hold_the_model_and_the_embeddings_copies(layers, pipeline, virtual, tied, mtp):
    model = ModelShape(
        "small", layers, 64, 4, 512, 256, num_experts=8, moe_ffn_hidden_size=32, num_dense_layers=1,
        tied_embeddings=tied, mtp_num_layers=mtp,
    )  # fmt: skip
    ranks = rank_contents(model, pipeline, virtual, None)
    held = sum(rank.split + rank.whole + rank.routed for rank in ranks)
    counts = count_parameters(model)
    assert held == counts.total - counts.embedding - counts.output
    matrices = sum(rank.vocabulary_matrices for rank in ranks)
    separate = pipeline > 1
    assert matrices == 1 + (separate if tied else 1 + (separate and mtp > 0))
    assert sum(block in rank.blocks for rank in ranks for block in set(decoder_blocks(model))) >= 1


def test_a_layout_places_layers_as_it_says():
    model = ModelShape("small", 4, 64, 4, 512, 256, mtp_num_layers=1)
    first, second = pipeline_chunks(model, 2, 1, "Et*3|tmL")
    dense = Block("mha", "dense")
    assert first.blocks == ((dense, 3),)
    assert first.embedding
    assert not first.loss
    assert second.blocks == ((dense, 1),)
    assert second.loss
    assert second.mtp_layers == 1


def test_layers_of_a_hybrid_pattern_are_single_blocks():
    model = ModelShape("hybrid", 4, 64, 4, 512, 256, num_experts=8, hybrid_pattern="ME*-")
    assert [(block.mixer, block.feed_forward) for block in decoder_blocks(model)] == [
        ("mamba", None), (None, "moe"), ("mha", None), (None, "dense"),
    ]  # fmt: skip


@pytest.mark.parametrize("layout", ["Et*4L", "Et|t|t|tL", "Et|tL"])
def test_a_layout_of_another_model_is_refused(layout):
    model = ModelShape("small", 4, 64, 4, 512, 256)
    with pytest.raises(ValueError, match="pipeline_layout"):
        pipeline_chunks(model, 2, 1, layout)


def test_a_letter_outside_the_grammar_is_refused():
    with pytest.raises(PolicyError, match="unexpected 'x'"):
        pipeline_chunks(ModelShape("small", 4, 64, 4, 512, 256), 2, 1, "Etx|tL")
