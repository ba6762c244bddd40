"""Kinds of trial program that can be started, and models that the native trainer can build."""

import pytest

from autotune import resources
from autotune.errors import RequestError
from autotune.request import load_request
from autotune.space.files import load_model
from autotune.space.kinds import require_runnable
from autotune_trials.native.shapes import unsupported


@pytest.mark.parametrize("name", resources.names("models"))
def test_a_model_is_native_exactly_where_the_native_trainer_can_build_it(name: str) -> None:
    model = load_model(name)
    assert (model.trial == "native") == (unsupported(model.model_shape()) == [])
    if model.trial == "bridge" and name != "gpt-oss-20b":  # its recipes were published for other precisions only
        assert model.recipes


def test_a_kind_that_does_not_run_yet_names_the_one_that_does() -> None:
    with pytest.raises(RequestError, match=r"^trial kind 'bridge' of model 'dsv3' does not run yet$") as caught:
        require_runnable("bridge", load_model("dsv3").model_shape())
    assert caught.value.hint == "use --trial native"


def test_the_hint_says_what_the_native_trainer_lacks() -> None:
    with pytest.raises(RequestError, match="'command'") as caught:
        require_runnable("command", load_model("qwen3-next").model_shape())
    assert "--trial native is the one that does, but" in str(caught.value.hint)
    assert "gated delta nets" in str(caught.value.hint)


def test_native_is_refused_for_a_model_that_it_would_build_wrongly() -> None:
    with pytest.raises(RequestError, match="does not build sliding windows, attention sinks, biases"):
        require_runnable("native", load_model("gpt-oss-20b").model_shape())


def test_the_kind_can_be_asked_for_and_is_the_files_otherwise() -> None:
    assert load_request("qwen3-next", "h100").program == "bridge"
    assert load_request("qwen3-next", "h100", trial="native").program == "native"
    with pytest.raises(RequestError, match="trial='nativ' is not known") as caught:
        load_request("qwen3-next", "h100", trial="nativ")
    assert caught.value.hint == "did you mean native?"
