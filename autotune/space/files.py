"""Model files: architecture, contract and search space of one model family."""

from dataclasses import fields
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from autotune import resources, validation
from autotune.space.layout import GENERATED
from autotune.space.parameters import Parameter, Point, SearchSpace
from autotune_policies.layout import layout_stages
from autotune_policies.settings import Value, check_value
from autotune_trials.spec import Contract, ModelShape, SpecError, contract_from, model_from

TrialKind = Literal["native", "bridge", "command"]
TRIAL_KINDS: tuple[TrialKind, ...] = ("native", "bridge", "command")


class ParameterFile(validation.Validated):
    """One parameter: its choices, and where it exists."""

    choices: list[Any] = Field(min_length=1)
    when: dict[str, Any] = Field(default_factory=dict)


class RecipeFile(validation.Validated):
    """A vendor's recipe for one cluster: what a bridge trial runs, and where a search may start.

    Attributes:
        function: ``module:function`` that returns the training program's configuration.
        settings: The recipe's settings as a point of the space; empty where it was published for another contract.
    """

    function: str = Field(pattern=r"^[\w.]+:\w+$")
    settings: dict[str, Any] = Field(default_factory=dict)


class ModelFile(validation.Validated):
    """A model file (``search_spaces/models/*.yaml``).

    Attributes:
        name: Model name.
        trial: Default kind of trial program.
        shape: The architecture (fields of ``autotune_trials.spec.ModelShape``).
        contract: What all trials hold fixed (fields of ``autotune_trials.spec.Contract``).
        gpus: Default GPUs by cluster name.
        recipes: Vendor recipes by cluster name.
        parameters: What may vary, in order; conditions look up only.
        fixed: Settings that do not vary.
        baseline: First point; must be an alltoall one.
        seeds: Further points to try before the sampler has a say.
        deadline_s: A trial is killed after so long.
        stall_s: A rank that reports nothing for so long hangs.
    """

    schema_: Literal["autotune.model/v1"] = Field(alias="schema")
    name: str
    trial: TrialKind = "native"
    shape: dict[str, Any]
    contract: dict[str, Any]
    gpus: dict[str, int] = Field(default_factory=dict)
    recipes: dict[str, RecipeFile] = Field(default_factory=dict)
    parameters: dict[str, ParameterFile]
    fixed: dict[str, Any] = Field(default_factory=dict)
    baseline: dict[str, Any]
    seeds: list[dict[str, Any]] = Field(default_factory=list)
    deadline_s: float = Field(gt=0, default=1800.0)
    stall_s: float = Field(gt=0, default=600.0)

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
        return {name: _value(name, value) for name, value in fixed.items()}

    @field_validator("parameters")
    @classmethod
    def _parameters_are_settings(cls, parameters: dict[str, ParameterFile]) -> dict[str, ParameterFile]:
        check_parameters(parameters)
        return parameters

    @model_validator(mode="after")
    def _points_are_in_the_space(self) -> "ModelFile":
        parameters = parameters_of(self.parameters)
        recipes = ((f"recipes.{name}", recipe.settings) for name, recipe in self.recipes.items())
        seeds = ((f"seeds[{index}]", seed) for index, seed in enumerate(self.seeds))
        for label, point in [("baseline", self.baseline), *seeds, *recipes]:
            complete_point(parameters, point, label)
        if self.baseline.get("dispatcher", self.fixed.get("dispatcher", "alltoall")) != "alltoall":
            raise ValueError("baseline: dispatcher must be alltoall, the one that is known to be correct")
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
            baseline=complete_point(parameters, self.baseline, "baseline"),
            seeds=tuple(complete_point(parameters, seed, "seeds") for seed in self.seeds),
        )


def load_model(name: str) -> ModelFile:
    """A shipped model by name, or a user's own file by path.

    Raises:
        RequestError: unknown name (closest ones in the hint) or a wrong file (with its line).
    """
    return validation.load(resources.locate("models", name), ModelFile)


def complete_point(parameters: tuple[Parameter, ...], given: dict[str, Any], label: str) -> Point:
    """A point with the parameters left out at their first choice; inactive ones are absent.

    Raises:
        ValueError: a parameter that the space lacks, that is inactive there, or a value it does not offer.
    """
    point: Point = {}
    for parameter in parameters:
        if parameter.active(point):
            value = given.get(parameter.name, parameter.choices[0])
            if value not in parameter.choices:
                raise ValueError(f"{label}: {parameter.name}={value!r} is not one of {list(parameter.choices)}")
            point[parameter.name] = value
    for name in given:
        if name not in point:
            raise ValueError(f"{label}: parameter {name!r} does not exist there")
    return point


def check_parameters(parameters: dict[str, ParameterFile]) -> None:
    """Every choice is legal and stands once; every condition names a choice further up.

    Raises:
        ValueError: otherwise.
    """
    above: dict[str, list[Any]] = {}
    for name, parameter in parameters.items():
        values = [_value(name, value) for value in parameter.choices]
        if len({repr(value) for value in values}) != len(values):
            raise ValueError(f"{name}: a choice stands twice in {values}")
        for other, wanted in parameter.when.items():
            if other not in above:
                raise ValueError(f"{name}: `when` names {other!r}, which is not a parameter further up")
            for value in _as_list(wanted):
                if value not in above[other]:
                    raise ValueError(f"{name}: `when` wants {other}={value!r}, legal there: {above[other]}")
        above[name] = values


def parameters_of(raw: dict[str, ParameterFile]) -> tuple[Parameter, ...]:
    """The parameters of a file, in its order."""
    return tuple(
        Parameter(
            name=name,
            choices=tuple(_value(name, value) for value in parameter.choices),
            when={other: tuple(_as_list(wanted)) for other, wanted in parameter.when.items()},
        )
        for name, parameter in raw.items()
    )


def _value(name: str, value: Any) -> Value:
    """A legal value of a setting; a layout may also be the name of a generated one."""
    if name == "pipeline_layout" and isinstance(value, str):
        if value not in GENERATED:
            layout_stages(value)
        return value
    return check_value(name, value)


def _as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list) else [value]


def _model(shape: dict[str, Any], name: str) -> ModelShape:
    unknown_name = {"name": name} if "name" not in shape else {}
    try:
        return model_from({**unknown_name, **shape})
    except SpecError as error:
        raise ValueError(str(error)) from error


def _contract(raw: dict[str, Any]) -> Contract:
    try:
        contract = contract_from(raw)
    except SpecError as error:
        raise ValueError(str(error)) from error
    positive = [item.name for item in fields(Contract) if item.type is int and item.name != "seed"]
    for name in positive:
        if getattr(contract, name) < 1:
            raise ValueError(f"{name} must be at least 1, but got {getattr(contract, name)}")
    if contract.steps - contract.warmup_steps < 2:
        raise ValueError(f"steps - warmup_steps must be at least 2, but got {contract.steps} - {contract.warmup_steps}")
    return contract
