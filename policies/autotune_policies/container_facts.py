"""What a Megatron-Bridge ConfigContainer tells of the contract: sequence length, global batch, precision."""

from collections.abc import Mapping

from autotune_policies.resolved import ABSENT, Resolved

_SCALING: Mapping[str, tuple[str, ...]] = {
    "delayed": ("fp8_ds", "fp8_delayed"),
    "tensorwise": ("fp8_cs", "fp8_tensorwise"),
    "mxfp8": ("fp8_mx", "fp8_mxfp8"),
    "blockwise": ("fp8_sc", "fp8_blockwise"),
    "nvfp4": ("nvfp4", "fp4_nvfp4"),
}
"""Megatron's scaling recipes and the names that a precision has here, the usual one first."""

_NAMED: Mapping[str, str] = {
    "delayed_scaling": "delayed",
    "current_scaling": "tensorwise",
    "mxfp8": "mxfp8",
    "subchannel_scaling": "blockwise",
    "nvfp4": "nvfp4",
}
"""Parts of the names that Megatron-Bridge gives to whole precision configurations, and their scaling recipe."""


def contract_of(view: Resolved, wanted_precision: str = "") -> dict[str, object]:
    """``seq_length``, ``global_batch_size`` and ``precision``, as far as the container tells them.

    Args:
        view: The container.
        wanted_precision: Where a precision has two names, the one to answer with.
    """
    facts: dict[str, object] = {}
    for name, path in (("seq_length", "model.seq_length"), ("global_batch_size", "train.global_batch_size")):
        value = view.get(path)
        if isinstance(value, int) and value > 0:
            facts[name] = value
    names = precision_names(view)
    if names:
        facts["precision"] = wanted_precision if wanted_precision in names else names[0]
    return facts


def precision_names(view: Resolved) -> tuple[str, ...]:
    """All names of the precision that the container asks for, the usual one first; empty = it does not say."""
    mixed = view.get("mixed_precision")
    if isinstance(mixed, str):
        scaling = next((recipe for part, recipe in _NAMED.items() if part in mixed), None)
        if scaling is not None:
            return _SCALING[scaling]
        return next(((flag,) for flag in ("bf16", "fp16") if flag in mixed), ())
    return _flagged(view, "model" if mixed in (ABSENT, None) else "mixed_precision")


def own_precision(view: Resolved) -> tuple[str, ...]:
    """All names of the 4 or 8 bit precision that the model itself asks for; empty = it asks for none."""
    names = _flagged(view, "model")
    return names if names and names[0] not in ("bf16", "fp16") else ()


def _flagged(view: Resolved, section: str) -> tuple[str, ...]:
    for flag, recipe in (("fp4", "fp4_recipe"), ("fp8", "fp8_recipe")):
        if view.get(f"{section}.{flag}") not in (ABSENT, None, False):
            scaling = str(view.get(f"{section}.{recipe}"))
            return _SCALING.get(scaling, (f"{flag}_{scaling}",))
    return next(((flag,) for flag in ("bf16", "fp16") if view.get(f"{section}.{flag}") is True), ())
