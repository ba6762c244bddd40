"""What the user asked for, checked and complete, before anything is started."""

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import yaml

from autotune.cluster import Cluster, load_cluster
from autotune.errors import RequestError
from autotune.space.compose import compose
from autotune.space.effort import Effort, effort_from, effort_of
from autotune.space.files import ModelFile, load_model
from autotune.space.guide import load_guide
from autotune.space.kinds import command_of, contract_for, kind_of, recipe_of
from autotune.space.parameters import Parameter, Point, SearchSpace
from autotune.space.resolve import settings_of
from autotune.validation import parse_duration as parse_duration
from autotune_policies.documents import read_document
from autotune_policies.settings import SETTINGS, Settings, closest
from autotune_policies.surroundings import environment_of, read_environment, stale_variables, topology_of
from autotune_trials import spec as documents
from autotune_trials.programs import CommandSpec, RecipeSpec
from autotune_trials.spec import Contract, GangShape, ModelShape, TrialSpec

Select = Literal["throughput", "memory", "balanced"]
SELECTS: tuple[Select, ...] = ("throughput", "memory", "balanced")
ROUTING_SOURCES = ("forced_balance", "natural")
_STUDY_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


@dataclass(frozen=True)
class TuneRequest:
    """One study, completely described; the same request always opens the same study.

    Attributes:
        study: Study name, also the name of its folder.
        home: Folder of all studies.
        model: Model name.
        shape: Architecture.
        cluster: The cluster file.
        gang: Processes of every trial.
        contract: What all trials hold fixed.
        space: What may vary.
        trials: Launched trials at most.
        select: Which member of the Pareto front becomes the policy.
        memory_limit_bytes: Trials above it are infeasible; None = no limit beside the hardware's.
        seed: Seed of the sampler.
        probe_rules: Share of the launches that may break rules which are only suspect, 0 to 1.
        storage: Optuna storage URL; None = sqlite in the study folder.
        deadline_s: Seconds after which no further trial is launched; None = no limit.
        trial_deadline_s: A trial is killed after so long.
        trial_stall_s: A rank that reports nothing for so long hangs.
        effort: What it may spend, and how its finalists are confirmed.
        program: Kind of trial program.
        recipe: What bridge trials run; None for other kinds, and where the model has none for the cluster.
        command: What command trials run; None for other kinds, and where none was given.
        asked: What was typed, as :func:`load_request` takes it: a stored study is opened again from it.
        pinned: Settings that the nodes leave no choice about, whatever a point says; known after the preflight.
    """

    study: str
    home: Path
    model: str
    shape: ModelShape
    cluster: Cluster
    gang: GangShape
    contract: Contract
    space: SearchSpace
    trials: int
    select: Select = "throughput"
    memory_limit_bytes: int | None = None
    seed: int = 0
    probe_rules: float = 0.0
    storage: str | None = None
    deadline_s: float | None = None
    trial_deadline_s: float = 1800.0
    trial_stall_s: float = 600.0
    effort: Effort = field(default_factory=Effort)
    program: str = "native"
    recipe: RecipeSpec | None = None
    command: CommandSpec | None = None
    asked: Mapping[str, Any] = field(default_factory=dict)
    pinned: Mapping[str, Any] = field(default_factory=dict)

    @property
    def folder(self) -> Path:
        """The study's folder."""
        return self.home / self.study

    @property
    def storage_url(self) -> str:
        """Where Optuna keeps the study."""
        return self.storage or f"sqlite:///{self.folder / 'study.db'}"

    def trial_folder(self, trial: int) -> Path:
        """Folder of one trial."""
        return self.folder / "trials" / f"{trial:04d}"

    def settings(self, point: Mapping[str, Any]) -> Settings:
        """All canonical settings of a point of the space."""
        found = read_environment(self.cluster.env)
        here = {name: value for name, value in found.items() if value is not None and not SETTINGS[name].only_with}
        return settings_of({**point, **self.pinned}, {**here, **self.space.fixed, **self.cluster.fixed}, self.shape)

    def environment(self, settings: Mapping[str, Any]) -> dict[str, str]:
        """Variables of every rank: the cluster's, what the settings ask for, and HybridEP's view of the topology."""
        topology = topology_of(
            settings,
            nvlink_domain_gpus=self.cluster.nvlink_domain_gpus,
            gpus_per_node=self.cluster.gpus_per_node,
        )
        unwanted = stale_variables(settings)
        shared = {name: value for name, value in self.cluster.env.items() if name not in unwanted}
        return {**shared, **environment_of(settings), **topology}

    def spec(self, trial: int, point: Point) -> TrialSpec:
        """The trial specification of a point."""
        settings = self.settings(point)
        return TrialSpec(
            study=self.study,
            trial=trial,
            model=self.shape,
            contract=self.contract,
            settings=settings,
            gang=self.gang,
            env=self.environment(settings),
            deadline_s=self.trial_deadline_s,
            stall_s=self.trial_stall_s,
            program=self.program,
            recipe=self.recipe,
            command=self.command,
        )

    def identity(self) -> dict[str, Any]:
        """What may not change within a study, as plain data; a stored study that differs is refused by field."""
        return {
            "model": asdict(self.shape),
            "cluster": self.cluster.name,
            "env": dict(self.cluster.env),
            "launch": dict(self.cluster.launch),
            "gang": asdict(self.gang),
            "contract": asdict(self.contract),
            "program": self.program,
            "recipe": self.recipe and asdict(self.recipe),
            "command": self.command and asdict(self.command),
            "parameters": {
                parameter.name: {
                    "choices": list(parameter.choices),
                    "when": {name: list(values) for name, values in parameter.when.items()},
                }
                for parameter in self.space.parameters
            },
            "fixed": {**self.space.fixed, **self.cluster.fixed},
        }

    def to_yaml(self) -> str:
        """The request as ``request.yaml`` of the study folder has it; :func:`stored_request` reads it back."""
        space = {"baseline": self.space.baseline, "seeds": list(self.space.seeds), "fixed": dict(self.space.fixed)}
        kept = {"cluster_file": self.cluster.model_dump(by_alias=True), "space": space}
        kept["confirm"] = self.effort.confirm.model_dump()
        plain = json.loads(json.dumps({"asked": dict(self.asked), **self.identity(), **kept}))
        return yaml.safe_dump(plain, sort_keys=False)


