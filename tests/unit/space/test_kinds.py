"""Kinds of trial program that can be started, and models that the native trainer can build."""

from pathlib import Path

import pytest

from autotune import resources
from autotune.errors import RequestError
from autotune.request import load_request, stored_request
from autotune.space.files import load_model
from autotune.space.kinds import require_runnable
from autotune_trials.native.shapes import unsupported
from autotune_trials.programs import CommandSpec, RecipeSpec


@pytest.mark.parametrize("name", resources.names("models"))
def test_a_model_is_native_exactly_where_the_native_trainer_can_build_it(name: str) -> None:
    model = load_model(name)
    assert (model.trial == "native") == (unsupported(model.model_shape()) == [])
    if model.trial == "bridge" and name != "gpt-oss-20b":  # its recipes were published for other precisions only
        assert model.recipes


def test_a_bridge_trial_needs_a_recipe_for_the_cluster() -> None:
    shape = load_model("dsv3").model_shape()
    with pytest.raises(RequestError, match=r"^model 'dsv3' has no recipe for this cluster$") as caught:
        require_runnable("bridge", shape)
    assert caught.value.hint == "name one with --recipe MODULE:FUNCTION"
    require_runnable("bridge", shape, recipe=load_request("dsv3", "gb300", trial="bridge").recipe)


def test_bridges_own_loop_needs_cuda_and_anothers_may_not() -> None:
    shape = load_model("tiny-moe").model_shape()
    with pytest.raises(RequestError, match=r"cannot train on a CPU: megatron\.bridge\..+ needs CUDA"):
        require_runnable("bridge", shape, recipe=RecipeSpec("my:recipe"), device="cpu")
    require_runnable("bridge", shape, recipe=RecipeSpec("my:recipe", entry="my:loop"), device="cpu")


def test_a_command_trial_needs_a_command_and_says_what_it_may_hold() -> None:
    with pytest.raises(RequestError, match=r"^model 'tiny-moe' has no command to run$") as caught:
        require_runnable("command", load_model("tiny-moe").model_shape())
    assert "{arguments}" in str(caught.value.hint)
    assert "{resolved}" in str(caught.value.hint)


@pytest.mark.parametrize(("word", "fits"), [("{arguments}", True), ("x={policy}", True), ("{steps}", False)])
def test_a_command_that_the_settings_cannot_reach_is_refused(word: str, fits: bool) -> None:
    shape = load_model("tiny-moe").model_shape()
    if fits:
        require_runnable("command", shape, command=CommandSpec(("python", word)))
        return
    with pytest.raises(RequestError, match="has no place for a trial's settings") as caught:
        require_runnable("command", shape, command=CommandSpec(("python", word)))
    assert caught.value.hint == "put one of {arguments}, {overrides}, {policy} into it"


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"recipe": "a:b"}, "--recipe belongs to --trial bridge, but the trial kind is 'native'"),
        ({"override": ["a=b"]}, "--override belongs to --trial bridge, but the trial kind is 'native'"),
        ({"command": "x"}, "--command belongs to --trial command, but the trial kind is 'native'"),
        ({"trial": "bridge", "recipe": "nothing"}, "function='nothing' must be MODULE:FUNCTION"),
        ({"trial": "bridge", "recipe": "a:b", "override": ["x"]}, "override 'x' must be KEY=VALUE"),
        ({"trial": "command", "command": "a 'b"}, "cannot be split into words: No closing quotation"),
        ({"trial": "command", "command": "a {stepz}"}, "--command: {stepz} is not known; known: {arguments}"),
        ({"trial": "command", "command": ""}, "--command: the command is empty"),
    ],
)
def test_a_recipe_or_command_that_cannot_be_is_one_line(asked: dict[str, object], says: str) -> None:
    with pytest.raises(RequestError) as caught:
        load_request("tiny-moe", "local", **asked)  # type: ignore[arg-type]
    assert says in caught.value.message


def test_what_was_typed_reaches_the_trial_and_the_stored_request(tmp_path: Path) -> None:
    request = load_request(
        "qwen3-next", "h100", trial="bridge", override=["model.seed=1"], home=tmp_path, study="typed"
    )  # fmt: skip
    request.folder.mkdir()
    (request.folder / "request.yaml").write_text(request.to_yaml(), encoding="utf-8")

    spec = request.spec(0, request.space.baseline)

    assert spec.recipe is not None
    assert spec.recipe.function == load_model("qwen3-next").recipes["h100"].function
    assert spec.recipe.overrides == ("model.seed=1",)
    assert spec.contract.routing.data_condition == "mock_arange"
    assert stored_request("typed", tmp_path).recipe == spec.recipe


def test_the_model_files_command_is_the_default(tmp_path: Path) -> None:
    file = tmp_path / "own.yaml"
    text = resources.locate("models", "tiny-moe").read_text(encoding="utf-8")
    file.write_text(text + "command:\n  words: run --x '{steps} a'\n  per: node\n", encoding="utf-8")

    assert load_request(str(file), "local").command is None
    assert load_request(str(file), "local", trial="command").command == CommandSpec(("run", "--x", "{steps} a"), "node")
    typed = load_request(str(file), "local", trial="command", command="other {seed}")
    assert typed.command == CommandSpec(("other", "{seed}"), "node")


def test_a_wrong_command_in_a_model_file_names_its_line(tmp_path: Path) -> None:
    file = tmp_path / "own.yaml"
    text = resources.locate("models", "tiny-moe").read_text(encoding="utf-8")
    file.write_text(text + "command:\n  words: run {stepz}\n", encoding="utf-8")

    line = text.count("\n") + 2
    with pytest.raises(RequestError, match=rf"own\.yaml:{line}: .*\{{stepz\}} is not known"):
        load_model(str(file))


def test_native_is_refused_for_a_model_that_it_would_build_wrongly() -> None:
    with pytest.raises(RequestError, match="does not build sliding windows, attention sinks, biases"):
        require_runnable("native", load_model("gpt-oss-20b").model_shape())


def test_the_kind_can_be_asked_for_and_is_the_files_otherwise() -> None:
    assert load_request("qwen3-next", "h100").program == "bridge"
    assert load_request("qwen3-next", "h100", trial="native").program == "native"
    with pytest.raises(RequestError, match="trial='nativ' is not known") as caught:
        load_request("qwen3-next", "h100", trial="nativ")
    assert caught.value.hint == "did you mean native?"
