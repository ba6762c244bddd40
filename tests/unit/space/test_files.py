"""Model and cluster files: what is shipped is valid, what is wrong is named with its line."""

import re
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from autotune import resources
from autotune.cluster import load_cluster
from autotune.errors import RequestError, SpaceError
from autotune.space.files import load_model
from autotune.space.parameters import Parameter, SearchSpace
from autotune_trials.spec import SpecError, contract_from, model_from

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
        ("when: {dispatcher: [deepep, hybridep]}", "when: {dispatcher: deep}", "wants dispatcher=deep"),
        (
            "when: {pipeline_parallel: 2}",
            "when: {pipeline_parallel: true}",
            "wants pipeline_parallel=true, legal there: [",
        ),
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
            "recipes.local.settings.num_sms: parameter 'num_sms' does not exist there",
        ),
        ("name: tiny-moe\n", "name: tiny-moe\nname: other\n", "key 'name' stands twice"),
    ],
)
def test_a_wrong_model_file_is_named_with_file_and_line(tmp_path: Path, old: str, new: str, says: str) -> None:
    path = changed(tmp_path, TINY, old, new)

    with pytest.raises(SpaceError, match=r"^file\.yaml:\d+: ") as caught:
        load_model(str(path))

    assert says in caught.value.message


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("name: tiny-moe", 'name: ""', "name: string should match"),
        ("name: tiny-moe", "name: ../up", "name: string should match"),
        ("num_layers: 4", "num_layers: -4", "shape.num_layers: 1 <= num_layers <= 10000 must hold, but got -4"),
        ("hidden_size: 128", "hidden_size: 999999999999", "<= 16777216 must hold, but got 999999999999"),
        ("num_attention_heads: 4", "num_attention_heads: 3", "hidden_size % num_attention_heads == 0 must hold"),
        ("num_query_groups: 2", "num_query_groups: 3", "num_attention_heads % num_query_groups == 0 must hold"),
        ("router_topk: 2", "router_topk: 20", "router_topk <= num_experts must hold, but got 20 > 8"),
        ("num_experts: 8", "num_experts: 0", "1 <= num_experts <= 65536 must hold, but got 0"),
        ("aux_loss_coeff: 0.01", "aux_loss_coeff: .nan", "aux_loss_coeff >= 0 and finite must hold, but got nan"),
        ("aux_loss_coeff: 0.01", "aux_loss_coeff: -1.0", "aux_loss_coeff >= 0 and finite must hold, but got -1.0"),
        ("seq_length: 128", "seq_length: 0", "contract.seq_length: 1 <= seq_length <= 1073741824 must hold, but"),
        ("seed: 1234", "seed: 12345678901234567890123", "seed <= 4294967295 must hold, but got 12345678"),
        ("warmup_steps: 3", "warmup_steps: -1", "0 <= warmup_steps <= 1000000 must hold, but got -1"),
        ("local: 2", "local: 0", "gpus.local: input should be greater than or equal to 1, but got 0"),
        ("local: 2", "local: -2", "gpus.local: input should be greater than or equal to 1, but got -2"),
        ("deadline_s: 180.0", "deadline_s: .inf", "deadline_s: input should be less than or equal to 10000000, but"),
        ("stall_s: 90.0", "stall_s: .inf", "stall_s: input should be less than or equal to 10000000, but got inf"),
        ("stall_s: 90.0", "stall_s: .nan", "stall_s: input should be less than or equal to 10000000, but got nan"),
        ("seq_length: 128", "seq_length: long", "contract.seq_length: seq_length='long' must be int"),
        ("source: natural", "source: 3", "contract.routing.source: source=3 must be str"),
        ("token_policy: dropless", "token_polcy: dropless", "contract.routing.token_polcy: unknown field"),
        ("choices: [16, 20, 24, 32]", "choices: [16, many]", "parameters.num_sms.choices[1]: num_sms='many'"),
        ("when: {pipeline_parallel: 2}", "when: {dispatcher: x}", "virtual_pipeline.when.dispatcher: wants dispatcher"),
        ("distributed_optimizer: true", "distributed_optimizer: 3", "fixed.distributed_optimizer: "),
        ("  dispatcher: alltoall", "  dispatcher: allgather", "baseline.dispatcher: the baseline's dispatcher must be"),
        ("  expert_parallel: 2", "  expert_parallel: 3", "baseline.expert_parallel: expert_parallel=3 is not one of"),
        ("{dispatcher: deepep, num_sms: 20", "{dispatcher: deepep, num_sms: 21", "seeds[1].num_sms: num_sms=21 is not"),
        ("{dispatcher: allgather,", "{dispatcher: allgather, num_sms: 16,", "seeds[0].num_sms: parameter 'num_sms'"),
    ],
)  # fmt: skip
def test_a_value_that_cannot_be_is_named_with_its_own_line(tmp_path: Path, old: str, new: str, says: str) -> None:
    path = changed(tmp_path, TINY, old, new)
    line = 1 + TINY[: TINY.index(old)].count("\n")

    with pytest.raises(SpaceError) as caught:
        load_model(str(path))

    assert caught.value.message.startswith(f"file.yaml:{line}: ")
    assert says in caught.value.message


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "file.yaml:1: is empty, expected a model file"),
        ("# only talk\n", "file.yaml:1: is empty, expected a model file"),
        ("- a\n- b\n", "file.yaml:1: is a list, expected a model file"),
        ("\nhello\n", "file.yaml:2: is a single value, expected a model file"),
    ],
)
def test_what_is_no_mapping_is_no_model_file(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "file.yaml"
    path.write_text(text, encoding="utf-8")

    with pytest.raises(SpaceError) as caught:
        load_model(str(path))

    assert caught.value.message == says


def test_an_empty_cluster_file_is_no_cluster_file(tmp_path: Path) -> None:
    path = tmp_path / "file.yaml"
    path.touch()

    with pytest.raises(SpaceError, match=r"^file\.yaml:1: is empty, expected a cluster file$"):
        load_cluster(str(path))


@given(st.integers(), st.integers())
def test_no_pair_of_experts_and_choices_is_both_accepted_and_impossible(experts: int, topk: int) -> None:
    raw = {
        "name": "m", "num_layers": 1, "hidden_size": 8, "num_attention_heads": 1, "vocab_size": 8,
        "ffn_hidden_size": 8, "num_experts": experts, "router_topk": topk,
    }  # fmt: skip
    if 1 <= topk <= experts <= 65536:
        assert model_from(raw).router_topk == topk
    else:
        with pytest.raises(SpecError, match="must hold, but got"):
            model_from(raw)


@pytest.mark.parametrize("seed", [0, 2**32 - 1])
def test_seeds_that_generators_take_are_accepted(seed: int) -> None:
    assert contract_from({"seq_length": 1, "global_batch_size": 1, "seed": seed}).seed == seed


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"num_dense_layers": 5}, "num_dense_layers <= num_layers must hold, but got 5 > 4"),
        ({"router_num_groups": 3}, "num_experts % router_num_groups == 0 must hold, but got 8 % 3 = 2"),
        ({"router_num_groups": 2, "router_group_topk": 3}, "router_group_topk <= router_num_groups must hold"),
        ({"hybrid_pattern": "M*E"}, "one letter per layer must hold, but got 3 letters and 4 layers"),
    ],
)
def test_numbers_that_contradict_each_other(change: dict[str, object], says: str) -> None:
    shape = yaml.safe_load(TINY)["shape"]

    with pytest.raises(SpecError, match=f"^model: {re.escape(says)}"):
        model_from({"name": "m", **shape, **change})


def test_heads_of_a_size_of_their_own_need_not_divide_the_width() -> None:
    shape = {**yaml.safe_load(TINY)["shape"], "num_attention_heads": 6, "kv_channels": 32}

    assert model_from({"name": "m", **shape}).kv_channels == 32


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
        ('OMP_NUM_THREADS: "1"', 'OMP_NUM_THREADS: "abc"', "env.OMP_NUM_THREADS: OMP_NUM_THREADS='abc' must"),
        ("name: local", 'name: ""', "name: string should match"),
        ("device: cpu", "device: cpu\nnic_bytes_per_s: .inf", "nic_bytes_per_s: input should be a finite number"),
        ("device: cpu", "device: cpu\npeak_flops_per_s: {bf16: -1.0}", "peak_flops_per_s.bf16: input should be"),
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
