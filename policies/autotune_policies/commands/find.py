"""``policy find FOLDER``: the policy that holds for a run, or the nearest one and what differs."""

import argparse
from typing import Any

from autotune_policies.errors import PolicyError
from autotune_policies.selection import Found, find
from autotune_policies.streams import json_line, put, say


def add(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("folder", metavar="FOLDER", help="folder of policies; those below it count too")
    parser.add_argument("--model", required=True, help="as policies name it")
    parser.add_argument("--cluster", required=True, help="as policies name it")
    parser.add_argument("--num-gpus", required=True, type=_count, metavar="N", help="GPUs of the run")
    parser.add_argument(
        "--stack",
        nargs="+",
        default=[],
        metavar="NAME=VERSION",
        help="such as megatron_core=0.19.2; default: installed",
    )
    parser.add_argument("--precision", help="such as bf16")
    parser.add_argument("--seq-length", type=_count, metavar="N", help="tokens per sequence")
    parser.add_argument("--global-batch-size", type=_count, metavar="N", help="sequences per optimizer step")
    parser.add_argument("--allow-predicted", action="store_true", help="also what nobody has run: predicted, imported")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(options: Any) -> int:
    """Print what was found; 0 = it holds for this run, 1 = only the nearest or a baseline."""
    found = find(
        options.folder,
        model=options.model,
        cluster=options.cluster,
        num_gpus=options.num_gpus,
        stack=dict(map(_version, options.stack)) or None,
        precision=options.precision,
        seq_length=options.seq_length,
        global_batch_size=options.global_batch_size,
        predicted=options.allow_predicted,
    )
    if options.json:
        put(json_line(_document(found)))
    else:
        put(_text(found))
        for message in found.broken.values():
            say(f"not a policy: {message}")
    return 0 if found.exact else 1


def _document(found: Found) -> dict[str, object]:
    return {
        "exact": found.exact, "kind": found.kind, "file": found.policy.name, "evidence": found.policy.evidence["kind"],
        "differs": list(found.differs), "unchecked": list(found.unchecked), "also": list(found.also),
        "broken": found.broken, "settings": found.settings,
    }  # fmt: skip


def _text(found: Found) -> str:
    words = {
        "exact": "holds for this run",
        "nearest": "the nearest, for another run",
        "fallback": "only its fallback fits",
    }
    lines = [f"{found.policy.name}  {found.policy.evidence['kind']}; {words[found.kind]}"]
    lines += [f"  {phrase}" for phrase in found.differs]
    if found.unchecked:
        lines.append(f"  not checked: {', '.join(found.unchecked)}")
    lines += [f"  {'holds too' if found.exact else 'would hold, but nobody has run it'}: {name}" for name in found.also]
    return "\n".join(lines) + "\n"


def _version(text: str) -> tuple[str, str]:
    name, equals, version = text.partition("=")
    if not (name and equals and version):
        raise PolicyError(f"--stack {text!r} is not NAME=VERSION", hint="such as megatron_core=0.19.2")
    return name, version


def _count(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and int(text) > 0):
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number of at least 1")
    return int(text)
