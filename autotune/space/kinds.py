"""Kinds of trial program: what each runs, and which of them can run a model here."""

import shlex
from collections.abc import Sequence
from dataclasses import replace

from autotune.errors import RequestError
from autotune.space.files import TRIAL_KINDS, ModelFile
from autotune_policies.settings import closest
from autotune_trials.native.shapes import unsupported
from autotune_trials.programs import (
    BRIDGE_ENTRY,
    PLACEHOLDERS,
    SETTINGS_PLACEHOLDERS,
    CommandSpec,
    RecipeSpec,
    command_flaws,
    placeholders,
    recipe_flaws,
)
from autotune_trials.spec import Contract, ModelShape


def kind_of(file: ModelFile, asked: str | None) -> str:
    """The kind of trial program: as asked, else the model file's.

    Raises:
        RequestError: an unknown kind.
    """
    if asked is not None and asked not in TRIAL_KINDS:
        raise RequestError(f"trial={asked!r} is not known", hint=closest(asked, TRIAL_KINDS))
    return asked or file.trial


def recipe_of(
    kind: str, file: ModelFile, cluster: str, function: str | None, overrides: Sequence[str]
) -> RecipeSpec | None:
    """The recipe of a bridge trial: the model file's for the cluster, with what was typed; None if there is none.

    Args:
        kind: Kind of trial program.
        file: The model file.
        cluster: Name of the cluster.
        function: ``module:function`` instead of the file's.
        overrides: ``KEY=VALUE`` words after the file's.

    Raises:
        RequestError: a recipe or override for another kind of trial, or one that cannot be read.
    """
    if kind != "bridge":
        if function is not None or overrides:
            option = "--recipe" if function is not None else "--override"
            raise RequestError(f"{option} belongs to --trial bridge, but the trial kind is {kind!r}")
        return None
    known = file.recipes.get(cluster)
    if known is None and function is None:
        return None
    recipe = known.spec() if known is not None else RecipeSpec(str(function))
    recipe = replace(recipe, function=function or recipe.function, overrides=(*recipe.overrides, *overrides))
    for _, reason in recipe_flaws(recipe):
        raise RequestError(reason, hint="e.g. --recipe my_recipes:pretrain --override model.num_layers=4")
    return recipe


def command_of(kind: str, file: ModelFile, text: str | None) -> CommandSpec | None:
    """The command of a command trial: as typed, split as a shell would, else the model file's; None if there is none.

    Raises:
        RequestError: a command for another kind of trial, or one that cannot be read.
    """
    if kind != "command":
        if text is not None:
            raise RequestError(f"--command belongs to --trial command, but the trial kind is {kind!r}")
        return None
    known = file.command.spec() if file.command is not None else None
    if text is None:
        return known
    try:
        words = tuple(shlex.split(text))
    except ValueError as error:
        raise RequestError(f"--command {text!r} cannot be split into words: {error}") from error
    command = replace(known, words=words) if known is not None else CommandSpec(words)
    for _, reason in command_flaws(command):
        raise RequestError(f"--command: {reason}")
    return command


def contract_for(kind: str, contract: Contract) -> Contract:
    """The contract as trials of this kind can hold it.

    Bridge's mock data count token ids upwards, so random ones cannot be had there. What a log says of the first
    iteration is no measurement, so a warm-up of at least one step stands before those that are.
    """
    if kind == "native":
        return contract
    routing = contract.routing
    if kind == "bridge" and routing.data_condition == "mock_random":
        routing = replace(routing, data_condition="mock_arange")
    return replace(contract, routing=routing, warmup_steps=max(1, contract.warmup_steps))


def require_runnable(
    kind: str,
    shape: ModelShape,
    *,
    recipe: RecipeSpec | None = None,
    command: CommandSpec | None = None,
    device: str = "cuda",
) -> None:
    """Nothing, if trials of this kind can be started for this model.

    Args:
        kind: Kind of trial program.
        shape: Architecture.
        recipe: What a bridge trial runs.
        command: What a command trial runs.
        device: ``cuda`` or ``cpu``.

    Raises:
        RequestError: nothing to run, a command that the settings cannot reach, a device that the program cannot use,
            or a model that the native trainer cannot build.
    """
    missing = unsupported(shape)
    if kind == "native" and missing:
        raise RequestError(
            f"model {shape.name!r} cannot be trained with --trial native: "
            f"the native trainer does not build {', '.join(missing)}"
        )
    if kind == "bridge":
        if recipe is None:
            raise RequestError(
                f"model {shape.name!r} has no recipe for this cluster", hint="name one with --recipe MODULE:FUNCTION"
            )
        if device == "cpu" and recipe.entry == BRIDGE_ENTRY:
            raise RequestError(
                f"trial kind 'bridge' cannot train on a CPU: {BRIDGE_ENTRY} needs CUDA",
                hint=None if missing else "use --trial native",
            )
    if kind == "command" and command is None:
        known = " ".join(f"{{{name}}}" for name in PLACEHOLDERS)
        raise RequestError(
            f"model {shape.name!r} has no command to run",
            hint=f"give one with --command 'torchrun ... {{arguments}}'; it may hold {known}",
        )
    if kind == "command" and command is not None and not {*SETTINGS_PLACEHOLDERS} & {*placeholders(command.words)}:
        raise RequestError(
            f"the command {' '.join(command.words)!r} has no place for a trial's settings, so all trials would run "
            "the same",
            hint=f"put one of {', '.join(f'{{{name}}}' for name in SETTINGS_PLACEHOLDERS)} into it",
        )
