"""Canonical settings as words of Megatron-LM's command line, and read back from a command line or a log.

Megatron-LM of one release runs on Megatron-Core of the same release, so the fields are those of
:mod:`autotune_policies.megatron_core`; here is only how they are said. A boolean is false by the absence of its flag:
a command line that a policy is added to may carry no flag of :func:`autotune_policies.megatron_lm_flags.flags_of`
itself, and :func:`merge_arguments` takes them out. Settings of the environment and of the launcher have no flag; they
are in ``policy render --for env`` and ``policy exec``.
"""

import re
from collections.abc import Mapping, Sequence

from autotune_policies.errors import PolicyError
from autotune_policies.megatron_core import release_of, render
from autotune_policies.megatron_lm_flags import (
    ALWAYS_SAID,
    DEFERRED,
    Flag,
    defaults_of,
    flags_of,
    split_words,
    unused_fields,
)
from autotune_policies.megatron_lm_meaning import settled, use_newer_words, virtual_pipeline_of
from autotune_policies.release_fields import Field
from autotune_policies.settings import Settings

_TITLE = re.compile(r"-{6,} (end of )?arguments -{6,}\s*$")
_PRINTED = re.compile(r"(?P<name>[A-Za-z_]\w*) \.* ?(?P<value>.*)$")


def arguments_of(settings: Mapping[str, object], release: str) -> list[str]:
    """The words that make a Megatron-LM training program run with these settings.

    Settings that are not given are written at their defaults, so the words are always the complete set. Numbers and
    names are said even where the parser's default is the same; what is false, empty or null is said by no flag.

    Args:
        settings: Canonical names and values.
        release: ``"0.16"`` to ``"0.19"``, or a full version of one of them.

    Raises:
        PolicyError: an illegal setting, an unsupported release, or a setting that the command line cannot express.
    """
    name = release_of(release)
    fields = render(settings, name).merged()
    if fields["sequence_parallel"] and fields["tensor_model_parallel_size"] == 1:
        raise _inexpressible("sequence_parallel=True with tensor_parallel=1", name, "the parser would turn it off")
    if fields["recompute_granularity"] == "selective" and fields["recompute_modules"] == []:
        raise _inexpressible(
            "recompute_granularity=selective without recompute_modules", name, "no flag would mean core_attn"
        )
    unused = unused_fields(name)
    said = set(ALWAYS_SAID)
    if fields["moe_token_dispatcher_type"] == "flex":
        said |= {
            "moe_flex_dispatcher_backend",
            "moe_flex_dispatcher_num_sms",
            f"moe_{fields['moe_flex_dispatcher_backend']}_num_sms",
        }
    # Both follow from the layout or the pipeline, and the parser refuses them beside a layout.
    derived = {"microbatch_group_size_per_vp_stage"}
    if fields["pipeline_model_parallel_layout"] is not None:
        derived.add("virtual_pipeline_model_parallel_size")
    words: list[str] = []
    for flag in flags_of(name).values():
        value = fields.get(flag.field)
        if value in (None, False, []) or flag.field in derived:
            continue
        if flag.arity != "switch" and value == unused[flag.field] and flag.field not in said:
            continue
        words.append(flag.word)
        if flag.arity != "switch":
            words.extend(value if isinstance(value, list) else [str(value)])
    return words


def read_arguments(argv: Sequence[str], release: str) -> Settings:
    """The settings that a command line asks for: the inverse of :func:`arguments_of`.

    Args:
        argv: Words of the whole command or of its arguments; those of the model, the data and the launcher are passed
            over. A word that stands twice counts where it stands last.
        release: Release of Megatron-LM, ``"0.16"`` to ``"0.19"``, or a full version of one of them.

    Returns:
        All settings that a command line can say; ``micro_batch_size`` only when it is said.

    Raises:
        PolicyError: a flag of another release, a flag without its value, or a request that no setting can express.
    """
    name = release_of(release)
    fields = dict(defaults_of(name))
    num_layers: int | None = None
    for word, values in split_words(argv, name):
        flag = flags_of(name).get(word)
        if flag is not None:
            fields[flag.field] = _value(flag, values)
        elif word == "--num-layers":
            num_layers = _count(word, values)
        elif word in DEFERRED:
            raise PolicyError(f"{word}: the settings are in a file that the command line only names")
    use_newer_words(fields, name)
    fields["virtual_pipeline_model_parallel_size"] = virtual_pipeline_of(fields, num_layers)
    return settled(fields, name)


