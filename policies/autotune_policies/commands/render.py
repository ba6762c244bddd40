"""``policy render FILE --for TARGET``: the policy in the words of another program."""

import argparse
import os
import shlex
from collections.abc import Iterable, Mapping
from typing import Any

from autotune_policies.apply import detect_stack
from autotune_policies.errors import PolicyError
from autotune_policies.launch import runs_under
from autotune_policies.megatron_core import release_of, render
from autotune_policies.megatron_lm import arguments_of
from autotune_policies.policy import Policy, load_policy
from autotune_policies.streams import json_text, put, say
from autotune_policies.surroundings import LAUNCH_SETTINGS, stale_variables

TARGETS = ("env", "json", "megatron-core", "megatron-lm", "megatron-bridge")
_NAMES_RELEASE = ("megatron-core", "megatron-lm", "megatron-bridge")


def add(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("file", metavar="FILE", help="policy YAML")
    parser.add_argument(
        "--for", dest="target", required=True, choices=TARGETS,
        help="env: shell exports; json: settings, env and launch; megatron-core: fields of one release; "
        "megatron-lm: words of its command line, shell-quoted, one flag a line; "
        "megatron-bridge: overrides for its launcher, shell-quoted, one a line",
    )  # fmt: skip
    parser.add_argument("--megatron-core", metavar="RELEASE", help="such as 0.19; default: the installed")
    parser.add_argument("--megatron-bridge", metavar="RELEASE", help="such as 0.6; default: the installed")
    parser.add_argument(
        "--recipe", metavar="MODULE:FUNCTION", help="with megatron-bridge: only what this recipe says differently"
    )


def run(options: Any) -> None:
    """Print the rendered policy."""
    if options.megatron_core is not None and options.target not in _NAMES_RELEASE:
        raise PolicyError(f"--megatron-core means nothing to --for {options.target}")
    for name in ("megatron_bridge", "recipe"):
        if getattr(options, name) is not None and options.target != "megatron-bridge":
            raise PolicyError(f"--{name.replace('_', '-')} means nothing to --for {options.target}")
    policy = load_policy(options.file)
    if options.target == "env":
        put(environment_file(policy.settings, policy.env))
        _say_launch(policy.launch, options.file)
    elif options.target == "json":
        document = policy.to_dict()
        put(json_text({name: document[name] for name in ("settings", "env", "launch")}))
    elif options.target == "megatron-lm":
        _check_launch(policy, options.file, "on Megatron-LM's command line")
        put(argument_lines(arguments_of(policy.settings, options.megatron_core or release_here("megatron_core"))))
        if policy.env and not runs_under(options.file):
            say(f"its environment: policy render {options.file} --for env")
    elif options.target == "megatron-bridge":
        put("".join(f"{shlex.quote(word)}\n" for word in _overrides(policy, options)))
    else:
        release = release_of(options.megatron_core or release_here("megatron_core"))
        fields = render(policy.settings, release)
        homes = {"transformer": fields.transformer, "ddp": fields.ddp, "training": fields.training}
        put(json_text({"megatron_core": release, **homes}))


def environment_file(settings: Mapping[str, object], env: Mapping[str, str]) -> str:
    """Lines for a shell to read (``source FILE``): variables to set, and those of another dispatcher to unset."""
    lines = [f"unset {name}\n" for name in stale_variables(settings)]
    return "".join([*lines, *(f"export {name}={shlex.quote(value)}\n" for name, value in env.items())])


def argument_lines(words: Iterable[str]) -> str:
    """Words of a command line, shell-quoted, one flag a line: to be pasted after a command, or given to ``eval``."""
    text = ""
    for word in words:
        text += (" \\\n" if text and word.startswith("--") else " " if text else "") + shlex.quote(word)
    return text + "\n"


def _say_launch(launch: Mapping[str, object], file: str) -> None:
    for name in launch:
        say(f"launch.{name} is not in it, only a launcher can do it: policy exec {file} -- COMMAND")


def _check_launch(policy: Policy, file: str, where: str) -> None:
    if policy.launch and not runs_under(file):
        named = ", ".join(f"launch.{name}" for name in policy.launch)
        raise PolicyError(
            f"{named} cannot be said {where}: only a launcher can do it",
            hint=f"run it, and this command too, under: policy exec {file} -- COMMAND",
        )


def _overrides(policy: Policy, options: Any) -> list[str]:
    from autotune_policies.bridge_import import build_recipe
    from autotune_policies.megatron_bridge import overrides_of

    _check_launch(policy, options.file, "to Megatron-Bridge")
    settings = {name: value for name, value in policy.settings.items() if name not in LAUNCH_SETTINGS}
    return overrides_of(
        settings,
        policy.env,
        megatron_core=options.megatron_core or release_here("megatron_core"),
        megatron_bridge=options.megatron_bridge or release_here("megatron_bridge"),
        container=build_recipe(options.recipe) if options.recipe else None,
        environment=os.environ,
    )


def release_here(name: str) -> str:
    """The installed version of ``megatron_core`` or ``megatron_bridge``.

    Raises:
        PolicyError: it is not installed.
    """
    version = detect_stack().get(name)
    if version is None:
        word, such = name.replace("_", "-"), {"megatron_core": "0.19", "megatron_bridge": "0.6"}[name]
        raise PolicyError(f"no {word} is installed here", hint=f"name the release: --{word} {such}")
    return version
