"""What two policies do differently, where each holds, and whether their numbers may be compared at all."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from autotune_policies.applicability import describe
from autotune_policies.policy import Policy
from autotune_policies.same import same_setting
from autotune_policies.settings import SETTINGS
from autotune_policies.show import block, evidence_rows, value_text, words

_AXES = ("source", "data_condition", "token_policy")
_SCALES = ("model", "cluster", "num_gpus", "precision", "seq_length", "global_batch_size")
_NUMBERS = ("tokens_per_s_per_gpu", "tflops_per_gpu", "mfu", "peak_memory_bytes")


@dataclass(frozen=True)
class Change:
    """Something that two policies say differently.

    Attributes:
        name: Setting, variable, launch setting or condition.
        a: What the first says; None = nothing.
        b: What the second says.
        doc: What it is, for settings.
    """

    name: str
    a: Any
    b: Any
    doc: str = ""


@dataclass(frozen=True)
class PolicyDifference:
    """Two policies side by side.

    Attributes:
        settings: Canonical settings that make another run.
        env: Variables.
        launch: Launch settings.
        applies_to: Conditions, parts of the stack as ``stack.<name>``.
        incomparable: Why the numbers must not be compared; empty = they may.
        ratios: Second over first, by quantity; empty where they must not be compared.
    """

    settings: tuple[Change, ...]
    env: tuple[Change, ...]
    launch: tuple[Change, ...]
    applies_to: tuple[Change, ...]
    incomparable: tuple[str, ...]
    ratios: dict[str, float]

    @property
    def same(self) -> bool:
        """Whether both make the same run; where they hold and what is known of them may differ."""
        return not (self.settings or self.env or self.launch)


def compare_policies(a: Policy, b: Policy) -> PolicyDifference:
    """What the second policy does differently from the first."""
    settings = tuple(
        Change(name, a.settings[name], b.settings[name], row.doc)
        for name, row in SETTINGS.items()
        if not same_setting(name, a.settings[name], b.settings[name], a.settings)
        or not same_setting(name, a.settings[name], b.settings[name], b.settings)
    )
    reasons = tuple(_reasons(a, b))
    return PolicyDifference(
        settings,
        _changes(a.env, b.env),
        _changes(a.launch, b.launch),
        _changes(_conditions(a), _conditions(b)),
        reasons,
        {} if reasons else _ratios(a.evidence, b.evidence),
    )


def difference_text(difference: PolicyDifference, a: Policy, b: Policy) -> str:
    """The difference for people, both values in columns and the evidence side by side."""
    blocks = [f"a  {a.name}\nb  {b.name}"]
    for title, rows in (
        ("settings", difference.settings),
        ("environment", difference.env),
        ("launcher", difference.launch),
        ("holds for", difference.applies_to),
    ):
        blocks.append(_columns(title, [(row.name, _text(row.a), _text(row.b), row.doc) for row in rows]))
    ours, theirs = (_evidence(policy) for policy in (a, b))
    evidence = [(name, ours.get(name, "-"), theirs.get(name, "-"), "") for name in {**ours, **theirs}]
    blocks.append(_columns("evidence", evidence))
    if difference.incomparable:
        blocks.append("the numbers must not be compared\n" + "\n".join(f"  {why}" for why in difference.incomparable))
    elif difference.ratios:
        ratios = {name: f"{value:.4g}" for name, value in difference.ratios.items()}
        blocks.append(block("b over a, measured alike", ratios))
    return "\n\n".join(blocks) + "\n"


def _changes(a: Mapping[str, Any], b: Mapping[str, Any]) -> tuple[Change, ...]:
    names = [*a, *(name for name in b if name not in a)]
    return tuple(Change(name, a.get(name), b.get(name)) for name in names if a.get(name) != b.get(name))


def _conditions(policy: Policy) -> dict[str, str]:
    conditions = {name: describe(value) for name, value in policy.applies_to.items() if name != "stack"}
    return conditions | {f"stack.{name}": describe(value) for name, value in policy.applies_to["stack"].items()}


def _reasons(a: Policy, b: Policy) -> Iterable[str]:
    """Numbers compare only between runs that held the same things fixed, on the same stack, with the same routing."""
    for policy in (a, b):
        if policy.evidence["kind"] != "measured":
            yield f"{policy.name} is {policy.evidence['kind']}, not measured"
    ours, theirs = (policy.evidence for policy in (a, b))
    if ours.get("fingerprint") is None or ours.get("fingerprint") != theirs.get("fingerprint"):
        yield f"fingerprint: {_text(ours.get('fingerprint'))} against {_text(theirs.get('fingerprint'))}"
    for axis in _AXES:
        values = [(evidence.get("routing") or {}).get(axis) for evidence in (ours, theirs)]
        if values[0] is None or values[0] != values[1]:
            yield f"routing {axis}: {_text(values[0])} against {_text(values[1])}"
    for change in _changes(_contract(a), _contract(b)):
        yield f"contract {change.name}: {_text(change.a)} against {_text(change.b)}"


def _contract(policy: Policy) -> dict[str, Any]:
    """What was held fixed: as recorded, and for what the record leaves out, where the policy holds."""
    conditions = _conditions(policy)
    held = {name: conditions[name] for name in _SCALES}
    held |= {name: str(value) for name, value in (policy.evidence.get("contract") or {}).items()}
    if policy.evidence.get("num_gpus") is not None:
        held["num_gpus"] = str(policy.evidence["num_gpus"])
    return held


def _ratios(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, float]:
    ratios = {"step_time_s": b["step_time_s"]["median"] / a["step_time_s"]["median"]}
    return ratios | {name: b[name] / a[name] for name in _NUMBERS if a.get(name) and b.get(name)}


def _evidence(policy: Policy) -> dict[str, str]:
    return {"kind": str(policy.evidence["kind"]), **evidence_rows(policy.evidence)}


def _text(value: Any) -> str:
    return words(value) if isinstance(value, dict) else value_text(value)


def _columns(title: str, rows: list[tuple[str, str, str, str]]) -> str:
    if not rows:
        return f"{title}: the same"
    table = [("", "a", "b", ""), *rows]
    widths = [max(len(row[column]) for row in table) for column in range(3)]
    lines = (
        "  ".join((*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[3])) for row in table
    )
    return "\n".join([title, *(f"  {line}".rstrip() for line in lines)])
