"""A policy as text for people: what it sets, where it holds, and how far its numbers can be trusted."""

from collections.abc import Mapping

from autotune_policies.applicability import describe
from autotune_policies.policy import Policy
from autotune_policies.settings import SETTINGS, Value

_TRUST = {
    "measured": "measured: these settings ran as asked",
    "replayed": "replayed: taken from a recorded table, not run here",
    "predicted": "PREDICTED: nobody has run these settings",
    "imported": "imported: taken from a configuration, nothing was measured",
}


def policy_text(policy: Policy) -> str:
    """The whole policy as a table; where the fallback differs, its value stands beside."""
    blocks = [
        block(_TRUST[policy.evidence["kind"]], evidence_rows(policy.evidence)),
        block("holds for", _condition_rows(policy.to_dict()["applies_to"])),
        block("settings", _settings_rows(policy)),
    ]
    if policy.env:
        blocks.append(block("environment", policy.env))
    if policy.launch:
        blocks.append(block("launcher", {name: words(value) for name, value in policy.launch.items()}))
    if policy.alternatives:
        count = len(policy.alternatives)
        blocks.append(f"{count} alternative{'s' if count > 1 else ''} in the file (--json prints them)")
    return "\n\n".join(blocks) + "\n"


def value_text(value: Value) -> str:
    """A setting's value as in a measurement table: lists comma-joined, nothing as a dash."""
    if value is None or value == []:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ",".join(value) if isinstance(value, list) else str(value)


def block(title: str, rows: Mapping[str, str]) -> str:
    """A title and its rows, names aligned."""
    width = max(map(len, rows), default=0)
    return "\n".join([title, *(f"  {name:<{width}}  {text}".rstrip() for name, text in rows.items())])


def _settings_rows(policy: Policy) -> dict[str, str]:
    rows = {}
    for name in SETTINGS:
        text = value_text(policy.settings[name])
        if policy.fallback is not None and policy.fallback[name] != policy.settings[name]:
            text += f"  (fallback: {value_text(policy.fallback[name])})"
        rows[name] = text
    return rows


def _condition_rows(applies_to: Mapping[str, object]) -> dict[str, str]:
    rows = {name: describe(condition) for name, condition in applies_to.items() if name != "stack"}
    stack = applies_to["stack"]
    assert isinstance(stack, dict)
    return rows | {name: describe(condition) for name, condition in stack.items()}


def evidence_rows(evidence: Mapping[str, object]) -> dict[str, str]:
    """What is known of the run behind a policy, in words; what it does not say is absent."""
    rows: dict[str, str] = {}
    step_time = evidence.get("step_time_s")
    if isinstance(step_time, dict):
        text = f"{step_time['median']:.6g} (median"
        if step_time.get("steps") is not None:
            text += f" of {step_time['steps']} steps"
        interval = step_time.get("ci95")
        rows["step_time_s"] = text + (f", 95 % {interval[0]:.6g} to {interval[1]:.6g})" if interval else ")")
    for name in ("tokens_per_s_per_gpu", "tflops_per_gpu", "mfu"):
        value = evidence.get(name)
        if isinstance(value, int | float):
            rows[name] = f"{value:.6g}"
    memory = evidence.get("peak_memory_bytes")
    if isinstance(memory, int | float):
        rows["peak_memory_bytes"] = f"{memory} ({memory / 2**30:.2f} GiB)"
    for name in (
        "role",
        "source",
        "device",
        "num_gpus",
        "routing",
        "study",
        "trial",
        "fingerprint",
        "created_at",
        "note",
    ):
        if evidence.get(name) is not None:
            rows[name] = words(evidence[name])
    return rows


def words(value: object) -> str:
    """Plain data on one line."""
    if isinstance(value, dict):
        return ", ".join(f"{name} {words(item)}" for name, item in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
