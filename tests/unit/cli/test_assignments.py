"""Settings and versions from the command line: everything that ``plan`` prints is taken, and slips are refused."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.cli.assignments import assigned, read_settings, versions
from autotune.cli.tables import value_text
from autotune.errors import RequestError
from autotune_policies.errors import PolicyError
from autotune_policies.settings import SETTINGS, Setting, Value


def values(row: Setting) -> st.SearchStrategy[Value]:
    some: st.SearchStrategy[Value]
    if row.kind == "list":
        some = st.lists(st.sampled_from(row.choices), max_size=3, unique=True)  # type: ignore[assignment]
    elif row.kind == "bool":
        some = st.booleans()
    elif row.kind == "int":
        some = st.integers(max(row.minimum, 1), 10**6)
    elif row.kind == "float":
        some = st.floats(1e-12, 1e12)
    else:
        some = st.sampled_from(row.choices or ("Et*3|(tt|)*29m|L",))
    return st.one_of(st.none(), some) if row.optional else some


@given(st.data())
def test_a_value_as_plan_prints_it_is_read_back(data: st.DataObject) -> None:
    row = data.draw(st.sampled_from(list(SETTINGS.values())))
    value = data.draw(values(row))
    assert assigned([f"{row.name}={value_text(value)}"]) == {row.name: value}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("offload_modules=expert_fc1,moe_act", ["expert_fc1", "moe_act"]),
        ("offload_modules=[expert_fc1, moe_act]", ["expert_fc1", "moe_act"]),
        ("offload_modules=none", []),
        ("recompute_granularity=none", None),
        ("recompute_granularity=null", None),
        ("cuda_graph_impl=none", "none"),
        ("rank_capacity_factor=1e-9", 1e-9),
    ],
)
def test_lists_nothing_and_small_numbers(text: str, value: Value) -> None:
    assert list(assigned([text]).values()) == [value]


def test_a_setting_that_stands_twice_is_refused() -> None:
    with pytest.raises(RequestError, match="--set num_sms stands twice"):
        assigned(["num_sms=16", "num_sms=20"])


def test_a_file_of_settings_is_json_or_yaml_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "best.json"
    path.write_text('{"num_sms": 16, "offload_modules": ["moe_act"]}')
    assert read_settings(path) == {"num_sms": 16, "offload_modules": ["moe_act"]}
    for text, message in (("[1]", "must be a mapping"), ("{num_smss: 16}", "unknown setting 'num_smss'")):
        path.write_text(text)
        with pytest.raises(RequestError, match=message):
            read_settings(path)
    path.write_text("{num_sms: many}")
    with pytest.raises(PolicyError, match="is not a whole number"):
        read_settings(path)
    with pytest.raises(RequestError, match="No such file"):
        read_settings(tmp_path / "none.json")


@pytest.mark.parametrize(
    ("texts", "message", "hint"),
    [
        (["megatron=0.16.1"], "--stack megatron: no rule asks for its version", "did you mean megatron_core"),
        (["torch=2.9", "torch=2.8"], "--stack torch stands twice", "once"),
        (["torch=new"], "a version begins with a number", "--stack torch"),
        (["torch="], "has no version", "--stack"),
    ],
)
def test_a_version_of_what_nobody_asks_for_is_refused(texts: list[str], message: str, hint: str) -> None:
    with pytest.raises(RequestError, match=message) as refused:
        versions(texts)
    assert hint in (refused.value.hint or "")
    assert versions(["transformer-engine=2.9"]) == {"transformer_engine": "2.9"}
