"""How Megatron-LM's command line spells the fields of one Megatron-Core release.

Since 0.16 its parser takes most flags from the dataclass fields themselves (``megatron/training/arguments.py``,
``_add_network_size_args``), so a flag is the field with dashes, and a boolean that is false is a flag that is absent.
The exceptions are the tables below. Which fields a release has is :func:`autotune_policies.megatron_core.render`'s.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal

from autotune_policies.errors import PolicyError
from autotune_policies.megatron_core import RELEASES, render
from autotune_policies.release_fields import SAME_VALUE, SAME_VALUE_SINCE, Field
from autotune_policies.settings import SETTINGS

Arity = Literal["switch", "one", "many"]
Plain = Literal["int", "float", "str"]

_SPELLED: Mapping[str, str] = {
    "virtual_pipeline_model_parallel_size": "--num-virtual-stages-per-pipeline-rank",
    "microbatch_group_size_per_vp_stage": "--microbatch-group-size-per-virtual-pipeline-stage",
    "num_layers_in_first_pipeline_stage": "--decoder-first-pipeline-num-layers",
    "num_layers_in_last_pipeline_stage": "--decoder-last-pipeline-num-layers",
}
_UNSAID = ("overlap_p2p_comm", "batch_p2p_comm")
"""Fields without a flag to set them: the parser derives them from the pipeline."""

_PRINTED: Mapping[str, str] = {
    "num_layers_in_first_pipeline_stage": "decoder_first_pipeline_num_layers",
    "num_layers_in_last_pipeline_stage": "decoder_last_pipeline_num_layers",
}
_LISTS = ("recompute_modules", "offload_modules", "cuda_graph_modules", "cuda_graph_scope")
_TEXTS = ("moe_token_dispatcher_type", "moe_flex_dispatcher_backend", "cuda_graph_impl")

_KINDS: Mapping[str, str] = {
    field: SETTINGS[setting].kind
    for setting, field in {**SAME_VALUE, **{name: field for name, (field, _) in SAME_VALUE_SINCE.items()}}.items()
}
ALWAYS_SAID = frozenset(
    {field for field, kind in _KINDS.items() if kind in ("int", "str")} - set(_UNSAID)
    | {"moe_token_dispatcher_type", "cuda_graph_impl", "micro_batch_size"}
) - {field for field, _ in SAME_VALUE_SINCE.values()}
"""Fields that are written even at the parser's own default, so that a reader sees the whole layout."""


DEFERRED = ("--yaml-cfg", "--use-checkpoint-args", "--args-file")
"""Words by which a file, not the command line, says what runs."""

_NUMBER = re.compile(r"-\d+(\.\d*)?|-\d*\.\d+")


@dataclass(frozen=True)
class Flag:
    """One word of the command line and the field it sets.

    Attributes:
        word: E.g. ``--moe-token-dispatcher-type``.
        field: Name of the field in Megatron-Core; for a word without one, the parser's own name.
        arity: ``switch`` takes no value, ``one`` takes one, ``many`` takes all words up to the next flag.
        plain: Type of the value, or of each of them.
        printed: Name under which Megatron-LM prints it.
    """

    word: str
    field: str
    arity: Arity
    plain: Plain
    printed: str


_OTHERS = (
    Flag("--no-overlap-p2p-communication", "no_overlap_p2p", "switch", "str", "no_overlap_p2p"),
    Flag("--num-layers-per-virtual-pipeline-stage", "num_layers_per_virtual", "one", "int", "num_layers_per_virtual"),
    Flag("--recompute-activations", "recompute_activations", "switch", "str", "recompute_activations"),
    Flag("--checkpoint-activations", "checkpoint_activations", "switch", "str", "checkpoint_activations"),
)
"""Older or other words for the same settings; they set no field of their own."""


@cache
def unused_fields(release: str) -> Mapping[str, Field]:
    """Every field of one release as it is rendered when all settings have their default."""
    return render({}, release).merged()


@cache
def flags_of(release: str) -> Mapping[str, Flag]:
    """All words of one release that say something about canonical settings, by word.

    A command line that is to run under a policy may carry none of them of its own.

    Args:
        release: ``"0.16"`` to ``"0.19"``.
    """
    flags = [
        Flag(_word(field), field, _arity(field, value), _plain(field), _PRINTED.get(field, field))
        for field, value in unused_fields(release).items()
        if field not in _UNSAID
    ]
    return {flag.word: flag for flag in (*flags, *_OTHERS)}


@cache
def defaults_of(release: str) -> Mapping[str, Field]:
    """Every field of one release at the value that the parser gives it when no flag does."""
    return {
        **unused_fields(release),
        "micro_batch_size": None,
        "moe_token_dispatcher_type": "allgather",
        "use_distributed_optimizer": False,
        "expert_tensor_parallel_size": None,
        "microbatch_group_size_per_vp_stage": None,
        "recompute_modules": None,
    }


def _other_releases(word: str, release: str) -> tuple[str, ...]:
    """The other releases that know a word which this one does not; none for a word that is not ours at all."""
    if word in flags_of(release):
        return ()
    return tuple(other for other in RELEASES if word in flags_of(other))


def _word(field: str) -> str:
    return _SPELLED.get(field, "--" + field.replace("_", "-"))


def _arity(field: str, value: Field) -> Arity:
    if field in _LISTS:
        return "many"
    return "switch" if isinstance(value, bool) else "one"


def _plain(field: str) -> Plain:
    kind = "str" if field in (*_TEXTS, *_LISTS) else _KINDS.get(field, "int")
    return "float" if kind == "float" else "str" if kind in ("str", "list") else "int"


def split_words(argv: Sequence[str], release: str) -> Iterator[tuple[str, list[str]]]:
    """The command line as (flag, its words); words that belong to no flag come with an empty one.

    ``--flag=value`` stays one word for flags that are not ours, so that nothing of the user's is rewritten.
    """
    known = flags_of(release)
    position = 0
    while position < len(argv):
        word = argv[position]
        position += 1
        name, equals, value = word.partition("=")
        if not word.startswith("--") or word == "--":
            yield "", [word]
            continue
        others = _other_releases(name, release)
        if others:
            raise PolicyError(f"{name} is no flag of Megatron-LM {release}", hint=f"it is one of {', '.join(others)}")
        if equals:
            ours = name in known or name in ("--num-layers", *DEFERRED)
            yield (name, [value]) if ours else ("", [word])
            continue
        end = position
        while end < len(argv) and not _is_option(argv[end]):
            end += 1
        if name in known:
            end = min(end, position + {"switch": 0, "one": 1, "many": end - position}[known[name].arity])
        yield name, list(argv[position:end])
        position = end


def _is_option(word: str) -> bool:
    return word.startswith("-") and word != "-" and not _NUMBER.fullmatch(word)
