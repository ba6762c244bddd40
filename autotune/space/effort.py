"""How much a study may spend, and how thoroughly its best trials are measured again."""

from dataclasses import dataclass, field
from math import isfinite
from typing import Any

from pydantic import Field, model_validator

from autotune.errors import RequestError
from autotune.validation import Misplaced, Validated
from autotune_trials.spec import Contract

FEWEST_MEASURED = 6
"""Steps after warm-up from which an order-statistic interval reaches 95 %."""


class ConfirmPlan(Validated):
    """How finalists are measured again (key ``confirm`` of a model file).

    Attributes:
        finalists: So many of the fastest trials at most.
        repeats: Runs of each of them, in turns; 0 = nothing is confirmed.
        steps: Optimizer steps of a run, warm-up included, in the first round.
        most_steps: Steps to which later rounds may go where the steps scatter.
    """

    finalists: int = Field(ge=2, le=20, default=3)
    repeats: int = Field(ge=0, le=100, default=3)
    steps: int = Field(ge=1, le=100_000, default=50)
    most_steps: int = Field(ge=1, le=100_000, default=200)

    @model_validator(mode="after")
    def _limits_agree(self) -> "ConfirmPlan":
        if self.most_steps < self.steps:
            raise Misplaced(f"most_steps={self.most_steps} must be at least steps={self.steps}", ("most_steps",))
        return self

    def flaw(self, contract: Contract) -> str | None:
        """Why runs under this contract could not be compared; None when they can."""
        if self.repeats and self.steps - contract.warmup_steps < FEWEST_MEASURED:
            return (
                f"confirm.steps={self.steps} must be at least warmup_steps + {FEWEST_MEASURED}"
                f" = {contract.warmup_steps + FEWEST_MEASURED}"
            )
        return None


@dataclass(frozen=True)
class Effort:
    """Limits of a study beside the number of its trials; any of them may change when it goes on.

    Attributes:
        budget_gpu_hours: GPU-hours of the whole study, confirmation included; None = no limit.
        pays_back_after_steps: Search on only while the gain to be expected pays for the next trial within so many
            steps of the training; None = that is not asked.
        confirm: How finalists are measured again.
        profile: Whether baseline and winner are run once more under a profiler; None = where trials run on GPUs.
    """

    budget_gpu_hours: float | None = None
    pays_back_after_steps: int | None = None
    confirm: ConfirmPlan = field(default_factory=ConfirmPlan)
    profile: bool | None = None


def effort_of(
    plan: ConfirmPlan,
    contract: Contract,
    budget_gpu_hours: float | None = None,
    pays_back_after: int | None = None,
    confirm: int | None = None,
    profile: bool | None = None,
) -> Effort:
    """The limits as typed, on top of the model file's plan.

    Args:
        plan: The model file's.
        contract: What every trial holds fixed.
        budget_gpu_hours: As in :class:`Effort`.
        pays_back_after: As in :class:`Effort`, in steps.
        confirm: Repeats of each finalist instead of the plan's; 0 = nothing is confirmed.
        profile: As in :class:`Effort`.

    Raises:
        RequestError: a value out of its range.
    """
    if budget_gpu_hours is not None and not (isfinite(budget_gpu_hours) and budget_gpu_hours > 0):
        raise RequestError(f"budget-gpu-hours must be above 0, but got {budget_gpu_hours}")
    if pays_back_after is not None and pays_back_after < 1:
        raise RequestError(f"pays-back-after must be at least 1 step, but got {pays_back_after}")
    if confirm is not None and not 0 <= confirm <= 100:
        raise RequestError(f"confirm must be from 0 to 100 repeats, but got {confirm}", hint="0 confirms nothing")
    plan = plan if confirm is None else plan.model_copy(update={"repeats": confirm})
    if (flaw := plan.flaw(contract)) is not None:
        raise RequestError(flaw, hint="change confirm.steps in the model file, or --confirm 0")
    return Effort(budget_gpu_hours, pays_back_after, plan, profile)


def effort_from(asked: dict[str, Any], plan: dict[str, Any] | None) -> Effort:
    """The limits of a stored request; studies that are older than one of them had none of it."""
    return Effort(
        asked.get("budget_gpu_hours"),
        asked.get("pays_back_after"),
        ConfirmPlan.model_validate(plan) if plan is not None else ConfirmPlan(repeats=0),
        asked.get("profile"),
    )