def load_request(
    model: str,
    cluster: str,
    *,
    gpus: int | None = None,
    trials: int = 12,
    study: str | None = None,
    home: Path | None = None,
    storage: str | None = None,
    routing: str | None = None,
    trial: str | None = None,
    recipe: str | None = None,
    override: Sequence[str] = (),
    command: str | None = None,
    select: str = "throughput",
    memory_limit_gib: float | None = None,
    deadline: str | None = None,
    seed: int = 0,
    probe_rules: float = 0.0,
    budget_gpu_hours: float | None = None,
    pays_back_after: int | None = None,
    confirm: int | None = None,
    profile: bool | None = None,
) -> TuneRequest:
    """A complete request from what was typed.

    Args:
        model: Shipped model name, or the path of a model file.
        cluster: Shipped cluster name, or the path of a cluster file.
        gpus: GPUs per trial (ranks on a CPU); None = the model's default on this cluster.
        trials: Launched trials at most.
        study: Study name; None = ``<model>-<cluster>``.
        home: Folder of all studies; None = ``$AUTOTUNE_HOME`` or ``~/.autotune``.
        storage: Optuna storage URL; None = sqlite in the study folder.
        routing: Routing source; None = the model file's.
        trial: Kind of trial program; None = the model file's.
        recipe: ``module:function`` of a bridge trial; None = the model file's for the cluster.
        override: ``KEY=VALUE`` words that are set on the recipe's configuration.
        command: Words of a command trial; None = the model file's.
        select: Which member of the front is exported.
        memory_limit_gib: Peak memory above which a trial is infeasible, GiB per GPU.
        deadline: E.g. ``2h``, ``90m``, ``45s``.
        seed: Seed of the sampler.
        probe_rules: Share of the launches that may break suspect rules, 0 to 1.
        budget_gpu_hours: GPU-hours of the whole study; None = no limit.
        pays_back_after: Steps of the training within which the next trial must pay; None = that is not asked.
        confirm: Repeats of each finalist; None = the model file's, 0 = nothing is confirmed.
        profile: Whether baseline and winner are profiled; None = where trials run on GPUs.

    Raises:
        RequestError: an unknown name, a wrong file or an impossible value.
    """
    asked = {
        "model": _portable(model), "cluster": _portable(cluster), "gpus": gpus, "trials": trials, "study": study,
        "storage": storage, "routing": routing, "trial": trial, "recipe": recipe, "override": list(override),
        "command": command, "select": select, "memory_limit_gib": memory_limit_gib, "deadline": deadline, "seed": seed,
        "probe_rules": probe_rules, "budget_gpu_hours": budget_gpu_hours, "pays_back_after": pays_back_after,
        "confirm": confirm, "profile": profile,
    }  # fmt: skip
    file, machines = load_model(model), load_cluster(cluster)
    program = kind_of(file, trial)
    contract = contract_for(program, file.default_contract())
    if routing is not None:
        if routing not in ROUTING_SOURCES:
            raise RequestError(f"routing={routing!r} is not known", hint=closest(routing, ROUTING_SOURCES))
        contract = replace(contract, routing=replace(contract.routing, source=routing))
    if select not in SELECTS:
        raise RequestError(f"select={select!r} is not known", hint=closest(select, SELECTS))
    if trials < 1:
        raise RequestError(f"trials must be at least 1, but got {trials}")
    if memory_limit_gib is not None and not 0 < memory_limit_gib < float("inf"):
        raise RequestError(f"memory-limit-gib must be above 0, but got {memory_limit_gib}")
    if not 0 <= probe_rules <= 1:
        raise RequestError(f"probe-rules must be a share from 0 to 1, but got {probe_rules}")
    num_nodes, ranks_per_node = machines.nodes(_gpus(file, machines, gpus))
    name = study if study is not None else f"{file.name}-{machines.name}"
    if not _STUDY_NAME.fullmatch(name):
        raise RequestError(
            f"study name {name[:80]!r} must be a letter or digit and at most 99 more of them, '-', '_' and '.'"
        )
    return TuneRequest(
        study=name,
        home=home_folder(home),
        model=file.name,
        shape=file.model_shape(),
        cluster=machines,
        gang=GangShape(num_nodes, ranks_per_node, machines.device),
        contract=contract,
        space=compose(file, machines, contract, load_guide()),
        trials=trials,
        select=select,
        memory_limit_bytes=None if memory_limit_gib is None else int(memory_limit_gib * 2**30),
        seed=seed,
        probe_rules=probe_rules,
        storage=storage,
        deadline_s=None if deadline is None else parse_duration(deadline),
        trial_deadline_s=file.deadline_s,
        trial_stall_s=file.stall_s,
        effort=effort_of(file.confirm, contract, budget_gpu_hours, pays_back_after, confirm, profile),
        program=program,
        recipe=recipe_of(program, file, machines.name, recipe, override),
        command=command_of(program, file, command),
        asked=asked,
    )


