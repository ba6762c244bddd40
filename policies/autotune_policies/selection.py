"""The policy for a run, from a folder of them: the one that holds, or the nearest with what differs, never a guess."""

import math
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from autotune_policies.applicability import Comparison, compare, describe
from autotune_policies.apply import checked_versions, detect_stack
from autotune_policies.backends import BACKENDS
from autotune_policies.errors import PolicyError
from autotune_policies.policy import Policy, parse_policy, read_text
from autotune_policies.settings import Settings, expert_group, model_parallel_ranks

_SAYS_SCHEMA = re.compile(r"^(\{\s*)?['\"]?schema['\"]?\s*:", re.MULTILINE)
_TRUST = ("measured", "replayed", "predicted", "imported")
_RAN = ("measured", "replayed")
_WEIGHTS = ("stack.megatron_core", "precision", "seq_length", "global_batch_size", "num_gpus")
"""Differences that carry over worst first; other parts of the stack come last."""


@dataclass(frozen=True)
class Found:
    """A policy for a run, and how far it is from being made for it.

    Attributes:
        policy: The policy.
        kind: ``exact``: it holds for this run. ``nearest``: same model and cluster, but ``differs`` is not empty.
            ``fallback``: only its verified baseline carries over.
        differs: One phrase per condition that this run does not meet.
        unchecked: Conditions on which nothing was said.
        also: Other files that hold just as well; what was left open decides between them. Predicted and imported ones
            are among them unless they were asked for.
        broken: Files of the folder that are no policies: name -> what is wrong.
    """

    policy: Policy
    kind: Literal["exact", "nearest", "fallback"]
    differs: tuple[str, ...]
    unchecked: tuple[str, ...]
    also: tuple[str, ...]
    broken: dict[str, str]

    @property
    def exact(self) -> bool:
        """Whether the policy holds for this run; where not, nothing of it is applied without being asked by force."""
        return self.kind == "exact"

    @property
    def settings(self) -> Settings:
        """The settings that are proposed: the policy's, or its baseline's."""
        if self.kind == "fallback":
            assert self.policy.fallback is not None
            return self.policy.fallback
        return self.policy.settings


_Candidate = tuple[Policy, Comparison]


def find(
    folder: str | os.PathLike[str],
    *,
    model: str,
    cluster: str,
    num_gpus: int,
    stack: Mapping[str, str] | None = None,
    precision: str | None = None,
    seq_length: int | None = None,
    global_batch_size: int | None = None,
    predicted: bool = False,
) -> Found:
    """The policy in a folder (and folders below) that holds for a run, or else the nearest one.

    Measured policies go before replayed ones, newer before older, then by file name. Those that nobody has run are
    proposed only when they are asked for, and then after the others.

    Args:
        folder: Where the policies are.
        model: Model of the run, as policies name it; another model's policy is never near.
        cluster: Cluster of the run.
        num_gpus: GPUs (ranks) of the run.
        stack: Versions by name, e.g. ``{"megatron_core": "0.19.2"}``; None = those installed here.
        precision: Such as ``bf16``; None = not said, and then listed as unchecked.
        seq_length: Tokens per sequence; the same.
        global_batch_size: Sequences per optimizer step; the same.
        predicted: Propose predicted and imported policies too.

    Raises:
        PolicyError: a wrong argument, or nothing in the folder fits; the message says what is there.
        OSError: the folder cannot be read.
    """
    for name, count in (("num_gpus", num_gpus), ("seq_length", seq_length), ("global_batch_size", global_batch_size)):
        if count is not None and (isinstance(count, bool) or not isinstance(count, int) or count < 1):
            raise PolicyError(f"{name} is {count!r}, but it is a whole number of at least 1")
    versions = detect_stack() if stack is None else checked_versions(stack)
    facts: dict[str, Any] = {
        "model": model, "cluster": cluster, "num_gpus": num_gpus, "precision": precision, "seq_length": seq_length,
        "global_batch_size": global_batch_size, **{f"stack.{name}": value for name, value in versions.items()},
    }  # fmt: skip
    policies, broken = read_folder(folder)
    candidates = [(policy, compare(policy.applies_to, facts)) for policy in policies]
    holding = [row for row in candidates if not row[1].differing]
    if not predicted:
        candidates = [row for row in candidates if row[0].evidence["kind"] in _RAN]
    best = next((row for row in candidates if not row[1].differing), None)
    also = tuple(policy.name for policy, _ in holding if best is None or policy is not best[0])
    if best is not None:
        return Found(best[0], "exact", (), best[1].unchecked, also, broken)
    near = [row for row in candidates if "model" not in row[1].differing]
    choices: tuple[tuple[Literal["nearest", "fallback"], Iterator[_Candidate]], ...]
    choices = (("nearest", _nearest(near, num_gpus)), ("fallback", _fallbacks(near, num_gpus)))
    for kind, rows in choices:
        best = min(rows, key=lambda row: _distance(row[0], row[1], num_gpus), default=None)
        if best is not None:
            policy, comparison = best
            return Found(policy, kind, comparison.mismatches, comparison.unchecked, also, broken)
    if also:
        raise PolicyError(
            f"no policy in {os.fspath(folder)} that ran fits model {model} on {num_gpus} GPUs of {cluster}",
            hint=f"nobody has run {', '.join(also)}; predicted=True (--allow-predicted) takes it all the same",
        )
    raise PolicyError(
        f"no policy in {os.fspath(folder)} fits model {model} on {num_gpus} GPUs of {cluster}",
        hint=_contents(policies, model, broken),
    )


