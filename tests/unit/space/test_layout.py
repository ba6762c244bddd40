"""Generated pipeline layouts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.space.layout import EVEN, GENERATED, LIGHT_LAST, generate
from autotune_policies.layout import layout_stages


def test_an_even_split_needs_no_layout() -> None:
    assert generate(EVEN, num_layers=8, stages=4) is None


def test_layers_left_over_stay_away_from_embedding_and_loss() -> None:
    assert generate(EVEN, num_layers=10, stages=4) == "Ett|ttt|ttt|ttL"


def test_multi_token_prediction_sits_beside_the_loss() -> None:
    assert generate(EVEN, num_layers=4, stages=2, mtp_num_layers=1) == "Ett|ttmL"


def test_light_last_takes_one_layer_from_the_loss_stage() -> None:
    assert generate(LIGHT_LAST, num_layers=4, stages=2) == "Ettt|tL"


def test_an_unknown_kind_names_the_legal_ones() -> None:
    with pytest.raises(ValueError, match="must be one of even, light_last"):
        generate("heavy", num_layers=4, stages=2)


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
