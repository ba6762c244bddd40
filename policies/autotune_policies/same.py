"""When two spellings of a value mean the same run, and when they do not."""

from collections.abc import Callable, Mapping
from typing import Any

from autotune_policies.errors import PolicyError
from autotune_policies.layout import layout_stages, layout_text
from autotune_policies.release_fields import BACKEND_FIELDS, UNUSED
from autotune_policies.resolved import ABSENT, Resolved
from autotune_policies.settings import FLEX_DISPATCHERS, SETTINGS

_Same = Callable[[Any, Any, str, Resolved], bool]

_UNORDERED = ("recompute_modules", "offload_modules", "cuda_graph_modules", "cuda_graph_scope")


def same_setting(name: str, wanted: object, found: object, beside: Mapping[str, object]) -> bool:
    """Whether two values of a canonical setting make the same run.

    Args:
        name: The setting.
        wanted: One value.
        found: The other.
        beside: Settings that decide whether this one has an effect.
    """
    if name == "num_sms" and beside.get("dispatcher") not in FLEX_DISPATCHERS:
        return True  # nobody borrows any
    if SETTINGS[name].kind == "list":
        idle = name == "recompute_modules" and beside.get("recompute_granularity") != "selective"
        return idle or _names(wanted) == _names(found)
    return _same_layout(wanted, found) if name == "pipeline_layout" else _equal(wanted, found)


def judged_alone(path: str) -> bool:
    """Whether a container's field has to be compared as it stands, for no canonical setting is read from it."""
    section, _, name = path.rpartition(".")
    return name in _BY_NAME or section.split(".")[0] not in ("model", "ddp", "train") or path in _BY_PATH


def same_field(path: str, wanted: object, found: object, view: Resolved) -> bool:
    """Whether the value of a container's field means what a policy's does.

    Args:
        path: Dotted path, such as ``comm_overlap.overlap_p2p_comm``.
        wanted: Plain value that the policy renders.
        found: Plain value in force, ``ABSENT`` where the configuration has no such field.
        view: The configuration, some of whose fields decide what others mean.
    """
    section, _, name = path.rpartition(".")
    if section == "env_vars":
        return found is not ABSENT and str(found) == str(wanted)
    special = _BY_PATH.get(path) or _BY_NAME.get(name)
    if special is not None:
        return special(wanted, found, section, view)
    if section == "comm_overlap":
        return _overlap(wanted, found, name, view)
    if name == "pipeline_model_parallel_layout":
        return _same_layout(wanted, found)
    if name in _UNORDERED:
        return (found is None or isinstance(found, list)) and _names(wanted) == _names(found)
    if found is ABSENT:  # a release without another name for something cannot hold another value there
        return name in UNUSED and wanted == UNUSED[name]
    return _equal(wanted, found)


def settled(view: Resolved) -> bool:
    """Whether training has put the values of a container's parts into one another; before that, parts overrule."""
    sizes = (view.get(path) for path in ("data_parallel_size", "comm_overlap.data_parallel_size"))
    return any(size not in (None, ABSENT) for size in sizes)


def _equal(wanted: object, found: object) -> bool:
    """Equality of plain values in which a switch is no number, and nothing said is switched off."""
    if isinstance(wanted, bool) or isinstance(found, bool):
        return wanted is found or (wanted in (None, False) and found in (None, False))
    return wanted == found


def _names(value: Any) -> set[str]:
    words = value.split(",") if isinstance(value, str) else value or ()
    return {str(word).strip() for word in words} - {""}


def _same_layout(wanted: Any, found: Any) -> bool:
    try:
        return _stages(wanted) == _stages(found)
    except (PolicyError, TypeError):  # no layout at all
        return False


def _stages(value: Any) -> tuple[str, ...] | None:
    if value is None or value is ABSENT:
        return None
    return layout_stages(value if isinstance(value, str) else layout_text(value))


def _overlap(wanted: Any, found: Any, name: str, view: Resolved) -> bool:
    """What comm_overlap asks for is judged where it ended up: in the model's and DDP's own fields.

    Here it only must not contradict them. Left open, it means what Megatron-Bridge derives.
    """
    if found is None or found is ABSENT or not settled(view):
        return True
    return _equal(wanted, found)


def _point_to_point(wanted: Any, found: Any, section: str, view: Resolved) -> bool:
    """Without stages there is nobody to talk to; and comm_overlap derives it anew when training starts."""
    derived = not settled(view) and view.get("comm_overlap") not in (None, ABSENT)
    return derived or view.get(f"{section}.pipeline_model_parallel_size") in (1, ABSENT) or _equal(wanted, found)


def _asked_point_to_point(wanted: Any, found: Any, section: str, view: Resolved) -> bool:
    """Left open, or as Megatron-Bridge derives it: overlapped where stages are interleaved, else batched."""
    chunks = view.get("model.virtual_pipeline_model_parallel_size")
    interleaved = isinstance(chunks, int) and chunks > 1
    return found in (None, ABSENT, interleaved) or view.get("model.pipeline_model_parallel_size") == 1


