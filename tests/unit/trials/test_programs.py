"""Recipes and commands of trials: what they may be, and how the words are filled in."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune_policies import load_policy
from autotune_policies.settings import resolve
from autotune_trials.command.words import command_line
from autotune_trials.programs import PLACEHOLDERS, CommandSpec, RecipeSpec, command_flaws, fill, placeholders
from autotune_trials.spec import Contract, GangShape, ModelShape, SpecError, TrialSpec, command_from, recipe_from

MODEL = ModelShape("tiny", 2, 64, 4, 512, 128, num_experts=4)
LAUNCH = {"RANK": "5", "LOCAL_RANK": "1", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}


def spec_of(*words: str) -> TrialSpec:
    return TrialSpec(
        "study", 3, MODEL, Contract(128, 8, steps=6), resolve({"expert_parallel": 2, "micro_batch_size": 2}),
        GangShape(2, 4), program="command", command=CommandSpec(words),
    )  # fmt: skip


def test_every_plain_placeholder_is_filled(tmp_path: Path) -> None:
    plain = [name for name in PLACEHOLDERS if name not in ("arguments", "overrides", "policy", "resolved")]

    line = command_line(spec_of(*(f"{name}={{{name}}}" for name in plain)), tmp_path, LAUNCH)

    assert dict(word.split("=") for word in line) == {
        "steps": "6", "seq_length": "128", "global_batch_size": "8", "micro_batch_size": "2", "seed": "1234",
        "world_size": "8", "ranks_per_node": "4", "num_nodes": "2", "node_rank": "1", "master_addr": "10.0.0.1",
        "master_port": "29500",
    }  # fmt: skip


@pytest.mark.trial
def test_arguments_become_several_words_and_hold_the_contracts_routing(tmp_path: Path) -> None:
    line = command_line(spec_of("python", "{arguments}", "--note={arguments}"), tmp_path, LAUNCH)

    at = line.index("--expert-model-parallel-size")
    assert line[at + 1] == "2"
    assert "--moe-router-force-load-balancing" in line
    assert line[-1] == "--note=" + " ".join(line[1:-1])


@pytest.mark.trial
def test_the_policy_file_is_a_policy_that_claims_nothing(tmp_path: Path) -> None:
    [path] = command_line(spec_of("{policy}"), tmp_path, LAUNCH)

    policy = load_policy(path)
    assert policy.settings["expert_parallel"] == 2
    assert policy.evidence["kind"] == "predicted"


@given(st.lists(st.sampled_from(["a b", "--x={steps}", "{steps}{seed}", "{}", "{Upper}", '{"k": 1}', "{arguments}"])))
def test_only_placeholders_are_touched(words: list[str]) -> None:
    filled = fill(words, {"steps": "6", "seed": "7", "arguments": ["p", "q"]})

    expected: list[str] = []
    for word in words:
        known = {"--x={steps}": ["--x=6"], "{steps}{seed}": ["67"], "{arguments}": ["p", "q"]}
        expected += known.get(word, [word])
    assert filled == expected


def test_an_unknown_placeholder_is_a_flaw_and_json_is_none() -> None:
    assert placeholders(["{argments}", '{"a": 1}']) == ["argments"]
    [(field, reason)] = command_flaws(CommandSpec(("run", "{argments}")))
    assert field == "words"
    assert reason.startswith("{argments} is not known; known: {arguments}, ")


@pytest.mark.parametrize("per", ["rank", "node"])
def test_a_command_survives_its_text(per: str) -> None:
    spec = replace(spec_of("a", "{steps}"), command=command_from({"words": ["a", "{steps}"], "per": per}))
    assert TrialSpec.from_json(spec.to_json()) == spec


def test_a_recipe_survives_its_text_and_names_its_modules() -> None:
    recipe = RecipeSpec("my.recipes:tiny", ("model.num_layers=2",), entry="my.loop:train")
    spec = replace(spec_of("x"), program="bridge", command=None, recipe=recipe)

    assert TrialSpec.from_json(spec.to_json()) == spec
    assert recipe.modules == ("my.loop", "megatron.bridge.training.gpt_step", "my.recipes")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"program": "brigde"}, "program='brigde' is not known; did you mean bridge?"),
        ({"program": "native"}, "field 'command' does not belong: program=native"),
        ({"command": None}, "field 'command' is missing: program=command"),
        ({"command": {"words": []}}, "command: the command is empty"),
        ({"command": {"words": "a b"}}, "words='a b' must be a list of texts"),
        ({"command": {"words": ["a"], "per": "gang"}}, "command: per='gang' must be rank or node"),
        ({"recipe": {"function": "x:y"}}, "field 'recipe' does not belong: program=command"),
        ({"recipe": {"function": "nothing"}}, "recipe: function='nothing' must be MODULE:FUNCTION"),
    ],
)
def test_what_does_not_fit_together_is_refused_by_name(change: dict[str, object], says: str) -> None:
    document = {**json.loads(spec_of("x").to_json()), **change}
    with pytest.raises(SpecError) as caught:
        TrialSpec.from_json(json.dumps(document))
    assert says in str(caught.value)


def test_an_override_is_key_and_value() -> None:
    with pytest.raises(SpecError, match="override 'model' must be KEY=VALUE"):
        recipe_from({"function": "a:b", "overrides": ["model"]})
