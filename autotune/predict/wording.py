"""What published rows say in words: settings in a note, modules by other names, the program that ran, its formats.

A published row names what is special about it, often not in a column. What is read here is only what is written; what
a row leaves open is filled in by :mod:`autotune.predict.placement`, which says so.
"""

import re
from collections.abc import Mapping
from dataclasses import replace

from autotune.predict.numerics import MEGATRON_LM, Numerics, bridge_numerics
from autotune_policies.settings import SETTINGS, Setting

_OTHER_SETTINGS = {
    "moe_permute_fusion": "permute_fusion",
    "moe_shared_expert_overlap": "shared_expert_overlap",
    "use_transformer_engine_op_fuser": "op_fuser",
}
"""Names of Megatron's fields for the settings of this project, where notes use them."""

_PHRASES = {"shared overlap": "shared_expert_overlap"}
"""Words with which a part of a note begins that switch a setting on."""

_OTHER_MODULES = {"up_proj": "mla_up_proj", "shared_expert": "shared_experts", "moe_activation": "moe_act"}
"""Names under which tables list modules that Megatron-Core calls otherwise."""

_CAPACITY = re.compile(r"static dispatch (?:\(capacity )?(\d+\.\d+)")
_LAYOUT = re.compile(r"layout (E\S+)")
_MODULES = re.compile(r"recompute_modules as published: ([\w, ]+)")

_BRIDGE = re.compile(r"megatron-bridge|mbridge", re.IGNORECASE)
_MEGATRON_LM = re.compile(r"megatron-lm", re.IGNORECASE)


def told(note: str) -> dict[str, object]:
    """Settings that a note states between semicolons: ``moe_permute_fusion=false; shared overlap; layout Et*3|...``."""
    settings: dict[str, object] = {}
    for part in (piece.strip() for piece in note.split(";")):
        name, equals, text = part.partition("=")
        setting = SETTINGS.get(_OTHER_SETTINGS.get(name, name))
        if setting is not None and setting.kind == "bool" and text in ("", "true", "false"):
            settings[setting.name] = text != "false" if equals else True
        for phrase, switched in _PHRASES.items():
            if part.startswith(phrase):
                settings[switched] = True
        for pattern, spelled in ((_CAPACITY, "rank_capacity_factor"), (_LAYOUT, "pipeline_layout")):
            if found := pattern.search(part):
                settings[spelled] = float(found[1]) if spelled == "rank_capacity_factor" else found[1]
    return settings


def modules(setting: Setting, text: str) -> tuple[list[str], list[str]]:
    """Modules of a list cell by the names that the setting knows, and the words that it does not know."""
    words = [_OTHER_MODULES.get(word, word) for word in re.split(r"[,\s]+", text) if word not in ("", "selective")]
    return [word for word in words if word in setting.choices], [word for word in words if word not in setting.choices]


def recomputed_in_words(note: str) -> str:
    """The modules that a note gives where the column could not hold them; empty where it gives none."""
    found = _MODULES.search(note)
    return found[1].strip() if found else ""


def numerics_of(cells: Mapping[str, str], table_source: str = "") -> Numerics:
    """State formats of the program that a row ran under; ``assumed`` where neither row nor table names one.

    A row's own words come before the comments of its table. Bridge's recipes are named by a NeMo release, a path or the
    repository; ``cef`` in a case's name is fused cross entropy.
    """
    source, program = cells.get("source", ""), cells.get("program", "")
    if cells.get("stack", "").startswith("nemo") or _BRIDGE.search(source):
        found = bridge_numerics(cells.get("model", ""))
    elif program.startswith("Megatron") or _MEGATRON_LM.search(source):
        found = MEGATRON_LM
    elif _BRIDGE.search(table_source):
        found = bridge_numerics(cells.get("model", ""))
    else:
        found = replace(MEGATRON_LM, assumed=not cells.get("stack"))
    if "cef" in cells.get("case", "").split("_"):
        found = replace(found, cross_entropy="te")
    if "FP16 precision-aware main params" in cells.get("note", ""):
        found = replace(found, main_parameter_bytes=2.0, precision_aware_optimizer=True)
    return found