def read_folder(folder: str | os.PathLike[str]) -> tuple[list[Policy], dict[str, str]]:
    """The policies of a folder and those below, best evidence first, and the files that are none, with the reason.

    A YAML file that does not name a schema does not mean to be one, and is passed over.

    Raises:
        OSError: the folder cannot be read.
    """
    os.listdir(folder)  # a folder that is not there is an error, not an empty one
    policies: list[Policy] = []
    broken: dict[str, str] = {}
    for path in sorted(path for pattern in ("*.yaml", "*.yml") for path in Path(folder).rglob(pattern)):
        try:
            text = read_text(path)
            if _SAYS_SCHEMA.search(text):  # a request or a trial's record may lie beside a policy
                policies.append(parse_policy(text, str(path)))
        except PolicyError as error:
            broken[str(path)] = error.message
        except OSError as error:
            broken[str(path)] = f"{path}: {error.strerror}"
    # The sort is stable: files stay in the order of their names.
    policies.sort(key=lambda policy: str(policy.evidence.get("created_at") or ""), reverse=True)
    policies.sort(key=lambda policy: _TRUST.index(policy.evidence["kind"]))
    return policies, broken


def _nearest(rows: list[_Candidate], num_gpus: int) -> Iterator[_Candidate]:
    """Same cluster, the dispatcher's library as it was, and room for one model replica."""
    for policy, comparison in rows:
        library = f"stack.{BACKENDS[str(policy.settings['dispatcher'])].library}"
        if not {"cluster", library} & {*comparison.differing} and _fits(policy.settings, num_gpus):
            yield policy, comparison


def _fallbacks(rows: list[_Candidate], num_gpus: int) -> Iterator[_Candidate]:
    """The baseline needs no backend library and no tuned hardware numbers, so it carries over to other clusters."""
    for policy, comparison in rows:
        fallback = policy.fallback
        if fallback is not None and fallback["dispatcher"] == "alltoall" and _fits(fallback, num_gpus):
            yield policy, comparison


def _fits(settings: Settings, num_gpus: int) -> bool:
    """Whether whole model replicas and whole expert groups fill these GPUs."""
    stages = settings["pipeline_parallel"]
    assert isinstance(stages, int)
    return num_gpus % model_parallel_ranks(settings) == 0 and num_gpus % (expert_group(settings) * stages) == 0


def _distance(policy: Policy, comparison: Comparison, num_gpus: int) -> tuple[Any, ...]:
    fields = comparison.differing
    measured_at = policy.evidence.get("num_gpus")
    scale = abs(math.log(num_gpus / measured_at)) if isinstance(measured_at, int | float) else math.inf
    weights = [name in fields for name in _WEIGHTS]
    return ("cluster" in fields, _TRUST.index(policy.evidence["kind"]), *weights, len(fields), scale)


def _contents(policies: list[Policy], model: str, broken: Mapping[str, str]) -> str:
    """What there is instead: for the same model where it runs, or else which models there are."""
    places = dict.fromkeys(
        f"{describe(policy.applies_to['num_gpus'])} GPUs of {describe(policy.applies_to['cluster'])}"
        for policy in policies
        if describe(policy.applies_to["model"]) == model
    )
    models = dict.fromkeys(describe(policy.applies_to["model"]) for policy in policies)
    there = f"for {model} it has {'; '.join(places)}" if places else f"it has {', '.join(models) or 'no policy'}"
    return f"{there}; {len(broken)} unreadable" if broken else there
