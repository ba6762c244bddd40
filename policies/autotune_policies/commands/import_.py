"""``policy import SOURCE -o FILE``: a configuration that a team already has, as a policy without numbers."""

import argparse
import re
from pathlib import Path
from typing import Any

from autotune_policies.commands.render import release_here
from autotune_policies.errors import PolicyError
from autotune_policies.importing import ROLES, Imported, conditions, left_out, policy_from
from autotune_policies.policy import dump_policy, read_text
from autotune_policies.streams import json_line, put, say

_PARTS = ("megatron_core", "megatron_bridge")


def add(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument(
        "source", metavar="SOURCE",
        help="recipe as MODULE:FUNCTION, or a file: ConfigContainer.yaml that a run has saved, card of verified runs, "
        "Megatron-LM training script or command line, log of a Megatron-LM run",
    )  # fmt: skip
    parser.add_argument("--item", metavar="RUN", help="of a card, such as pretrain_performance.H100")
    parser.add_argument("-o", "--output", metavar="FILE", help="policy to write; default: standard output")
    parser.add_argument("--as", dest="role", choices=ROLES, default="seed", help="start of a search, or what to beat")
    for name, text in (("model", "as the search space names it"), ("cluster", "as the cluster file names it")):
        parser.add_argument(f"--{name}", required=True, help=text)
    for name in ("num-gpus", "seq-length", "global-batch-size"):
        parser.add_argument(f"--{name}", type=_count, metavar="N", help="where the source does not say it")
    parser.add_argument("--precision", help="such as bf16 or fp8_mx; where the source does not say it")
    for name in _PARTS:
        parser.add_argument(f"--{name.replace('_', '-')}", metavar="RELEASE", help="default: the installed")
    parser.add_argument(
        "--env", action="append", default=[], metavar="NAME=VALUE", help="variable that the launcher sets"
    )
    parser.add_argument("--json", action="store_true", help="print JSON about the policy instead of the policy")


def run(options: Any) -> None:
    """Write the policy."""
    found = _read(options)
    env = {**found.env, **dict(_assignment(word) for word in options.env)}
    given = {
        name: getattr(options, name)
        for name in ("model", "cluster", "num_gpus", "precision", "seq_length", "global_batch_size")
    }
    applies_to = conditions(found, given)
    policy = policy_from(found.settings, env, applies_to, found.source, role=options.role, notes=found.notes)
    dropped = left_out(policy.settings, env)
    for name in dropped:
        say(f"{name}={env[name]} is left out: no policy with these settings may set it")
    text = dump_policy(policy)
    if options.output:
        Path(options.output).write_text(text, encoding="utf-8")
    elif not options.json:
        put(text)
    if options.json:
        put(json_line({"policy": options.output, "document": policy.to_dict(), "left_out": list(dropped)}))


def _read(options: Any) -> Imported:
    """What the source says; a file is told by its content."""
    source = options.source
    if re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", source):
        from autotune_policies.bridge_import import read_recipe

        _refuse_item(options)
        return read_recipe(source, _versions(options))
    text, name = read_text(source), Path(source).name
    if _is_card(text):
        from autotune_policies.verification_card import read_card

        return read_card(text, name, options.item, _versions(options))
    _refuse_item(options)
    if source.endswith((".yaml", ".yml")):
        from autotune_policies.bridge_import import read_saved

        return read_saved(source, _versions(options))
    from autotune_policies.megatron_lm_import import is_log, read_log, read_script

    release = options.megatron_core or release_here("megatron_core")
    return (read_log if is_log(text) else read_script)(text, name, release)


def _is_card(text: str) -> bool:
    """Whether a text is a model-verification card."""
    return all(re.search(rf"^{key}:", text, re.MULTILINE) for key in ("items", "verification_index"))


def _refuse_item(options: Any) -> None:
    if options.item is not None:
        raise PolicyError("--item means nothing here: only a model-verification card has several runs")


def _versions(options: Any) -> dict[str, str]:
    return {name: getattr(options, name) or release_here(name) for name in _PARTS}


def _assignment(word: str) -> tuple[str, str]:
    name, equals, value = word.partition("=")
    if not (name and equals):
        raise PolicyError(f"--env {word!r} is no assignment", hint="such as --env USE_MNNVL=1")
    return name, value


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)
