"""What one trial is: the document that a trial program reads, frozen and JSON-able.

The head side writes it to ``trials/0007/spec.json``; every rank of the gang reads the same text. Nothing else
travels to the ranks but the launch variables (``RANK``, ``WORLD_SIZE``, ``MASTER_ADDR``, ...).
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields
from typing import Any, TypeVar

from autotune_policies.errors import PolicyError
from autotune_policies.settings import Settings, closest, resolve
from autotune_trials.bounds import Complaint, impossible_shape, number_out_of_range
from autotune_trials.model_shape import ModelShape as ModelShape
from autotune_trials.programs import PROGRAMS, CommandSpec, RecipeSpec, command_flaws, recipe_flaws

SCHEMA = "autotune.trial/v1"


class SpecError(ValueError):
    """A trial specification that cannot be run; the message names the field.

    Attributes:
        reason: What is wrong, without the part of the document where it stands.
        path: The field inside that part; empty where the whole part is wrong.
    """

    def __init__(self, reason: str, where: str = "", path: tuple[str, ...] = ()) -> None:
        super().__init__(f"{where}: {reason}" if where else reason)
        self.reason = reason
        self.path = path


@dataclass(frozen=True)
class Routing:
    """How tokens meet experts: trials that differ in any axis are never ranked together.

    Attributes:
        source: ``forced_balance`` (random logits, a benchmark) or ``natural`` (the router decides).
        data_condition: ``mock_random`` or ``mock_arange``: which token ids the trial trains on.
        token_policy: ``dropless`` (step 1 knows no other).
    """

    source: str = "forced_balance"
    data_condition: str = "mock_random"
    token_policy: str = "dropless"


@dataclass(frozen=True)
class Contract:
    """What all trials of a study hold fixed.

    Attributes:
        seq_length: Tokens per sequence.
        global_batch_size: Sequences per optimizer step, over all ranks.
        precision: ``bf16`` or ``fp32`` (a CPU knows no other), ``fp8_*`` and ``fp4_*`` on GPUs that have them.
        steps: Optimizer steps per trial, warm-up included; at least 2 so that peak memory holds optimizer state.
        warmup_steps: Leading steps that are run but not measured.
        seed: Seed of weights and data; equal in all trials, so that losses can be compared.
        routing: The three routing axes.
    """

    seq_length: int
    global_batch_size: int
    precision: str = "bf16"
    steps: int = 8
    warmup_steps: int = 3
    seed: int = 1234
    routing: Routing = field(default_factory=Routing)


@dataclass(frozen=True)
class GangShape:
    """The processes of one trial.

    Attributes:
        num_nodes: Nodes that take part.
        ranks_per_node: Processes (GPUs) on each of them.
        device: ``cuda`` (one GPU per rank, NCCL) or ``cpu`` (gloo).
    """

    num_nodes: int
    ranks_per_node: int
    device: str = "cuda"

    @property
    def world_size(self) -> int:
        """Ranks of the whole gang."""
        return self.num_nodes * self.ranks_per_node


@dataclass(frozen=True)
class TrialSpec:
    """One trial, complete: the same document always describes the same run.

    Attributes:
        study: Study name.
        trial: Trial number within the study.
        model: Architecture.
        contract: What the study holds fixed.
        settings: All canonical settings, resolved.
        gang: Shape of the gang.
        env: Variables set before the first torch import, on every rank.
        deadline_s: The whole gang is killed when it is still alive this many seconds after its start.
        stall_s: A rank that reports nothing for so long (no import, build or step done) is hanging.
        program: Which trial program runs it: ``native``, ``bridge`` or ``command``.
        recipe: What a bridge trial runs; None for the others.
        command: What a command trial runs; None for the others.
        profile_steps: So many of the last steps run under a profiler, which slows them: such a run is never scored.
        schema: Version of this document.
    """

    study: str
    trial: int
    model: ModelShape
    contract: Contract
    settings: Settings
    gang: GangShape
    env: dict[str, str] = field(default_factory=dict)
    deadline_s: float = 600.0
    stall_s: float = 180.0
    program: str = "native"
    recipe: RecipeSpec | None = None
    command: CommandSpec | None = None
    profile_steps: int = 0
    schema: str = SCHEMA

    def to_json(self) -> str:
        """The document as JSON text, keys in a fixed order."""
        return json.dumps(asdict(self), indent=1)

    @staticmethod
    def from_json(text: str) -> "TrialSpec":
        """The document back from its text.

        Raises:
            SpecError: not JSON, an unknown or missing field, a wrong type, or an illegal setting.
        """
        try:
            raw = json.loads(text)
        except json.JSONDecodeError as error:
            raise SpecError(f"trial specification is not JSON: {error}") from error
        if not isinstance(raw, dict) or raw.get("schema") != SCHEMA:
            raise SpecError(f"trial specification must have schema {SCHEMA!r}")
        return spec_from(raw)


def spec_from(raw: Mapping[str, Any]) -> TrialSpec:
    """A TrialSpec from plain dictionaries, as they come out of JSON or YAML.

    Raises:
        SpecError: an unknown or missing field, a wrong type, or an illegal setting.
    """
    values = dict(raw)
    values["model"] = _model(_mapping(raw, "model"))
    values["contract"] = contract_from(_mapping(raw, "contract"))
    values["gang"] = _build(GangShape, _mapping(raw, "gang"), "gang")
    try:
        values["settings"] = resolve(_mapping(raw, "settings"))
    except PolicyError as error:
        raise SpecError(f"settings: {error}") from error
    for name, read in (("recipe", recipe_from), ("command", command_from)):
        values[name] = None if raw.get(name) is None else read(_mapping(raw, name))
    spec = _build(TrialSpec, values, "trial specification")
    if spec.program not in PROGRAMS:
        raise SpecError(f"program={spec.program!r} is not known; {closest(spec.program, PROGRAMS)}")
    for name in ("recipe", "command"):
        needed = {"recipe": "bridge", "command": "command"}[name] == spec.program
        if needed == (getattr(spec, name) is None):
            raise SpecError(f"field {name!r} {'is missing' if needed else 'does not belong'}: program={spec.program}")
    most = 0 if spec.program == "command" else spec.contract.steps
    if not 0 <= spec.profile_steps <= most:
        raise SpecError(f"profile_steps={spec.profile_steps} must be from 0 to {most}: program={spec.program}")
    return spec


def model_from(raw: Mapping[str, Any]) -> ModelShape:
    """A ModelShape from a plain dictionary.

    Raises:
        SpecError: an unknown or missing field, a wrong type, or a number that no model has.
    """
    return _model(raw)


def contract_from(raw: Mapping[str, Any]) -> Contract:
    """A Contract from a plain dictionary; ``routing`` may be one too.

    Raises:
        SpecError: an unknown or missing field, a wrong type, or a number out of its range.
    """
    values = dict(raw)
    values["routing"] = _build(Routing, values.get("routing", {}), "contract", ("routing",))
    contract = _build(Contract, values, "contract")
    _complain(number_out_of_range(vars(contract)), "contract")
    return contract


def recipe_from(raw: Mapping[str, Any]) -> RecipeSpec:
    """A RecipeSpec from a plain dictionary.

    Raises:
        SpecError: an unknown or missing field, no MODULE:FUNCTION, or an override that is no KEY=VALUE.
    """
    recipe = _build(RecipeSpec, {**raw, "overrides": _words(raw.get("overrides", ()), "overrides")}, "recipe")
    _complain(recipe_flaws(recipe), "recipe")
    return recipe


def command_from(raw: Mapping[str, Any]) -> CommandSpec:
    """A CommandSpec from a plain dictionary.

    Raises:
        SpecError: an unknown or missing field, no word at all, or a placeholder that nobody fills.
    """
    command = _build(CommandSpec, {**raw, "words": _words(raw.get("words", ()), "words")}, "command")
    _complain(command_flaws(command), "command")
    return command


def _words(raw: Any, name: str) -> tuple[str, ...]:
    if not isinstance(raw, list | tuple) or not all(isinstance(word, str) for word in raw):
        raise SpecError(f"{name}={raw!r} must be a list of texts", path=(name,))
    return tuple(raw)


def _model(raw: Mapping[str, Any]) -> ModelShape:
    model = _build(ModelShape, raw, "model")
    _complain(number_out_of_range(vars(model)), "model")
    _complain(impossible_shape(vars(model)), "model")
    return model


def _complain(found: Iterator[Complaint], where: str) -> None:
    for name, reason in found:
        raise SpecError(reason, where, (name,))


_T = TypeVar("_T")

_SIMPLE: dict[str, tuple[type, ...]] = {
    "str": (str,), "int": (int,), "float": (int, float), "bool": (bool,),
    "int | None": (int, type(None)), "str | None": (str, type(None)),
}  # fmt: skip


def _build(cls: type[_T], raw: Mapping[str, Any], where: str, inside: tuple[str, ...] = ()) -> _T:
    """A flat dataclass from a dictionary, the type of every field checked."""
    where = ".".join((where, *inside))
    if not isinstance(raw, Mapping):
        raise SpecError(f"must be a mapping, but got {raw!r}", where, inside)
    known = {item.name: item for item in fields(cls)}  # type: ignore[arg-type]
    for name in raw:
        if name not in known:
            raise SpecError(f"unknown field {name!r}; {closest(str(name), known)}", where, (*inside, str(name)))
    for name, item in known.items():
        if name not in raw:
            if item.default is MISSING and item.default_factory is MISSING:
                raise SpecError(f"field {name!r} is missing", where, inside)
            continue
        annotation = item.type if isinstance(item.type, str) else getattr(item.type, "__name__", str(item.type))
        legal = _SIMPLE.get(annotation)
        value = raw[name]
        if legal and (not isinstance(value, legal) or (isinstance(value, bool) and bool not in legal)):
            raise SpecError(f"{name}={value!r} must be {annotation}", where, (*inside, name))
    return cls(**raw)


def _mapping(raw: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = raw.get(name)
    if not isinstance(value, Mapping):
        raise SpecError(f"trial specification: field {name!r} must be a mapping")
    return value
