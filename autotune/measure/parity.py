"""Whether a trial trains to the same numbers as the baseline: same seed, same data, step by step.

A dispatcher that loses or doubles tokens can be fast and finite and still be wrong. Two runs of the same seed differ by
the order of sums, and by where random numbers are drawn; that difference is bounded by the precision and grows with the
noise of the baseline itself, so the tolerance is made of both. The verdict is statistical: the middle difference of all
steps decides, or that of both last steps, not the worst step. A loss or norm of zero or below trains nothing.

It finds gross errors only. A young model hardly depends on its experts: with all their output set to zero the loss of
tiny-moe moved by 0.01 % in eight steps. Wrong sums are for the preflight's dispatch and combine to find.
"""

from collections.abc import Sequence
from math import expm1, isfinite, log
from statistics import median

RELATIVE_TOLERANCE = {"fp32": 0.001, "bf16": 0.005, "fp8": 0.01, "fp4": 0.02}
"""Share of the loss by which two sound runs of this precision may differ."""

_GRAD_NORM_TOLERANCES = 10.0
"""A gradient norm scatters an order of magnitude more than a loss of the same run."""

_NOISE = 3.0
"""Standard deviations of the baseline's own step-to-step noise that are granted besides."""

_FEWEST_STEPS = 2
_LARGEST = 99.0  # of a difference in logarithms, that is said; what is beyond is as wrong


def out_of_parity(
    precision: str,
    losses: Sequence[float],
    grad_norms: Sequence[float],
    baseline_losses: Sequence[float],
    baseline_grad_norms: Sequence[float],
) -> str:
    """By how much a trial trains to other numbers than the baseline, on one line; empty when it does not.

    Args:
        precision: The contract's; ``fp8_mxfp8`` and its like count as their first part.
        losses: Loss of every step of the trial, warm-up included.
        grad_norms: Its gradient norms; may be empty, when they were not recorded.
        baseline_losses: The same of the baseline, from the same seed and data.
        baseline_grad_norms: Likewise.
    """
    tolerance = RELATIVE_TOLERANCE[precision.partition("_")[0]]
    found = _differs("loss", losses, baseline_losses, tolerance)
    return found or _differs("gradient norm", grad_norms, baseline_grad_norms, tolerance * _GRAD_NORM_TOLERANCES)


def _differs(name: str, ours: Sequence[float], theirs: Sequence[float], tolerance: float) -> str:
    pairs = [
        (one, other)
        for one, other in zip(ours, theirs, strict=False)
        if isfinite(one) and isfinite(other) and other > 0
    ]
    if len(pairs) < _FEWEST_STEPS:
        return ""
    nothing = [place for place, (one, _) in enumerate(pairs, 1) if one <= 0]
    if len(nothing) >= _FEWEST_STEPS:
        one, other = pairs[nothing[-1] - 1]
        return (
            f"{name} is {one:.4g} in {len(nothing)} of {len(pairs)} steps, the baseline had {other:.4g}: nothing trains"
        )
    apart = [log(one) - log(other) for one, other in pairs if one > 0]
    noise = _NOISE * _noise([other for _, other in pairs])
    # Training falls apart late: the second half alone must hold too, and the last two steps by themselves.
    halves = max((sorted(part, key=abs)[len(part) // 2] for part in (apart, apart[len(apart) // 2 :])), key=abs)
    limits = ((halves, tolerance + noise / len(apart) ** 0.5), (min(apart[-2:], key=abs), 2 * tolerance + noise))
    for worst, allowed in limits:
        if abs(worst) > allowed:
            one, other = pairs[-1]
            return (
                f"{name} is {expm1(min(worst, _LARGEST)):+.1%} off the baseline's from the same seed and data "
                f"(allowed {allowed:.1%}): {one:.4g} after {len(pairs)} steps, the baseline had {other:.4g}"
            )
    return ""


def _noise(values: Sequence[float]) -> float:
    """Standard deviation of a step around its trend, in logarithms, from second differences: a trend leaves none."""
    logs = [log(value) for value in values]
    bends = [abs(logs[place - 1] - 2 * logs[place] + logs[place + 1]) for place in range(1, len(logs) - 1)]
    return 1.4826 * median(bends) / 6**0.5 if bends else 0.0
