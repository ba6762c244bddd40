"""What the step lines of a command are worth: which are measurements, and what speaks against all of them."""

import math
from typing import Any

from autotune_trials.log_lines import Step
from autotune_trials.spec import Contract

_FEWEST_MEASURED = 2
_CLOCK_FACTOR = 2.0
"""The time between lines may be so many times what they say: a busy machine, a pipe that is read late."""
_CLOCK_SLACK_S = 1.0
"""So much may pass unsaid whatever the lines say, since a stop of the whole machine is nobody's lie."""


class StepLines:
    """Takes the step lines of one rank in the order of the log.

    Args:
        contract: What the study holds fixed.
    """

    def __init__(self, contract: Contract) -> None:
        self._contract = contract
        self.steps = 0
        self._longest_span = 0
        self._measured = 0
        self._said_s = 0.0
        self._from_s: float | None = None
        self._to_s = 0.0
        self._flaw = ""

    def take(self, line: Step, at_s: float) -> dict[str, Any] | None:
        """The fields of the step's event; None for a step that was told before.

        A line tells the mean of the steps since the line before. Where these reach back into warm-up, the event is a
        sign of life only: it has no ``loss``, by which a reader knows a measurement.

        Args:
            line: What it says.
            at_s: When it came, on a steady clock.
        """
        if line.step <= self.steps:
            return None
        first, self.steps = self.steps + 1, line.step
        warmup = self._contract.warmup_steps
        sound = line.loss is None or math.isfinite(line.loss)
        self._longest_span = max(self._longest_span, line.step - first + 1)
        if line.steps != self._contract.steps:
            self._flaw = self._flaw or (
                f"its steps count to {line.steps}, not to the contract's {self._contract.steps}: "
                "hand {steps} to the program"
            )
        if line.skipped and not line.nan and sound and line.step > warmup:
            self._flaw = self._flaw or f"step {line.step} was skipped: no update of the weights, so no whole step"
        fields: dict[str, Any] = {
            "step": line.step,
            "step_time_s": math.nan if line.step_time_s is None else line.step_time_s,
        }
        if first <= warmup < line.step and sound:
            self._from_s = at_s
            return fields
        if line.step > warmup:
            self._count(line, line.step - first + 1, at_s)
        elif line.step == warmup:
            self._from_s = at_s
        batch = self._contract.global_batch_size if line.global_batch_size is None else line.global_batch_size
        return {
            **fields,
            "loss": math.nan if line.loss is None else line.loss,
            "grad_norm": math.nan if line.grad_norm is None else line.grad_norm,
            "tokens": batch * self._contract.seq_length,
        }

    @property
    def flaw(self) -> str:
        """What is wrong with the lines whatever else comes; empty when nothing is."""
        return self._flaw

    def verdict(self) -> str:
        """What is wrong with all of them at the end, on one line; empty when nothing is, or when there were none."""
        if self._flaw or not self.steps:
            return self._flaw
        if self._measured < _FEWEST_MEASURED and self._longest_span > 1:
            return (
                f"a line stands for up to {self._longest_span} steps, so {self._measured} of the lines lie wholly "
                f"after the {self._contract.warmup_steps} steps of warm-up, and {_FEWEST_MEASURED} are needed: "
                "log every step (--log-interval 1)"
            )
        passed_s = self._to_s - self._from_s if self._from_s is not None else 0.0
        if self._measured and passed_s > _CLOCK_FACTOR * self._said_s + _CLOCK_SLACK_S:
            return (
                f"the measured steps say {self._said_s:.3g} s in all, but {passed_s:.3g} s passed between their lines: "
                "its clock is wrong, or it does something else between the steps (evaluation, checkpoints)"
            )
        return ""

    def _count(self, line: Step, span: int, at_s: float) -> None:
        if self._from_s is None:
            self._from_s = at_s  # without warm-up the first line only starts the clock
        else:
            self._said_s += span * (line.step_time_s or 0.0)
        self._measured += 1
        self._to_s = at_s
