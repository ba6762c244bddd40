"""Whether a trial trains to the same numbers as the baseline: same seed, same data, step by step.

A dispatcher that loses or doubles tokens can be fast and finite and still be wrong. Two runs of the same seed differ by
the order of sums, and by where random numbers are drawn; what else they differ by is looked for in three places:

- The first step, where both runs begin alike (:func:`begin_alike`): it comes before anything could grow apart.
- All steps, and the second half of them: their middle difference. It is granted a tolerance of the precision, and the
  noise of the baseline itself, since runs that have grown apart scatter like steps do.
- The last two steps by themselves, since training falls apart late. One step is an accident.

A loss or norm of zero or below trains nothing.

What that sees was measured with tiny-moe on CPUs; docs/outcomes.md has the numbers. A young model hardly depends on its
experts, so the loss sees gross errors only, and the gradient norm sees what is smaller in the first step alone. Neither
sees every tenth token lost, or tokens handed to their neighbours: wrong sums that small are for the preflight's
dispatch and combine to find. Nothing was measured on GPUs, where kernels add up in other orders too.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import expm1, isfinite, log
from statistics import median

from autotune_policies.settings import Settings
from autotune_trials.spec import Contract


@dataclass(frozen=True)
class Tolerance:
    """By how much two sound runs may differ, as a share.

    Attributes:
        loss: Of the loss.
        grad_norm: Of the gradient norm, which scatters an order of magnitude more.
    """

    loss: float
    grad_norm: float


TOLERANCE = {
    "fp32": Tolerance(0.001, 0.01),
    "bf16": Tolerance(0.005, 0.05),
    "fp8": Tolerance(0.01, 0.1),
    "fp4": Tolerance(0.02, 0.2),
}
"""Of the middle difference of many steps, beside the noise, whatever the two runs begin with."""

ALIKE = {"fp32": Tolerance(0.0002, 0.002), "bf16": Tolerance(0.0005, 0.01)}
"""The same where they begin alike; other precisions were not measured, and have the wider ones."""

FIRST_STEP = {"fp32": Tolerance(0.00002, 0.0003), "bf16": Tolerance(0.0002, 0.002)}
"""Of the first step where they begin alike: at least four times what sound runs differed by."""

BALANCING = Tolerance(0.0, 0.006)
"""Granted to the first step besides, where micro-batches differ in size: the load-balancing loss is made of each."""

_NOISE = 3.0
"""Standard deviations of the baseline's own step-to-step noise that are granted besides."""

_FEWEST_STEPS = 2
_LARGEST = 99.0  # of a difference in logarithms, that is said; what is beyond is as wrong

_ONLY_THE_SUMS = {
    "dispatcher", "num_sms", "num_sms_preprocessing", "permute_fusion_into_hybridep", "num_blocks_permute",
    "num_blocks_unpermute", "tokens_per_chunk", "permute_fusion", "grouped_gemm", "overlap_grad_reduce",
    "overlap_param_gather", "manual_gc_interval", "layernorm_sm_margin",
}  # fmt: skip
"""Settings that leave every drawn number where it is."""


def begin_alike(settings: Settings, baseline: Settings, contract: Contract, program: str, device: str) -> bool:
    """Whether two runs start from the same weights and send the same tokens to the same experts.

    The native program draws weights that do not depend on the layout, and on natural routing no number is drawn after
    them; forced balance draws its routing on every rank anew. Megatron's own programs draw each rank's weights there.
    On a GPU the kernel of a product is chosen by its shape, and with it the order of its sums, so that runs of another
    layout or micro-batch are not held to the close tolerances, which were measured on CPUs.

    Args:
        settings: Of the trial.
        baseline: Of the baseline.
        contract: What both hold fixed.
        program: Kind of trial program.
        device: ``cpu`` or ``cuda``.
    """
    if program != "native":
        return False
    other = {name for name in {*settings, *baseline} if settings.get(name) != baseline.get(name)}
    return other <= _ONLY_THE_SUMS or (contract.routing.source == "natural" and device == "cpu")


def out_of_parity(
    precision: str,
    losses: Sequence[float],
    grad_norms: Sequence[float],
    baseline_losses: Sequence[float],
    baseline_grad_norms: Sequence[float],
    *,
    alike: bool = False,
    same_micro_batches: bool = True,
) -> str:
    """By how much a trial trains to other numbers than the baseline, on one line; empty when it does not.

    Args:
        precision: The contract's; ``fp8_mxfp8`` and its like count as their first part.
        losses: Loss of every step of the trial, warm-up included.
        grad_norms: Its gradient norms; may be empty, when they were not recorded.
        baseline_losses: The same of the baseline, from the same seed and data.
        baseline_grad_norms: Likewise.
        alike: Whether the two runs begin alike.
        same_micro_batches: Whether their micro-batches are equally large.
    """
    kind = precision.partition("_")[0]
    later = ALIKE.get(kind, TOLERANCE[kind]) if alike else TOLERANCE[kind]
    first = FIRST_STEP.get(kind) if alike else None
    if first is not None and not same_micro_batches:
        first = Tolerance(first.loss + BALANCING.loss, first.grad_norm + BALANCING.grad_norm)
    return _differs("loss", losses, baseline_losses, later.loss, first.loss if first else None) or _differs(
        "gradient norm", grad_norms, baseline_grad_norms, later.grad_norm, first.grad_norm if first else None
    )


def _differs(name: str, ours: Sequence[float], theirs: Sequence[float], later: float, first: float | None) -> str:
    """What is wrong with one quantity; ``later`` and ``first`` are its tolerances, None = the first step is free."""
    pairs = {
        step: (one, other)
        for step, (one, other) in enumerate(zip(ours, theirs, strict=False), 1)
        if isfinite(one) and isfinite(other) and other > 0
    }
    if len(pairs) < _FEWEST_STEPS:
        return ""
    nothing = [(one, other) for one, other in pairs.values() if one <= 0]
    if len(nothing) >= _FEWEST_STEPS:
        one, other = nothing[-1]
        return (
            f"{name} is {one:.4g} in {len(nothing)} of {len(pairs)} steps, the baseline had {other:.4g}: nothing trains"
        )
    by_step = {step: log(one) - log(other) for step, (one, other) in pairs.items() if one > 0}
    apart, last = list(by_step.values()), max(pairs)
    noise = _NOISE * _noise([other for _, other in pairs.values()])
    many = later + noise / len(apart) ** 0.5
    looks = [(_middle(apart), many, last), (_middle(apart[len(apart) // 2 :]), many, last)]
    looks.append((min(apart[-2:], key=abs), 2 * later + noise, last))
    if first is not None and 1 in by_step:
        looks.insert(0, (by_step[1], first, 1))
    for difference, allowed, step in looks:
        if abs(difference) > allowed:
            one, other = pairs[step]
            return (
                f"{name} is {100 * expm1(min(difference, _LARGEST)):+.3g}% off the baseline's from the same seed and "
                f"data (allowed {100 * allowed:.2g}%): {one:.6g} in step {step}, the baseline had {other:.6g}"
            )
    return ""


def _middle(differences: Sequence[float]) -> float:
    """The median by size, with its sign."""
    return sorted(differences, key=abs)[len(differences) // 2]


def _noise(values: Sequence[float]) -> float:
    """Standard deviation of a step around its trend, in logarithms, from second differences: a trend leaves none."""
    logs = [log(value) for value in values]
    bends = [abs(logs[place - 1] - 2 * logs[place] + logs[place + 1]) for place in range(1, len(logs) - 1)]
    return 1.4826 * median(bends) / 6**0.5 if bends else 0.0
