"""A Megatron-LM training script, a single command, or the log of a run, as what a policy can say."""

import re
from collections.abc import Callable, Mapping, Sequence

from autotune_policies.environment import ALLOWED, check_variable
from autotune_policies.errors import PolicyError, PolicyFormatError
from autotune_policies.importing import Imported
from autotune_policies.megatron_core import RELEASES, release_of
from autotune_policies.megatron_lm import printed_arguments, read_argument_dump, read_arguments
from autotune_policies.megatron_lm_flags import flags_of
from autotune_policies.settings import Settings
from autotune_policies.shell_text import Command, read_commands
from autotune_policies.shell_words import Unknown
from autotune_policies.surroundings import read_environment

_TELLS_NOTHING = re.compile(
    r"--(save|load|nnodes|nproc[-_]per[-_]node|[\w-]*[-_](path|dir|file|prefix|addr|port|endpoint|id|name|rank))"
)
"""Flags whose one value says where something is, so that it may stay unknown."""

_FP8_RECIPES: Mapping[str, str] = {
    "delayed": "fp8_ds", "tensorwise": "fp8_cs", "mxfp8": "fp8_mx", "blockwise": "fp8_sc"
}  # fmt: skip


def is_log(text: str) -> bool:
    """Whether a text is what a run printed, and no script."""
    return bool(re.search(r"-{6,} arguments -{6,}\s*$", text, re.MULTILINE))


def read_script(text: str, name: str, release: str) -> Imported:
    """What a training script would run.

    Args:
        text: A script or a single command; its own variables and arrays are put in.
        name: File name for messages.
        release: Release of Megatron-LM.

    Raises:
        PolicyFormatError: no command of Megatron-LM in it or more than one, a variable that the script does not
            define, or a word that no setting can express; the message begins with ``name:line:``.
    """
    command = _training_command(read_commands(text, name), name)
    where = f"{name}:{command.line}"
    words = _known_words(command, where)
    env = _variables(command, where)
    try:
        settings = read_arguments(words, release)
        contract = _contract(_said(words))
    except PolicyError as error:
        raise PolicyFormatError(f"{where}: {error.message}", hint=error.hint) from error
    ignored = sorted(set(command.variables) - set(env))
    notes: tuple[str, ...] = (f"variables that are no tuning knobs: {', '.join(ignored)}",) if ignored else ()
    if command.unread:
        lines = ", ".join(map(str, command.unread))
        notes += (f"what line {lines} of {name} reads was not read: give variables that it sets with --env",)
    return _imported(settings, env, contract, release, f"command line in {name}", notes)


def read_log(text: str, name: str, release: str) -> Imported:
    """What a run printed of its arguments; the variables that it ran under are not among them.

    Args:
        text: The log.
        name: File name for messages.
        release: Release of Megatron-LM that printed it.

    Raises:
        PolicyFormatError: no complete block of arguments, or one that no settings mean; begins with ``name:``.
    """
    try:
        settings = read_argument_dump(text, release)
        contract = _contract(printed_arguments(text).get)
    except PolicyError as error:
        raise PolicyFormatError(f"{name}: {error.message}", hint=error.hint) from error
    notes = ("a log does not say its environment: give variables with --env",)
    return _imported(settings, {}, contract, release, f"arguments printed in {name}", notes)


def _imported(
    settings: Settings, env: dict[str, str], contract: dict[str, object], release: str, source: str,
    notes: tuple[str, ...],
) -> Imported:  # fmt: skip
    if "micro_batch_size" not in settings:
        raise PolicyFormatError(f"{source} does not say --micro-batch-size")
    said = {name: value for name, value in read_environment(env).items() if value is not None}
    if settings["dispatcher"] != "hybridep":
        said.pop("tokens_per_chunk", None)
    stack = {"megatron_core": release_of(release)}
    return Imported({**settings, **said}, env, contract, stack, source, notes)


def _training_command(commands: Sequence[Command], name: str) -> Command:
    ours = _our_words()
    found = [
        command for command in commands
        if any(isinstance(word, str) and word.partition("=")[0] in ours for word in command.words)
    ]  # fmt: skip
    if not found:
        raise PolicyFormatError(
            f"{name}: no command with a flag of Megatron-LM", hint="such as --expert-model-parallel-size 8"
        )
    if len(found) > 1:
        lines = ", ".join(str(command.line) for command in found)
        raise PolicyFormatError(
            f"{name}:{found[1].line}: {len(found)} commands of Megatron-LM (lines {lines})", hint="keep one of them"
        )
    return found[0]


def _our_words() -> set[str]:
    return {word for release in RELEASES for word in flags_of(release)}


def _known_words(command: Command, where: str) -> list[str]:
    words: list[str] = []
    for word in command.words:
        if isinstance(word, str):
            words.append(word)
        elif words and _TELLS_NOTHING.fullmatch(words[-1]) and words[-1] not in _our_words():
            words.append(word.written)
        else:
            raise PolicyFormatError(
                f"{where}: {word.written} is not defined in the file, so what it stands for is not known",
                hint="define it above by NAME=value, or write the value",
            )
    return words


def _variables(command: Command, where: str) -> dict[str, str]:
    env: dict[str, str] = {}
    for name, value in command.variables.items():
        if name not in ALLOWED:
            continue
        if isinstance(value, Unknown):
            raise PolicyFormatError(f"{where}: {name} is {value.written}, which the file does not define")
        try:
            env[name] = check_variable(name, value)
        except PolicyError as error:
            raise PolicyFormatError(f"{where}: {error.message}", hint=error.hint) from error
    return env


def _said(words: Sequence[str]) -> Callable[[str], str | None]:
    """The last value that the words give a name, "True" for a flag without one."""
    values: dict[str, str] = {}
    for position, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name.startswith("--"):
            after = words[position + 1] if position + 1 < len(words) else "--"
            values[name[2:].replace("-", "_")] = value if equals else "True" if after.startswith("--") else after
    return values.get


def _contract(said: Callable[[str], str | None]) -> dict[str, object]:
    contract: dict[str, object] = {}
    for name in ("seq_length", "global_batch_size"):
        text = said(name) or ""
        if text.isdecimal() and int(text) > 0:
            contract[name] = int(text)
    ranks = [said("world_size")] if said("world_size") else [said("nproc_per_node"), said("nnodes")]
    counts = [int(text) for text in ranks if text is not None and text.isdecimal()]
    if len(counts) == len(ranks):
        contract["num_gpus"] = counts[0] * (counts[1] if len(counts) > 1 else 1)
    precision = _precision(said)
    return contract | ({"precision": precision} if precision else {})


def _precision(said: Callable[[str], str | None]) -> str | None:
    def chosen(*names: str) -> bool:
        return any(said(name) not in (None, "None", "False") for name in names)

    if chosen("fp4_format", "fp4"):
        return "nvfp4"
    if chosen("fp8_format", "fp8"):
        recipe = said("fp8_recipe") or "delayed"
        return _FP8_RECIPES.get(recipe, f"fp8_{recipe}")
    return next((name for name in ("bf16", "fp16") if chosen(name)), None)
