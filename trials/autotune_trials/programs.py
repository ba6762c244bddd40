"""What the trial programs that run somebody else's training need to know beside the trial itself."""

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

PROGRAMS = ("native", "bridge", "command")
"""Kinds of trial program; ``python -m autotune_trials.<kind>`` is one rank of it."""

BRIDGE_ENTRY = "megatron.bridge.training.pretrain:pretrain"
BRIDGE_FORWARD_STEP = "megatron.bridge.training.gpt_step:forward_step"

PLACEHOLDERS: Mapping[str, str] = {
    "arguments": "the trial's settings as Megatron-LM arguments (several words)",
    "overrides": "the trial's settings as Megatron-Bridge KEY=VALUE overrides (several words)",
    "policy": "path of a policy file with the trial's settings",
    "resolved": "path where the program may save its resolved ConfigContainer (YAML), the proof of what ran",
    "steps": "optimizer steps of the contract",
    "seq_length": "tokens per sequence",
    "global_batch_size": "sequences per optimizer step",
    "micro_batch_size": "sequences per forward pass",
    "seed": "seed of the contract",
    "world_size": "ranks of the gang",
    "ranks_per_node": "ranks on each node",
    "num_nodes": "nodes of the gang",
    "node_rank": "index of this node",
    "master_addr": "where rank 0 listens",
    "master_port": "its port",
}
"""What may stand in braces in a command's words, and what it becomes."""

SETTINGS_PLACEHOLDERS = ("arguments", "overrides", "policy")
"""Those by which the trial's settings reach a command; without one of them every trial would run the same."""

SEVERAL_WORDS = ("arguments", "overrides")
"""Placeholders that become several words where they are a whole word."""

_PLACEHOLDER = re.compile(r"\{([a-z_]+)\}")
_FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
_OVERRIDE = re.compile(r"\+{0,2}[A-Za-z_][\w.]*=.*", re.DOTALL)


@dataclass(frozen=True)
class RecipeSpec:
    """The recipe that a bridge trial runs.

    Attributes:
        function: ``module:function`` that returns the training program's configuration.
        overrides: ``KEY=VALUE`` words set on it before the trial's settings; keys are dotted, values are YAML.
        entry: ``module:function`` that trains: called with the configuration, the forward step and ``callbacks``.
        forward_step: ``module:function`` of one micro-batch's forward pass.
    """

    function: str
    overrides: tuple[str, ...] = ()
    entry: str = BRIDGE_ENTRY
    forward_step: str = BRIDGE_FORWARD_STEP

    @property
    def modules(self) -> tuple[str, ...]:
        """What must be importable on every node."""
        functions = (self.entry, self.forward_step, self.function)
        return tuple(dict.fromkeys(name.partition(":")[0] for name in functions))


@dataclass(frozen=True)
class CommandSpec:
    """The command that a command trial runs; its output has Megatron's log lines.

    Attributes:
        words: Program and arguments, with :data:`PLACEHOLDERS` in braces; no shell reads them.
        per: ``rank`` (one process per rank, under the launch variables) or ``node`` (one process per node, which
            starts the ranks itself, as torchrun does).
    """

    words: tuple[str, ...]
    per: Literal["rank", "node"] = "rank"


def rank_argv(program: str, document: Path) -> list[str]:
    """The program of one rank, on its specification."""
    return [sys.executable, "-m", f"autotune_trials.{program}", "--spec", str(document)]


def recipe_flaws(recipe: RecipeSpec) -> Iterator[tuple[str, str]]:
    """What is wrong with a recipe: field and reason."""
    for name in ("function", "entry", "forward_step"):
        value = getattr(recipe, name)
        if not _FUNCTION.fullmatch(value):
            yield name, f"{name}={value!r} must be MODULE:FUNCTION"
    for word in recipe.overrides:
        if not _OVERRIDE.fullmatch(word):
            yield "overrides", f"override {word!r} must be KEY=VALUE"


def command_flaws(command: CommandSpec) -> Iterator[tuple[str, str]]:
    """What is wrong with a command: field and reason."""
    if not command.words:
        yield "words", "the command is empty"
    if command.per not in ("rank", "node"):
        yield "per", f"per={command.per!r} must be rank or node"
    for name in placeholders(command.words):
        if name not in PLACEHOLDERS:
            yield "words", f"{{{name}}} is not known; known: {', '.join(f'{{{known}}}' for known in PLACEHOLDERS)}"


def placeholders(words: Sequence[str]) -> list[str]:
    """Names in braces, each once, in order."""
    return list(dict.fromkeys(name for word in words for name in _PLACEHOLDER.findall(word)))


def fill(words: Sequence[str], values: Mapping[str, str | Sequence[str]]) -> list[str]:
    """The words with their placeholders replaced.

    A word that is nothing but ``{arguments}`` or ``{overrides}`` becomes several; inside a longer word they are joined
    by blanks.

    Args:
        words: Words with placeholders.
        values: Text, or several words, by placeholder.

    Raises:
        KeyError: a placeholder without a value.
    """

    def text(found: re.Match[str]) -> str:
        value = values[found[1]]
        return value if isinstance(value, str) else " ".join(value)

    filled: list[str] = []
    for word in words:
        whole = _PLACEHOLDER.fullmatch(word)
        value = values[whole[1]] if whole else None
        if value is not None and not isinstance(value, str):
            filled += value
        else:
            filled.append(_PLACEHOLDER.sub(text, word))
    return filled
