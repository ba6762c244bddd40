"""Optuna's TPE, made to draw whole points and to draw again when a point is of no use.

The choices of a parameter may not change within a study (Optuna refuses dynamic value spaces), so an unavailable
dispatcher stays a choice for ever; and TPE likes to repeat itself in a space of a few thousand points. Drawing again
creates no trial and costs milliseconds.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.exceptions import ExperimentalWarning
from optuna.samplers import BaseSampler, TPESampler
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from autotune.space.parameters import Parameter, Point
from autotune_policies.settings import Value

_DRAWS = 16
_STARTUP_TRIALS = 15


class PointSampler(BaseSampler):
    """Multivariate, grouped TPE (conditional parameters, two objectives) that returns whole acceptable points.

    Args:
        parameters: The parameters, in definition order.
        seed: Seed of every random draw.
        accept: Whether a point is worth a trial.
        instead: The point to take when so many draws in a row were not accepted; None = there is none, and
            whatever is drawn next is taken.
        counts: Which trials it learns from: those of the present epoch, since nothing is ranked across.
    """

    def __init__(
        self,
        parameters: Sequence[Parameter],
        seed: int,
        accept: Callable[[Point], bool],
        instead: Callable[[], Point | None],
        counts: Callable[[FrozenTrial], bool] = lambda _: True,
    ) -> None:
        self._parameters = parameters
        self._accept = accept
        self._instead = instead
        self._counts = counts
        self._inner_space: dict[str, BaseDistribution] = {}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)  # `group` has been experimental since 2021
            # No constant liar: it reads the whole study again at every draw, and points beside running trials are
            # refused by `accept` when they are the same.
            self._inner = TPESampler(
                seed=seed, multivariate=True, group=True, constant_liar=False, n_startup_trials=_STARTUP_TRIALS
            )

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """All parameters: every point is drawn as a whole."""
        self._inner_space = self._inner.infer_relative_search_space(self._part_of(study), trial)
        return {parameter.name: distribution(parameter) for parameter in self._parameters}

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """An acceptable point, as Optuna stores it."""
        for _ in range(_DRAWS):
            codes = self._draw(study, trial)
            if self._accept(decode(self._parameters, codes)):
                return codes
        point = self._instead()
        return self._draw(study, trial) if point is None else encode(point)

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """The inner sampler's; reached only for points that were queued incompletely."""
        return self._inner.sample_independent(self._part_of(study), trial, param_name, param_distribution)

    def before_trial(self, study: Study, trial: FrozenTrial) -> None:
        """The inner sampler's."""
        self._inner.before_trial(study, trial)

    def after_trial(self, study: Study, trial: FrozenTrial, state: TrialState, values: Any) -> None:
        """The inner sampler's."""
        self._inner.after_trial(study, trial, state, values)

    def reseed_rng(self) -> None:
        """The inner sampler's."""
        self._inner.reseed_rng()

    def _draw(self, study: Study, trial: FrozenTrial) -> dict[str, Any]:
        """One point: jointly what TPE draws jointly, the rest one by one."""
        study = self._part_of(study)
        joint = self._inner.sample_relative(study, trial, self._inner_space)
        codes: dict[str, Any] = {}
        for parameter in self._parameters:
            if parameter.active(decode(self._parameters, codes)):
                name = parameter.name
                codes[name] = (
                    joint[name]
                    if name in joint
                    else self._inner.sample_independent(study, trial, name, distribution(parameter))
                )
        return codes

    def _part_of(self, study: Study) -> Study:
        return cast(Study, _PartOfStudy(study, self._counts))


class _PartOfStudy:
    """A study that shows some of its trials only; everything else is the study's own."""

    def __init__(self, study: Study, counts: Callable[[FrozenTrial], bool]) -> None:
        self._whole = study
        self._counts = counts

    def __getattr__(self, name: str) -> Any:
        return getattr(self._whole, name)

    def get_trials(self, *arguments: Any, **options: Any) -> list[FrozenTrial]:
        return [trial for trial in self._whole.get_trials(*arguments, **options) if self._counts(trial)]

    def _get_trials(self, *arguments: Any, **options: Any) -> list[FrozenTrial]:
        """What Optuna's own samplers call."""
        return [trial for trial in self._whole._get_trials(*arguments, **options) if self._counts(trial)]


def distribution(parameter: Parameter) -> CategoricalDistribution:
    """The choices of a parameter as Optuna stores them."""
    return CategoricalDistribution([_code(choice) for choice in parameter.choices])


def encode(point: Mapping[str, Value]) -> dict[str, Any]:
    """A point as Optuna stores it."""
    return {name: _code(value) for name, value in point.items()}


def decode(parameters: Sequence[Parameter], codes: Mapping[str, Any]) -> Point:
    """A point back from what Optuna stored."""
    return {
        parameter.name: next(choice for choice in parameter.choices if _code(choice) == codes[parameter.name])
        for parameter in parameters
        if parameter.name in codes
    }


def _code(value: Value) -> Any:
    """A value that Optuna can store: a list becomes comma-joined text."""
    return ",".join(value) if isinstance(value, list) else value
