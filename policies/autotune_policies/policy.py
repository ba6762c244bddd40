"""Policy v1: exported settings, where they hold, and the evidence for them.

The YAML keys and their meaning are in ``schema/policy-v1.schema.json``.
"""

import os
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import yaml

from autotune_policies.applicability import FIELDS
from autotune_policies.apply import Applied, apply_policy
from autotune_policies.documents import read_document
from autotune_policies.errors import PolicyFormatError
from autotune_policies.settings import SETTINGS, Settings
from autotune_policies.validate import KEYS, SCHEMA, check_policy


# A named tuple, as all classes on this way: `dataclasses` alone costs more to import than a policy to read and apply.
class Policy(NamedTuple):
    """Settings that were found for one model on one cluster and stack.

    Attributes:
        applies_to: Conditions on model, cluster, num_gpus, precision, seq_length, global_batch_size, stack.
        settings: Every canonical setting.
        env: Variables to set before the first torch import.
        launch: What only a launcher can do: ``numa_binding`` ({gpus_per_numa_node: n}) and ``segment``
            (nodes that must share an NVLink domain).
        evidence: ``kind`` (measured, replayed, predicted) and what is known of the run behind the numbers.
        alternatives: Other settings worth knowing (rest of the Pareto front, ties), each with ``settings``.
        fallback: Every canonical setting of the verified baseline; None when there is none.
        name: File it came from, for messages.
    """

    applies_to: dict[str, Any]
    settings: Settings
    env: dict[str, str]
    launch: dict[str, Any]
    evidence: dict[str, Any]
    # One list for all that have none: nobody changes it in place.
    alternatives: list[dict[str, Any]] = []  # noqa: RUF012
    fallback: Settings | None = None
    name: str = "policy"

    def __eq__(self, other: object) -> bool:
        """Whether both say the same; the name of the file is no part of it."""
        return isinstance(other, Policy) and tuple(self[:-1]) == tuple(other[:-1])

    def __ne__(self, other: object) -> bool:
        """The opposite of being equal."""
        return not self == other

    def to_dict(self) -> dict[str, Any]:
        """The document as plain data, keys in the order of the file."""
        values = {key: getattr(self, key) for key in KEYS[1:]}
        for key in ("settings", "fallback"):
            if values[key] is not None:
                values[key] = _ordered(values[key], SETTINGS)
        values["applies_to"] = _ordered(values["applies_to"], FIELDS)
        return {"schema": SCHEMA, **values}

    def apply(
        self,
        config: object,
        *,
        model: str | None = None,
        cluster: str | None = None,
        num_gpus: int | None = None,
        precision: str | None = None,
        seq_length: int | None = None,
        global_batch_size: int | None = None,
        stack: Mapping[str, str] | None = None,
        force: bool = False,
    ) -> Applied:
        """Put the policy into a Megatron-Bridge ConfigContainer or a TransformerConfig-like object, or do nothing.

        What is not given is detected where it can be (``WORLD_SIZE``, flags and ``seq_length`` of the
        configuration, installed versions); what nobody knows is listed in ``Applied.unchecked``. Settings
        that live in other objects are returned in ``Applied.elsewhere`` for the recipe to use. What a container
        already says, in whatever words, stays as it is.

        Args:
            config: Object whose attributes are set; it counts as a container if it has ``model``, ``ddp``, ``train``.
            model: Model of this run, as the policy names it.
            cluster: Cluster of this run, as the policy names it.
            num_gpus: GPUs (ranks) of this run.
            precision: Precision of this run, e.g. ``bf16``.
            seq_length: Tokens per sequence.
            global_batch_size: Sequences per optimizer step.
            stack: Versions by name, e.g. ``{"megatron_core": "0.19.2"}``; they replace detected ones.
            force: Apply although ``applies_to`` differs; warns with the names of the fields.

        Raises:
            PolicyMismatch: ``applies_to`` differs; every differing field is named.
            PolicyError: torch is imported under another ``env``, a field does not exist, or the Megatron-Core
                release is unknown or cannot express a setting.
        """
        given = {
            "model": model, "cluster": cluster, "num_gpus": num_gpus, "precision": precision,
            "seq_length": seq_length, "global_batch_size": global_batch_size,
        }  # fmt: skip
        return apply_policy(self.applies_to, self.settings, self.env, config, given, stack or {}, force=force)


def load_policy(path: str | os.PathLike[str]) -> Policy:
    """The policy in a YAML file.

    Raises:
        PolicyFormatError: not a policy v1; the message begins with file and line.
        OSError: the file cannot be read.
    """
    return parse_policy(read_text(path), str(path))


def read_text(path: str | os.PathLike[str]) -> str:
    """The text of a file.

    Raises:
        PolicyFormatError: not UTF-8; the message begins with the file.
        OSError: the file cannot be read.
    """
    with open(path, "rb") as file:
        data = file.read()
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise PolicyFormatError(f"{path}: not UTF-8 text (byte {error.start})") from error


def parse_policy(text: str, name: str = "policy") -> Policy:
    """The policy in a YAML text.

    Args:
        text: YAML of plain data.
        name: File name for messages.

    Raises:
        PolicyFormatError: not a policy v1; the message begins with ``name:line:``.
    """
    root = check_policy(read_document(text, name))
    return Policy(
        applies_to=root["applies_to"],
        settings=root["settings"],
        env=root["env"],
        launch=root["launch"],
        evidence=root["evidence"],
        alternatives=root.get("alternatives", []),
        fallback=root.get("fallback"),
        name=name,
    )


def dump_policy(policy: Policy) -> str:
    """The policy as YAML text, keys in a fixed order; :func:`parse_policy` gives an equal policy back.

    Raises:
        PolicyFormatError: the policy is not valid; the line is that of the text that would have been written.
    """
    try:
        parts = [
            yaml.dump({key: value}, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110)
            for key, value in policy.to_dict().items()
        ]
    except (yaml.YAMLError, RecursionError) as error:
        raise PolicyFormatError(f"{policy.name}: holds values that are no plain data") from error
    text = "\n".join(parts)
    if parse_policy(text, policy.name) != policy:
        raise PolicyFormatError(f"{policy.name}: holds values that YAML text would change")
    return text


def _ordered(values: Mapping[str, Any], order: Iterable[str]) -> dict[str, Any]:
    names = [name for name in order if name in values]
    return {name: values[name] for name in [*names, *(name for name in values if name not in names)]}


class _Dumper(yaml.SafeDumper):
    """Short lists on one line, and no anchors: a reader sees every value where it belongs."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _represent_list(dumper: yaml.SafeDumper, items: list[Any]) -> yaml.Node:
    flat = not any(isinstance(item, list | dict) for item in items)
    return dumper.represent_sequence("tag:yaml.org,2002:seq", items, flow_style=flat)


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    # Other styles lose control characters and rare line separators.
    style = None if text.isprintable() else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(list, _represent_list)
_Dumper.add_representer(str, _represent_text)
