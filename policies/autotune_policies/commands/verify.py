"""``policy verify FILE --resolved ConfigContainer.yaml``: did training run with what the policy says?"""

import argparse
import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from autotune_policies.errors import PolicyError
from autotune_policies.policy import Policy, load_policy
from autotune_policies.resolved import ABSENT, read_resolved
from autotune_policies.settings import SETTINGS
from autotune_policies.show import value_text, words
from autotune_policies.streams import json_line, put
from autotune_policies.verify import Difference, Verification, inspect_container, inspect_settings, release_that_ran

_RECORD = ("megatron_core", "world_size")
"""What every trial records beside its settings."""


def add(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("file", metavar="FILE", help="policy YAML")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--resolved", metavar="YAML", help="saved ConfigContainer.yaml, or resolved.yaml of a trial")
    source.add_argument("--arguments", metavar="LOG", help="log with the arguments that Megatron-LM prints at start")
    parser.add_argument("--megatron-core", metavar="RELEASE", help="that ran; default: the policy's, or the installed")
    parser.add_argument("--megatron-bridge", metavar="RELEASE", help="the same for Megatron-Bridge")
    parser.add_argument("--strict", action="store_true", help="also fail on silent changes beside the policy's fields")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(options: Any) -> int:
    """Print what differs; 0 = it ran as the policy says, 1 = it did not."""
    policy = load_policy(options.file)
    found = _log(policy, options) if options.arguments else _resolved(policy, options)
    same = not found.differences and not (options.strict and found.suspects)
    source = options.arguments or options.resolved
    if options.json:
        rows = {name: [_row(row) for row in getattr(found, name)] for name in ("differences", "suspects")}
        parts = {"checked": list(found.checked), "unchecked": found.unchecked}
        put(json_line({"same": same, "file": options.file, "source": source, **rows, **parts}))
    else:
        put(verification_text(found, options.file, source))
    return 0 if same else 1


def verification_text(found: Verification, policy: str, source: str) -> str:
    """What was found, for people."""
    count = len(found.differences)
    verdict = f"{count} difference{'s' if count > 1 else ''}" if count else "as the policy says"
    lines = [f"{source} against {policy}: {verdict}, {len(found.checked)} fields checked"]
    lines += [line for row in found.differences for line in _lines(row)]
    if found.suspects:
        lines += ["changed silently, though the policy says nothing about it"]
        lines += [line for row in found.suspects for line in _lines(row)]
    if found.unchecked:
        lines += ["not checked", *(f"  {name}: {why}" for name, why in found.unchecked.items())]
    return "\n".join(lines) + "\n"


def _lines(row: Difference) -> list[str]:
    lines = [f"  {row.field}: wanted {_text(row.wanted)}, found {_text(row.found)}"]
    lines += [f"      {word}: {text}" for word, text in (("why", row.why), ("do", row.remedy)) if text]
    return lines


def _resolved(policy: Policy, options: Any) -> Verification:
    document = read_resolved(options.resolved)
    if "schema" in document:
        raise PolicyError(
            f"{options.resolved} is of the schema {document['schema']}: what should run, not what ran",
            hint="give the run's ConfigContainer.yaml, or resolved.yaml of a trial",
        )
    if "settings" in document and "model" not in document:
        if options.megatron_bridge:
            raise PolicyError("--megatron-bridge means nothing to the record of a trial")
        return _trial(policy, document, options.resolved)
    releases = {"megatron_core": options.megatron_core, "megatron_bridge": options.megatron_bridge}
    facts = {f"stack.{name}": release for name, release in releases.items() if release}
    return inspect_container(policy, document, **releases, facts=facts)


def _trial(policy: Policy, document: Mapping[str, Any], path: str) -> Verification:
    """A trial's record says every setting but those of the environment and of the launcher; a gap is a difference."""
    settings = document["settings"]
    missing = [name for name in _RECORD if name not in document]
    if not isinstance(settings, dict) or missing:
        reason = f"it has no {', '.join(missing)}" if isinstance(settings, dict) else "settings is no mapping"
        raise PolicyError(f"{path} is no record of a trial: {reason}", hint="is this resolved.yaml of a trial?")
    found = inspect_settings(policy, settings, _trial_facts(document))
    gaps = [
        Difference(name, value, ABSENT, "the trial's record does not say it")
        for name, value in policy.settings.items()
        if name not in settings and SETTINGS[name].home not in ("env", "launch")
    ]
    unseen = {name: why for name, why in found.unchecked.items() if name not in {row.field for row in gaps}}
    return replace(found, differences=(*found.differences, *gaps), unchecked=unseen)


def _trial_facts(document: Mapping[str, Any]) -> dict[str, object]:
    versions = document.get("versions")
    facts = {f"stack.{name}": value for name, value in versions.items()} if isinstance(versions, dict) else {}
    facts |= {f"stack.{name}": document.get(name) for name in ("megatron_core", "torch")}
    return facts | {"num_gpus": document.get("world_size"), "precision": document.get("precision")}


def _log(policy: Policy, options: Any) -> Verification:
    from autotune_policies.megatron_lm import read_argument_dump

    if options.megatron_bridge:
        raise PolicyError("--megatron-bridge means nothing to --arguments")
    text = Path(options.arguments).read_bytes().decode("utf-8", errors="replace")
    release = options.megatron_core or release_that_ran(policy, "megatron_core")
    facts: dict[str, object] = {
        name: int(match.group(1))
        for name, word in (
            ("num_gpus", "world_size"),
            ("seq_length", "seq_length"),
            ("global_batch_size", "global_batch_size"),
        )
        if (match := re.search(rf"\b{word} \.+ (\d+)\s*$", text, re.MULTILINE))
    }
    return inspect_settings(policy, read_argument_dump(text, release), facts)


def _row(row: Difference) -> dict[str, object]:
    values = {"wanted": _plain(row.wanted), "found": _plain(row.found)}
    return {"field": row.field, **values, "why": row.why, "remedy": row.remedy}


def _plain(value: object) -> object:
    """The value where JSON has it, else its text; nothing for what is absent."""
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        return None if value is ABSENT else str(value)
    return value


def _text(value: object) -> str:
    return words(value) if isinstance(value, dict) else value_text(value)  # type: ignore[arg-type]