def home_folder(home: Path | None = None) -> Path:
    """The folder of all studies: as given, else ``$AUTOTUNE_HOME``, else ``~/.autotune``."""
    return (home or Path(os.environ.get("AUTOTUNE_HOME", "~/.autotune"))).expanduser().absolute()


def stored_request(study: str, home: Path | None = None) -> TuneRequest:
    """The request of a study that exists.

    Raises:
        RequestError: no such study (the closest names are in the hint), or its file is damaged.
    """
    folder = home_folder(home)
    path = folder / study / "request.yaml"
    if not path.exists():
        raise RequestError(f"no study {study!r} in {folder}", hint=closest(study, studies(folder)))
    try:
        stored = read_document(path.read_text(encoding="utf-8"), str(path)).value
        return _from_stored(stored, study, folder)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise RequestError(f"{path}: not a request of this version", hint="start the study again") from error


def _from_stored(stored: Mapping[str, Any], study: str, folder: Path) -> TuneRequest:
    """The request from its own file alone: the model and cluster files may have changed or gone since."""
    asked, space = stored["asked"], stored["space"]
    limit_gib = asked["memory_limit_gib"]
    parameters = tuple(
        Parameter(name, tuple(raw["choices"]), {other: tuple(values) for other, values in raw["when"].items()})
        for name, raw in stored["parameters"].items()
    )
    return TuneRequest(
        study=study,
        home=folder,
        model=stored["model"]["name"],
        shape=documents.model_from(stored["model"]),
        cluster=Cluster.model_validate(stored["cluster_file"]),
        gang=GangShape(**stored["gang"]),
        contract=documents.contract_from(stored["contract"]),
        space=SearchSpace(parameters, space["fixed"], space["baseline"], tuple(space["seeds"])),
        trials=asked["trials"],
        select=asked["select"],
        memory_limit_bytes=None if limit_gib is None else int(limit_gib * 2**30),
        seed=asked["seed"],
        probe_rules=asked["probe_rules"],
        storage=asked["storage"],
        effort=effort_from(asked, stored.get("confirm")),
        program=stored["program"],
        recipe=stored["recipe"] and documents.recipe_from(stored["recipe"]),
        command=stored["command"] and documents.command_from(stored["command"]),
        asked=asked,
    )


def studies(home: Path | None = None) -> list[str]:
    """Names of the studies in a folder, sorted."""
    return sorted(path.parent.name for path in home_folder(home).glob("*/request.yaml"))


def _portable(name: str) -> str:
    """A name as it is; a path such that it is found from another working folder too."""
    return str(Path(name).expanduser().absolute()) if "/" in name or name.endswith((".yaml", ".yml")) else name


def _gpus(file: ModelFile, cluster: Cluster, asked: int | None) -> int:
    if asked is not None:
        if asked < 1:
            raise RequestError(f"gpus must be at least 1, but got {asked}")
        return asked
    if cluster.name not in file.gpus:
        raise RequestError(
            f"model {file.name!r} has no default number of GPUs on cluster {cluster.name!r}",
            hint=f"say how many with --gpus (defaults exist for {', '.join(file.gpus) or 'no cluster'})",
        )
    return file.gpus[cluster.name]