def read_argument_dump(text: str, release: str) -> Settings:
    """The settings in the ``arguments`` block that Megatron-LM prints at start.

    Args:
        text: A log; what stands before a line's name (rank, time) is passed over. Of several blocks the last counts.
        release: Release of Megatron-LM that printed it.

    Raises:
        PolicyError: no complete block, a name that the release should print is missing, or a value that no setting
            can express.
    """
    name = release_of(release)
    printed = printed_arguments(text)
    fields = dict(defaults_of(name))
    for flag in flags_of(name).values():
        if flag.printed in printed:
            fields[flag.field] = _printed_value(flag, printed[flag.printed])
    if "virtual_pipeline_model_parallel_size" not in printed or "moe_token_dispatcher_type" not in printed:
        raise PolicyError("the printed arguments are not those of a Megatron-LM training program")
    absent = [
        flag.printed for flag in flags_of(name).values() if _is_printed(flag, name) and flag.printed not in printed
    ]
    if absent:
        raise PolicyError(
            f"the printed arguments have no {', '.join(absent)}, which Megatron-LM {name} has",
            hint="are they of another release?",
        )
    if printed.get("overlap_p2p_comm") == "False" and printed["virtual_pipeline_model_parallel_size"] != "None":
        fields["no_overlap_p2p"] = True
    use_newer_words(fields, name)
    return settled(fields, name)


def merge_arguments(argv: Sequence[str], settings: Mapping[str, object], release: str) -> list[str]:
    """A user's own command line with these settings in force: its own words for them go, ours stand at the end.

    Args:
        argv: Words of the whole command or of its arguments.
        settings: Canonical names and values.
        release: Release of Megatron-LM.

    Raises:
        PolicyError: as :func:`arguments_of`, a command line whose settings come from a file, or one that ends its
            options by ``--``, after which ours would mean nothing.
    """
    name = release_of(release)
    ours = arguments_of(settings, name)
    governed = {flag.word for flag in flags_of(name).values() if flag.field not in _left_alone(settings, name)}
    kept: list[str] = []
    said = False
    for word, values in split_words(argv, name):
        said |= word in governed
        if said and values == ["--"]:  # one before them all belongs to a launcher
            raise PolicyError("'--' ends the options, so nothing after it is read", hint="remove it")
        if word in DEFERRED:
            raise PolicyError(f"{word}: the settings would come from a file", hint="remove it from the command line")
        if word not in governed:
            kept += [word, *values] if word else values
    return [*kept, *ours]


def _left_alone(settings: Mapping[str, object], release: str) -> set[str]:
    """Fields that the settings say nothing about: the fine print of the chosen dispatcher."""
    return set(unused_fields(release)) - set(render(settings, release).merged())


def _value(flag: Flag, values: Sequence[str]) -> Field:
    if flag.arity == "switch":
        if values:
            raise PolicyError(f"{flag.word} takes no value, but got {values[0]!r}")
        return True
    if not values:
        raise PolicyError(f"{flag.word} has no value")
    return list(values) if flag.arity == "many" else _plain(flag.word, flag.plain, values[0])


def _plain(what: str, kind: str, text: str) -> Field:
    try:
        return text if kind == "str" else float(text) if kind == "float" else int(text)
    except ValueError as error:
        needed = "number" if kind == "float" else "whole number"
        raise PolicyError(f"{what} is {text!r}, which is no {needed}") from error


def _count(word: str, values: Sequence[str]) -> int | None:
    return int(values[0]) if values and values[0].isdecimal() else None


def printed_arguments(text: str) -> dict[str, str]:
    """Name -> value, as text, in the last complete block of arguments that a log has.

    Raises:
        PolicyError: there is none.
    """
    block: dict[str, str] | None = None
    complete: dict[str, str] | None = None
    for line in text.splitlines():
        title = _TITLE.search(line)
        if title and title.group(1):
            block, complete = None, block or complete
        elif title:
            block = {}
        elif block is not None:
            entry = _PRINTED.search(line.rstrip())
            if entry:
                block[entry["name"]] = entry["value"].strip()
    if complete is None:
        raise PolicyError("no block of printed arguments", hint="it begins with '--- arguments ---' and has an end")
    return complete


def _is_printed(flag: Flag, release: str) -> bool:
    """Whether the flag's name must be in the block: the parser drops words that it has replaced by newer ones."""
    replaced = {"enable_cuda_graph", "external_cuda_graph"}
    if "cuda_graph_modules" in defaults_of(release):
        replaced.add("cuda_graph_scope")
    return flag.field in defaults_of(release) and flag.field not in replaced


def _printed_value(flag: Flag, text: str) -> Field:
    if text == "None":
        return None
    if flag.arity == "switch":
        return text == "True"
    if flag.arity == "many":
        return re.findall(r"(?<=')\w+(?=')|(?<=\.)[a-z]\w*", text) if text.startswith("[") else text.split()
    return _plain(flag.printed, flag.plain, text)


def _inexpressible(what: str, release: str, hint: str) -> PolicyError:
    return PolicyError(f"{what} cannot be expressed on the command line of Megatron-LM {release}", hint=hint)
