"""Refuses to train with other settings than the policy's: two lines in a recipe.

For Megatron-Bridge::

    from autotune_policies.callback import PolicyGuard
    pretrain(cfg, forward_step, callbacks=[PolicyGuard("policy.yaml")])

For plain Megatron-LM, once its arguments are known::

    check_running(load_policy("policy.yaml"), get_args())
"""

import os
import sys
from pathlib import Path
from typing import Any

from autotune_policies.apply import detect_stack
from autotune_policies.backends import BACKENDS
from autotune_policies.errors import PolicyError, PolicyMismatch
from autotune_policies.megatron_lm import read_argument_dump
from autotune_policies.policy import Policy, load_policy
from autotune_policies.resolved import ABSENT, Difference, Resolved
from autotune_policies.show import value_text
from autotune_policies.verify import Verification, inspect_container, inspect_settings


class PolicyGuard:
    """A Megatron-Bridge callback that checks the policy when training starts; no base class is needed.

    Every rank checks its own process, so a variable that only one node lacks is found there.

    Args:
        policy: The policy, or its file; read at once, so that a wrong file costs no start-up.

    Attributes:
        found: What was checked at the start of training; None before.
    """

    def __init__(self, policy: Policy | str | os.PathLike[str]) -> None:
        self.policy = policy if isinstance(policy, Policy) else load_policy(Path(policy))
        self.found: Verification | None = None

    def on_train_start(self, context: Any) -> None:
        """Check the configuration that training starts with.

        Raises:
            PolicyMismatch: it is not the policy's; every differing field is named.
            PolicyError: this is no configuration that the policy can be compared with.
        """
        self.found = check_running(self.policy, context.state.cfg)


def check_running(policy: Policy, config: object) -> Verification:
    """What was checked of this process, if it runs as the policy says.

    Args:
        policy: What should run.
        config: A Megatron-Bridge ConfigContainer, or the arguments of Megatron-LM after their own validation.

    Raises:
        PolicyMismatch: something else would run; every differing field is named, with the reason where it is a known
            silent change.
        PolicyError: an unknown release, or a configuration that is neither.
    """
    versions = detect_stack()
    facts: dict[str, object] = {f"stack.{name}": version for name, version in versions.items()}
    world_size = os.environ.get("WORLD_SIZE", "")
    if world_size.isdecimal() and int(world_size) > 0:
        facts["num_gpus"] = int(world_size)
    if Resolved(config).raw("model") is not ABSENT:
        releases = {name: versions.get(name) for name in ("megatron_core", "megatron_bridge")}
        found = inspect_container(policy, config, **releases, environment=os.environ, facts=facts)
    else:
        found = inspect_settings(policy, _arguments(config, versions), {**_contract(config), **facts}, os.environ)
    rows = [*found.differences, *_library(policy)]
    if rows:
        phrases = (_phrase(row) for row in rows)
        remedies = dict.fromkeys(row.remedy for row in rows if row.remedy)
        raise PolicyMismatch(
            f"this run is not what {policy.name} says: " + "; ".join(phrases), hint="; ".join(remedies) or None
        )
    return found


def _arguments(config: object, versions: dict[str, str]) -> dict[str, Any]:
    """Canonical settings of Megatron-LM's arguments, read from the lines that it would print of them."""
    values = getattr(config, "__dict__", {})
    if "micro_batch_size" not in values or "megatron_core" not in versions:
        raise PolicyError(
            f"a {type(config).__name__} cannot be compared with a policy"
            if "megatron_core" in versions
            else "the Megatron-Core release of this run is unknown",
            hint="give a ConfigContainer, or what get_args() returns",
        )
    title = "-" * 8
    lines = [f"  {name} {'.' * 8} {value}" for name, value in values.items()]
    text = "\n".join([f"{title} arguments {title}", *lines, f"{title} end of arguments {title}"])
    return read_argument_dump(text, versions["megatron_core"])


def _contract(config: object) -> dict[str, object]:
    known = ((name, getattr(config, name, None)) for name in ("seq_length", "global_batch_size"))
    return {name: value for name, value in known if value is not None}


def _library(policy: Policy) -> list[Difference]:
    """A backend whose library Megatron-Core could not import, or that has no CUDA device: it will not carry a token."""
    dispatcher = str(policy.settings["dispatcher"])
    row = BACKENDS[dispatcher]
    if not row.flex:
        return []
    fused = sys.modules.get("megatron.core.transformer.moe.fused_a2a")
    if fused is not None and row.flag is not None and getattr(fused, row.flag, None) is False:
        why = f"Megatron-Core could not import {row.library}"
        return [
            Difference("dispatcher", dispatcher, ABSENT, why, f"install {row.library}, or use the policy's fallback")
        ]
    torch = sys.modules.get("torch")
    if torch is not None and not torch.cuda.is_available():
        why = "without a CUDA device the backend that was asked for is kept, whether or not it can run"
        return [Difference("dispatcher", dispatcher, ABSENT, why, "train on the policy's own cluster")]
    return []


def _phrase(row: Difference) -> str:
    text = f"{row.field} is {_text(row.found)}, but the policy says {_text(row.wanted)}"
    return f"{text} ({row.why})" if row.why else text


def _text(value: Any) -> str:
    return repr(value) if value is ABSENT else value_text(value)
