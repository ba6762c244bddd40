"""Model and cluster files: what is shipped is valid, what is wrong is named with its line."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune import resources
from autotune.cluster import load_cluster
from autotune.errors import RequestError, SpaceError
from autotune.space.files import load_model
from autotune.space.parameters import Parameter, SearchSpace

TINY = resources.locate("models", "tiny-moe").read_text(encoding="utf-8")
LOCAL = resources.locate("clusters", "local").read_text(encoding="utf-8")


def changed(tmp_path: Path, text: str, old: str, new: str) -> Path:
    assert old in text
    path = tmp_path / "file.yaml"
    path.write_text(text.replace(old, new, 1), encoding="utf-8")
    return path


@pytest.mark.parametrize("name", resources.names("models"))
def test_every_shipped_model_is_valid_and_has_an_alltoall_baseline(name: str) -> None:
    model = load_model(name)

    assert model.name == name
    assert model.search_space().baseline.get("dispatcher", "alltoall") == "alltoall"
    assert model.model_shape().name == name


@pytest.mark.parametrize("name", resources.names("clusters"))
def test_every_shipped_cluster_is_valid(name: str) -> None:
    assert load_cluster(name).name == name


def test_an_unknown_model_names_the_closest() -> None:
    with pytest.raises(RequestError, match="unknown model 'tiny-mo'") as caught:
        load_model("tiny-mo")

    assert caught.value.hint == "did you mean tiny-moe?"


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("choices: [1, 2, 4]", "choices: [1, 2, 4", "expected ',' or ']'"),
        ("  expert_parallel:\n", "  expert_paralel:\n", "unknown setting 'expert_paralel'"),
        ("choices: [16, 20, 24, 32]", "choices: []", "num_sms.choices: list should have at least 1 item"),
        ("choices: [16, 20, 24, 32]", "choises: [16]", "unknown key 'parameters.num_sms.choises'"),
        ("when: {dispatcher: [deepep, hybridep]}", "when: {dispatcher: deep}", "wants dispatcher='deep'"),
        ("when: {pipeline_parallel: 2}", "when: {tensor_parallel: 2}", "not a parameter further up"),
        ("  num_layers: 4\n", "", "field 'num_layers' is missing"),
        ("  num_layers: 4\n", "  num_layers: four\n", "num_layers='four' must be int"),
        ("  steps: 10\n", "  steps: 4\n", "steps - warmup_steps must be at least 2, but got 4 - 3"),
        ("baseline:\n  dispatcher: alltoall", "baseline:\n  dispatcher: allgather", "dispatcher must be alltoall"),
        ("stall_s: 90.0", "stall_s: -1.0", "stall_s: input should be greater than 0, but got -1.0"),
        ("choices: [even, light_last]", "choices: [even, 'Etq|L']", "unexpected 'q'"),
        ("choices: [false, true]", "choices: [false, false]", "a choice stands twice"),
        ("trial: native", "trial: torchtitan", "trial: input should be 'native', 'bridge' or 'command'"),
        ("gpus:\n", "recipes: {local: {function: no_module}}\ngpus:\n", "recipes.local.function: string should match"),
        (
            "gpus:\n",
            "recipes: {local: {function: 'm:f', settings: {num_sms: 20}}}\ngpus:\n",
            "recipes.local: parameter 'num_sms' does not exist there",
        ),
        ("name: tiny-moe\n", "name: tiny-moe\nname: other\n", "key 'name' stands twice"),
    ],
)
def test_a_wrong_model_file_is_named_with_file_and_line(tmp_path: Path, old: str, new: str, says: str) -> None:
    path = changed(tmp_path, TINY, old, new)

    with pytest.raises(SpaceError, match=r"^file\.yaml:\d+: ") as caught:
        load_model(str(path))

    assert says in caught.value.message


def test_the_line_is_the_one_of_the_mistake(tmp_path: Path) -> None:
    path = changed(tmp_path, TINY, "choices: [16, 20, 24, 32]", "choises: [16]")
    line = 1 + path.read_text(encoding="utf-8")[: path.read_text(encoding="utf-8").index("choises")].count("\n")

    with pytest.raises(SpaceError, match=rf"^file\.yaml:{line}: ") as caught:
        load_model(str(path))

    assert caught.value.hint == "did you mean choices?"


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('OMP_NUM_THREADS: "1"', 'LD_PRELOAD: "x.so"', "LD_PRELOAD"),
        ('OMP_NUM_THREADS: "1"', "OMP_NUM_THREADS: 1", "env.OMP_NUM_THREADS"),
        ("device: cpu", "device: tpu", "device"),
        ("gpus_per_node: 8", "gpus_per_node: 0", "gpus_per_node"),
        ("note:", "parameters: {cuda_allocator: [native]}\nnote:", "cuda_allocator='native' is not legal"),
        ("note:", "parameters: {layernorm_sm_margin: [0, 0]}\nnote:", "choices must be there and differ"),
        ("note:", "parameters: {layernorm_sm_margin: []}\nnote:", "choices must be there and differ"),
    ],
)
def test_a_wrong_cluster_file_is_named_with_file_and_line(tmp_path: Path, old: str, new: str, says: str) -> None:
    path = changed(tmp_path, LOCAL, old, new)

    with pytest.raises(SpaceError, match=r"^file\.yaml:\d+: ") as caught:
        load_cluster(str(path))

    assert says in caught.value.message


def test_gpus_come_in_whole_nodes() -> None:
    cluster = load_cluster("gb300")

    assert cluster.nodes(256) == (64, 4)
    assert cluster.nodes(2) == (1, 2)
    with pytest.raises(SpaceError, match="gpus=10 is not a multiple of the 4 GPUs") as caught:
        cluster.nodes(10)
    assert caught.value.hint == "try --gpus 8"


values = st.lists(st.integers(1, 3), min_size=1, max_size=3, unique=True)


@given(first=values, second=values, third=values, data=st.data())
def test_every_point_of_a_space_respects_its_conditions(
    first: list[int], second: list[int], third: list[int], data: st.DataObject
) -> None:
    wanted = data.draw(st.sampled_from(first))
    space = SearchSpace(
        parameters=(
            Parameter("expert_parallel", tuple(first)),
            Parameter("num_sms", tuple(second), when={"expert_parallel": (wanted,)}),
            Parameter("micro_batch_size", tuple(third)),
        ),
        fixed={},
        baseline={},
    )

    points = list(space.points())

    assert len({tuple(sorted(point.items())) for point in points}) == len(points)  # type: ignore[type-var]
    assert len(points) == (len(first) - 1 + len(second)) * len(third)
    assert all(("num_sms" in point) == (point["expert_parallel"] == wanted) for point in points)
    assert len(points) <= space.size()