def _asked_batched(wanted: Any, found: Any, section: str, view: Resolved) -> bool:
    chunks = view.get("model.virtual_pipeline_model_parallel_size")
    batched = not (isinstance(chunks, int) and chunks > 1)
    return found in (None, ABSENT, batched) or view.get("model.pipeline_model_parallel_size") == 1


def _chunk_group(wanted: Any, found: Any, section: str, view: Resolved) -> bool:
    """Nothing said is one group per stage; without interleaved stages there are no groups."""
    chunks = view.get(f"{section}.virtual_pipeline_model_parallel_size")
    return found is None or chunks in (None, 1) or bool(wanted == found)


def _chunks(wanted: Any, found: Any, section: str, view: Resolved) -> bool:
    """A number beside a layout must be the layout's; nothing said is what the layout says, or one."""
    if found is None:
        return True  # the settings tell how many that is
    return _equal(wanted or 1, found)


def _capacity(wanted: Any, found: Any, section: str, view: Resolved) -> bool:
    """It drops tokens, so it is never idle."""
    return _equal(wanted, None if found is ABSENT else found)


def _older_switch(wanted: Any, found: Any, section: str, view: Resolved) -> bool:
    """An older word for DeepEP says nothing new where DeepEP is chosen."""
    return found in (None, False, ABSENT) or (
        view.get(f"{section}.moe_token_dispatcher_type") == "flex"
        and view.get(f"{section}.moe_flex_dispatcher_backend") == "deepep"
    )


def _unused(wanted: Any, found: Any, section: str, view: Resolved) -> bool:
    return found in (None, False, ABSENT)


def _uneven(wanted: Any, found: Any, section: str, view: Resolved) -> bool:
    """An uneven split amounts to a layout, which is judged; beside a layout it must not be said."""
    said = found not in (None, False, ABSENT)
    return not said or view.get(f"{section}.pipeline_model_parallel_layout") in (None, ABSENT)


def _strict(wanted: Any, found: Any, section: str, view: Resolved) -> bool:
    return _equal(wanted, found)


def _idle(wanted: Any, found: Any, section: str, view: Resolved) -> bool:
    """Of a backend that is not chosen, or of inference: no part of this run."""
    return True


def _delayed(wanted: Any, found: Any, section: str, view: Resolved) -> bool:
    """Megatron-Bridge's own recipes delay weight gradients without a word to DDP; a word too many is one."""
    return found is not True or wanted is True


def _random_state(wanted: Any, found: Any, section: str, view: Resolved) -> bool:
    """Before training starts either of two switches is enough; Megatron refuses graphs without them.

    Without graphs a recipe may have it for reasons of its own.
    """
    return not wanted or not settled(view) or _equal(wanted, found)


def _sharded(wanted: Any, found: Any, section: str, view: Resolved) -> bool:
    """Either of DDP's and the optimizer's switch sets the other when training starts."""
    return not settled(view) or _equal(wanted, found)


def _gathered(wanted: Any, found: Any, section: str, view: Resolved) -> bool:
    """One data-parallel rank has nothing to gather."""
    return not settled(view) or alone(view) or _equal(wanted, found)


def alone(view: Resolved) -> bool:
    """Whether there is one data-parallel rank, so that there is no data-parallel communication to overlap."""
    return 1 in (view.get("data_parallel_size"), view.get("comm_overlap.data_parallel_size"))


def _asked_gathered(wanted: Any, found: Any, section: str, view: Resolved) -> bool:
    return found in (None, ABSENT) or not settled(view) or alone(view) or _equal(wanted, found)


_BY_NAME: Mapping[str, _Same] = {
    "microbatch_group_size_per_vp_stage": _chunk_group,
    "virtual_pipeline_model_parallel_size": _chunks,
    "moe_expert_rank_capacity_factor": _capacity,
    "moe_enable_deepep": _older_switch,
    "moe_layer_recompute": _unused,
    "num_layers_in_first_pipeline_stage": _uneven,
    "num_layers_in_last_pipeline_stage": _uneven,
    "account_for_embedding_in_pipeline_split": _uneven,
    "account_for_loss_in_pipeline_split": _uneven,
    "use_te_rng_tracker": _random_state,
    "te_rng_tracker": _random_state,
    "inference_cuda_graph_scope": _idle,
    "check_for_nan_in_grad": _strict,
    **dict.fromkeys((field for _, field, _, _ in BACKEND_FIELDS), _idle),
}
"""Fields that no canonical setting is read from, wherever the transformer's fields are."""

_BY_PATH: Mapping[str, _Same] = {
    **{f"{model}.{name}": _point_to_point
       for model in ("model", "model.transformer") for name in ("overlap_p2p_comm", "batch_p2p_comm")},
    "comm_overlap.overlap_p2p_comm": _asked_point_to_point,
    "comm_overlap.batch_p2p_comm": _asked_batched,
    "comm_overlap.overlap_grad_reduce": _asked_gathered,
    "comm_overlap.overlap_param_gather": _asked_gathered,
    "ddp.delay_wgrad_compute": _delayed,
    "ddp.use_distributed_optimizer": _sharded,
    "train.manual_gc": _strict,
    "optimizer.use_distributed_optimizer": _sharded,
    "optimizer.overlap_param_gather": _gathered,
}  # fmt: skip
"""Fields whose meaning depends on where they stand."""
