"""The pipeline-layout grammar."""

from enum import Enum

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune_policies.errors import PolicyError
from autotune_policies.layout import layout_stages, layout_text


@pytest.mark.parametrize(
    ("text", "stages"),
    [
        ("EtL", ("EtL",)),
        ("Et|tL", ("Et", "tL")),
        ("Et*3|(tt|)*2,m|L", ("Ettt", "tt", "tt", "m", "L")),
        ("E|(t|t)*2L", ("E", "t", "tt", "tL")),
        ("E||L", ("E", "", "L")),
        ("E(t)*0L", ("EL",)),
    ],
)
def test_repeats_are_written_out(text: str, stages: tuple[str, ...]) -> None:
    assert layout_stages(text) == stages


@pytest.mark.parametrize("text", ["Et L", "e", "E((t|)*2)*2L", "(t", "t*", "*3", "E\nL", "Et|2L"])
def test_everything_else_is_refused(text: str) -> None:
    with pytest.raises(PolicyError, match="unexpected"):
        layout_stages(text)


@pytest.mark.parametrize("text", ["t*99999", "(t|)*9999999999999999999999", "(t*9999)*9999", "t*9999t*9999"])
def test_a_mistyped_repeat_count_does_not_fill_the_memory(text: str) -> None:
    with pytest.raises(PolicyError, match="more than 10000 parts"):
        layout_stages(text)


class LayerType(Enum):
    embedding = 1
    decoder = 2
    mtp = 3
    loss = 4


def test_list_forms_become_text() -> None:
    assert layout_text([[LayerType.embedding, LayerType.decoder], ["decoder", "m", " loss "]]) == "Et|tmL"


def test_a_layer_type_without_a_letter_is_refused() -> None:
    with pytest.raises(PolicyError, match="'encoder'"):
        layout_text([["encoder"]])


@settings(deadline=None)
@given(st.lists(st.text("EtmL", max_size=5), min_size=1))
def test_stages_survive_text_and_back(stages: list[str]) -> None:
    assert layout_stages(layout_text(stages)) == tuple(stages)


@settings(deadline=None)
@given(st.text("EtmL|,()*0123456789 x", max_size=30))
def test_any_text_is_either_stages_or_refused(text: str) -> None:
    try:
        stages = layout_stages(text)
    except PolicyError:
        return
    assert set("".join(stages)) <= set("EtmL")
