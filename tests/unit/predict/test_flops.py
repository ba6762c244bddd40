import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.predict.flops import block_flops, flops_per_step, flops_per_token
from autotune.predict.layers import Block
from autotune_trials.spec import ModelShape

SMALL = ModelShape("small", 4, 64, 4, 512, 256, num_query_groups=2, num_experts=8, moe_ffn_hidden_size=32)


# Published throughputs in FLOP/s over tokens/s, at 4,096 tokens per sequence.
@pytest.mark.parametrize(
    ("model", "published"),
    [
        ("dsv3", 260.0e9),
        ("qwen3-235b", 148.0e9),
        ("qwen3-30b", 23.0e9),
        ("kimi-k2", 204.4e9),
        ("qwen35-35b", 22.47e9),
        ("dsv4-flash", 90.8e9),
    ],
)
def test_flops_per_token_match_published_throughputs(shape, model, published):
    limit = 0.01 if model == "dsv4-flash" else 0.005
    assert flops_per_token(shape(model), 4096).total == pytest.approx(published, rel=limit)


def test_multi_token_prediction_is_a_twenty_fifth_of_deepseek_v3(shape):
    counts = flops_per_token(shape("dsv3"), 4096)
    assert counts.mtp + counts.logits / 2 == pytest.approx(0.04 * counts.total, rel=0.05)


def test_a_grouped_query_layer_counts_what_its_matrices_say():
    counts = block_flops(SMALL, Block("mha", "moe"), 128)
    assert counts.mixer == 64 * (64 + 2 * 32) + 64 * 64
    assert counts.core_attention == 128 * 64  # half of query-key plus half of score-value
    assert counts.routed == 3 * 64 * 32 * 2


def test_a_window_counts_its_own_tokens():
    near = block_flops(SMALL, Block("mha", "moe", window=16), 128).core_attention
    far = block_flops(SMALL, Block("mha", "moe", window=128), 128).core_attention
    # The first 16 tokens see 8 on average, the other 112 see 16.
    assert near / far == pytest.approx((16 * 8 + 112 * 16) / (128 * 64))


@given(st.integers(1, 64), st.integers(1, 512))
def test_a_step_is_linear_in_sequences_and_only_attention_grows_with_their_length(batch, blocks):
    seq_length = 16 * blocks
    once, twice = flops_per_token(SMALL, seq_length), flops_per_token(SMALL, 2 * seq_length)
    assert twice.core_attention == pytest.approx(2 * once.core_attention)
    assert twice.total - twice.core_attention == pytest.approx(once.total - once.core_attention)
    assert flops_per_step(SMALL, seq_length, batch) == pytest.approx(batch * seq_length * once.total)
