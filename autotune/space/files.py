"""Model files: architecture, contract and search space of one model family."""

import json
import shlex
from collections.abc import Iterable
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from autotune import resources, validation
from autotune.space.effort import ConfirmPlan
from autotune.space.layout import GENERATED
from autotune.space.parameters import Parameter, Point, SearchSpace
from autotune_policies.layout import layout_stages
from autotune_policies.settings import Value, check_value
from autotune_trials.programs import (
    BRIDGE_ENTRY,
    BRIDGE_FORWARD_STEP,
    CommandSpec,
    RecipeSpec,
    command_flaws,
    recipe_flaws,
)
from autotune_trials.spec import Contract, ModelShape, SpecError, contract_from, model_from

TrialKind = Literal["native", "bridge", "command"]
TRIAL_KINDS: tuple[TrialKind, ...] = ("native", "bridge", "command")

MAX_WAIT_S = 1.0e7
"""Longest deadline, four months: no trial takes so long, and timers of the operating system still count that far."""


class ParameterFile(validation.Validated):
    """One parameter: its choices, and where it exists."""

    choices: list[Any] = Field(min_length=1)
    when: dict[str, Any] = Field(default_factory=dict)


class RecipeFile(validation.Validated):
    """A vendor's recipe for one cluster: what a bridge trial runs, and where a search may start.

    Attributes:
        function: ``module:function`` that returns the training program's configuration.
        settings: The recipe's settings as a point of the space; empty where it was published for another contract.
        overrides: ``KEY=VALUE`` words set on the configuration before a trial's settings.
        entry: ``module:function`` that trains, instead of Megatron-Bridge's pretrain.
        forward_step: ``module:function`` of a forward pass, instead of Megatron-Bridge's for GPT models.
    """

    function: str = Field(pattern=r"^[\w.]+:\w+$")
    settings: dict[str, Any] = Field(default_factory=dict)
    overrides: list[str] = Field(default_factory=list)
    entry: str = BRIDGE_ENTRY
    forward_step: str = BRIDGE_FORWARD_STEP

    @model_validator(mode="after")
    def _is_a_recipe(self) -> "RecipeFile":
        for name, reason in recipe_flaws(self.spec()):
            raise validation.Misplaced(reason, (name,))
        return self

    def spec(self) -> RecipeSpec:
        """The recipe as the trial program reads it."""
        return RecipeSpec(self.function, tuple(self.overrides), self.entry, self.forward_step)


class CommandFile(validation.Validated):
    """What a command trial runs.

    Attributes:
        words: Program and arguments, with placeholders such as ``{arguments}``; one text is split as a shell would.
        per: ``rank`` (a process for each, under the launch variables) or ``node`` (it starts the ranks itself).
    """

    words: list[str] | str
    per: Literal["rank", "node"] = "rank"

    @model_validator(mode="after")
    def _is_a_command(self) -> "CommandFile":
        try:
            flaws = list(command_flaws(self.spec()))
        except ValueError as error:
            raise validation.Misplaced(f"cannot be split into words: {error}", ("words",)) from error
        for name, reason in flaws:
            raise validation.Misplaced(reason, (name,))
        return self

    def spec(self) -> CommandSpec:
        """The command as the trial program reads it."""
        words = shlex.split(self.words) if isinstance(self.words, str) else self.words
        return CommandSpec(tuple(words), self.per)


class ModelFile(validation.Validated):
    """A model file (``search_spaces/models/*.yaml``).

    Attributes:
        name: Model name.
        trial: Default kind of trial program.
        shape: The architecture (fields of ``autotune_trials.spec.ModelShape``).
        contract: What all trials hold fixed (fields of ``autotune_trials.spec.Contract``).
        gpus: Default GPUs by cluster name.
        recipes: Vendor recipes by cluster name.
        command: What a command trial runs.
        parameters: What may vary, in order; conditions look up only.
        fixed: Settings that do not vary.
        baseline: First point; must be an alltoall one.
        seeds: Further points to try before the sampler has a say.
        deadline_s: A trial is killed after so long.
        stall_s: A rank that reports nothing for so long hangs.
        confirm: How the finalists of a study are measured again.
    """

    schema_: Literal["autotune.model/v1"] = Field(alias="schema")
    name: validation.Name
    trial: TrialKind = "native"
    shape: dict[str, Any]
    contract: dict[str, Any]
    gpus: dict[str, Annotated[int, Field(ge=1, le=1_000_000)]] = Field(default_factory=dict)
    recipes: dict[str, RecipeFile] = Field(default_factory=dict)
    command: CommandFile | None = None
    parameters: dict[str, ParameterFile]
    fixed: dict[str, Any] = Field(default_factory=dict)
    baseline: dict[str, Any]
    seeds: list[dict[str, Any]] = Field(default_factory=list)
    deadline_s: float = Field(gt=0, le=MAX_WAIT_S, default=1800.0)
    stall_s: float = Field(gt=0, le=MAX_WAIT_S, default=600.0)
    confirm: ConfirmPlan = Field(default_factory=ConfirmPlan)

    @field_validator("shape")
    @classmethod
    def _shape_is_known(cls, shape: dict[str, Any]) -> dict[str, Any]:
        _model(shape, "")
        return shape

    @field_validator("contract")
    @classmethod
    def _contract_is_known(cls, contract: dict[str, Any]) -> dict[str, Any]:
        _contract(contract)
        return contract

    @field_validator("fixed")
    @classmethod
    def _fixed_are_settings(cls, fixed: dict[str, Any]) -> dict[str, Any]:
        return {name: _value(name, value, name) for name, value in fixed.items()}

    @field_validator("parameters")
    @classmethod
    def _parameters_are_settings(cls, parameters: dict[str, ParameterFile]) -> dict[str, ParameterFile]:
        check_parameters(parameters)
        return parameters

    @model_validator(mode="after")
    def _points_are_in_the_space(self) -> "ModelFile":
        parameters = parameters_of(self.parameters)
        recipes = ((("recipes", name, "settings"), recipe.settings) for name, recipe in self.recipes.items())
        seeds = ((("seeds", index), seed) for index, seed in enumerate(self.seeds))
        for path, point in [(("baseline",), self.baseline), *seeds, *recipes]:
            with validation.at(*path):
                complete_point(parameters, point)
        part, settings = ("baseline", self.baseline) if "dispatcher" in self.baseline else ("fixed", self.fixed)
        if settings.get("dispatcher", "alltoall") != "alltoall":
            message = "the baseline's dispatcher must be alltoall, the one that is known to be correct"
            raise validation.Misplaced(message, (part, "dispatcher"))
        return self

    def model_shape(self) -> ModelShape:
        """The architecture as the trial programs read it."""
        return _model(self.shape, self.name)

    def default_contract(self) -> Contract:
        """The contract of the file."""
        return _contract(self.contract)

    def search_space(self) -> SearchSpace:
        """What may vary wherever it is trained; :func:`autotune.space.compose.compose` adds the cluster's share."""
        parameters = parameters_of(self.parameters)
        return SearchSpace(
            parameters=parameters,
            fixed=dict(self.fixed),
            baseline=complete_point(parameters, self.baseline),
            seeds=tuple(complete_point(parameters, seed) for seed in self.seeds),
        )


