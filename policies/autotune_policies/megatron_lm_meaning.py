"""What the parsed words of a Megatron-LM command line amount to, as its parser and configuration classes decide it."""

from autotune_policies.errors import PolicyError
from autotune_policies.layout import layout_stages
from autotune_policies.megatron_core import read_back
from autotune_policies.megatron_lm_flags import flags_of
from autotune_policies.release_fields import Field
from autotune_policies.settings import Settings

_UNEVEN = (
    "num_layers_in_first_pipeline_stage",
    "num_layers_in_last_pipeline_stage",
    "account_for_embedding_in_pipeline_split",
    "account_for_loss_in_pipeline_split",
)


def use_newer_words(fields: dict[str, Field], release: str) -> None:
    """Say older words as the parser and the configuration class do; refuse what no setting can express."""
    for field in _UNEVEN:
        if fields[field]:
            word = next(flag.word for flag in flags_of(release).values() if flag.field == field)
            raise PolicyError(
                f"{word}: an uneven split of the layers is said by a layout only",
                hint="write it as --pipeline-model-parallel-layout",
            )
    if fields.pop("checkpoint_activations", False) or fields["moe_layer_recompute"]:
        raise PolicyError(
            "--checkpoint-activations and --moe-layer-recompute are no longer valid",
            hint="write --recompute-granularity and --recompute-modules",
        )
    if fields.pop("recompute_activations", False):
        fields["recompute_granularity"] = "selective"
    if fields["recompute_modules"] is None:
        fields["recompute_modules"] = ["core_attn"] if fields["recompute_granularity"] == "selective" else []
    for field, impl in (("enable_cuda_graph", "local"), ("external_cuda_graph", "transformer_engine")):
        if fields[field]:
            fields["cuda_graph_impl"] = impl
    if release not in ("0.16", "0.17"):
        _use_graph_modules(fields)
    if fields["moe_enable_deepep"]:
        fields["moe_flex_dispatcher_backend"] = "deepep"
    if "moe_flex_dispatcher_num_sms" in fields and fields["moe_flex_dispatcher_num_sms"] is None:
        older = {fields[name] for name in ("moe_deepep_num_sms", "moe_hybridep_num_sms")} - {None}
        if len(older) > 1:
            raise PolicyError(
                "--moe-deepep-num-sms and --moe-hybridep-num-sms differ", hint="write --moe-flex-dispatcher-num-sms"
            )
        fields["moe_flex_dispatcher_num_sms"] = older.pop() if older else None
    if fields["tensor_model_parallel_size"] == 1:
        fields["sequence_parallel"] = False


def _use_graph_modules(fields: dict[str, Field]) -> None:
    modules = fields["cuda_graph_modules"] or fields["cuda_graph_scope"] or []
    assert isinstance(modules, list)
    if "full_iteration" in modules:
        fields["cuda_graph_impl"] = "full_iteration"
    fields["cuda_graph_modules"] = [module for module in modules if module != "full_iteration"]


def virtual_pipeline_of(fields: dict[str, Field], num_layers: int | None) -> int | None:
    """Model chunks per pipeline rank, from the layout, their number, or the layers of each.

    Raises:
        PolicyError: a layout or a number of layers that the pipeline does not divide.
    """
    pipeline, layout = fields["pipeline_model_parallel_size"], fields["pipeline_model_parallel_layout"]
    assert isinstance(pipeline, int)
    per_stage = fields.pop("num_layers_per_virtual", None)
    chunks = fields["virtual_pipeline_model_parallel_size"]
    if isinstance(layout, str):
        stages = len(layout_stages(layout))
        if stages % pipeline:
            raise PolicyError(
                f"--pipeline-model-parallel-layout {layout!r} has {stages} stages, no multiple of {pipeline} ranks"
            )
        chunks = stages // pipeline
    elif chunks is None and isinstance(per_stage, int):
        if num_layers is None:
            raise PolicyError("--num-layers-per-virtual-pipeline-stage means nothing without --num-layers")
        if per_stage < 1 or num_layers % (pipeline * per_stage):
            raise PolicyError(
                f"--num-layers {num_layers} is no multiple of {pipeline} ranks x {per_stage} layers per virtual stage"
            )
        chunks = num_layers // (pipeline * per_stage)
    assert chunks is None or isinstance(chunks, int)
    return chunks


def settled(fields: dict[str, Field], release: str) -> Settings:
    """The canonical settings of a complete set of fields.

    Raises:
        PolicyError: an interleaved schedule of a kind that no setting can express, or an illegal value.
    """
    interleaved = fields["virtual_pipeline_model_parallel_size"] not in (None, 1)
    pipeline = fields["pipeline_model_parallel_size"]
    if interleaved and fields.get("no_overlap_p2p"):
        raise PolicyError("--no-overlap-p2p-communication with an interleaved pipeline is no setting here")
    if interleaved and fields["microbatch_group_size_per_vp_stage"] not in (None, pipeline):
        raise PolicyError(
            f"--microbatch-group-size-per-virtual-pipeline-stage {fields['microbatch_group_size_per_vp_stage']} is no "
            f"setting here, where it is the pipeline size {pipeline}"
        )
    if fields["micro_batch_size"] is None:
        del fields["micro_batch_size"]
    return read_back(fields, release)