def load_model(name: str) -> ModelFile:
    """A shipped model by name, or a user's own file by path.

    Raises:
        RequestError: unknown name (closest ones in the hint) or a wrong file (with its line).
    """
    return validation.load(resources.locate("models", name), ModelFile)


def complete_point(parameters: tuple[Parameter, ...], given: dict[str, Any]) -> Point:
    """A point with the parameters left out at their first choice; inactive ones are absent.

    Raises:
        Misplaced: a parameter that the space lacks, that is inactive there, or a value it does not offer.
    """
    point: Point = {}
    for parameter in parameters:
        if parameter.active(point):
            value = given.get(parameter.name, parameter.choices[0])
            if not _offered(value, parameter.choices):
                message = f"{parameter.name}={_written(value)} is not one of {_written(list(parameter.choices))}"
                raise validation.Misplaced(message, (parameter.name,))
            point[parameter.name] = value
    for name in given:
        if name not in point:
            raise validation.Misplaced(f"parameter {name!r} does not exist there", (name,))
    return point


def check_parameters(parameters: dict[str, ParameterFile]) -> None:
    """Every choice is legal and stands once; every condition names a choice further up.

    Raises:
        Misplaced: otherwise.
    """
    above: dict[str, list[Any]] = {}
    for name, parameter in parameters.items():
        values = [_value(name, value, name, "choices", index) for index, value in enumerate(parameter.choices)]
        if len({repr(value) for value in values}) != len(values):
            raise validation.Misplaced(f"a choice stands twice in {_written(values)}", (name, "choices"))
        for other, wanted in parameter.when.items():
            with validation.at(name, "when", other):
                if other not in above:
                    raise ValueError(f"{other!r} is not a parameter further up")
                for value in _as_list(wanted):
                    if not _offered(value, above[other]):
                        raise ValueError(f"wants {other}={_written(value)}, legal there: {_written(above[other])}")
        above[name] = values


def parameters_of(raw: dict[str, ParameterFile]) -> tuple[Parameter, ...]:
    """The parameters of a file, in its order."""
    return tuple(
        Parameter(
            name=name,
            choices=tuple(_value(name, value, name) for value in parameter.choices),
            when={other: tuple(_as_list(wanted)) for other, wanted in parameter.when.items()},
        )
        for name, parameter in raw.items()
    )


def _value(name: str, value: Any, *path: str | int) -> Value:
    """A legal value of a setting; a layout may also be the name of a generated one."""
    with validation.at(*path):
        return _setting(name, value)


def _setting(name: str, value: Any) -> Value:
    if name == "pipeline_layout" and isinstance(value, str):
        if value not in GENERATED:
            layout_stages(value)
        return value
    return check_value(name, value)


def _offered(value: object, choices: Iterable[object]) -> bool:
    """Whether it is one of them; 1 is not true, though Python takes them for equal."""
    return any(value == choice and isinstance(value, bool) == isinstance(choice, bool) for choice in choices)


def _written(value: object) -> str:
    """A value as a model file has it: ``[false, true, null]``."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_written, value))}]"
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list) else [value]


def _model(shape: dict[str, Any], name: str) -> ModelShape:
    unknown_name = {"name": name} if "name" not in shape else {}
    try:
        return model_from({**unknown_name, **shape})
    except SpecError as error:
        raise validation.Misplaced(error.reason, error.path) from error


def _contract(raw: dict[str, Any]) -> Contract:
    try:
        contract = contract_from(raw)
    except SpecError as error:
        raise validation.Misplaced(error.reason, error.path) from error
    if contract.steps - contract.warmup_steps < 2:
        message = f"steps - warmup_steps must be at least 2, but got {contract.steps} - {contract.warmup_steps}"
        raise validation.Misplaced(message, ("steps",))
    return contract
