"""Batch, pipeline schedule and the layout of its stages."""

from autotune.constraint.rule import Candidate, Verdict
from autotune.constraint.rules.registry import Rules, divides
from autotune_policies.errors import PolicyError
from autotune_policies.layout import layout_stages

RULES = Rules()


@RULES.add("MC023", "core/num_microbatches_calculator.py:381")
def _batch_divides_evenly(c: Candidate) -> Verdict:
    if c.data_parallel != int(c.data_parallel):
        return None  # MC001 says it
    share = c.number("micro_batch_size") * int(c.data_parallel)
    return divides("micro_batch_size x data parallel", share, "global_batch_size", c.contract.global_batch_size)


@RULES.add("MC029", "core/parallel_state.py:829")
def _virtual_pipeline_needs_pipeline(c: Candidate) -> Verdict:
    if c.number("virtual_pipeline") > 1 and c.number("pipeline_parallel") == 1:
        return 1.0, f"virtual_pipeline={c.number('virtual_pipeline')} needs pipeline_parallel > 1"
    return None


@RULES.add("MC027", "core/pipeline_parallel/schedules.py:1131-1154")
def _interleaving_needs_whole_rounds(c: Candidate) -> Verdict:
    pipeline = c.number("pipeline_parallel")
    if c.number("virtual_pipeline") == 1 or c.num_microbatches % 1 or c.num_microbatches % pipeline == 0:
        return None
    return 1.0, (
        f"interleaved schedule: micro-batches per step ({c.num_microbatches:.0f}) must be a multiple of "
        f"pipeline_parallel={pipeline}"
    )


@RULES.add("MC035", "core/transformer/transformer_block.py:150-169")
def _even_split_is_even(c: Candidate) -> Verdict:
    if c.settings["pipeline_layout"] is not None:
        return None
    stages = c.number("pipeline_parallel") * c.number("virtual_pipeline")
    return divides("pipeline_parallel x virtual_pipeline", stages, "num_layers", c.shape.num_layers)


@RULES.add("MC048", "training/arguments.py:722-823: stages are marks in the pattern itself")
def _hybrid_patterns_take_no_layout(c: Candidate) -> Verdict:
    layout = c.settings["pipeline_layout"]
    if c.shape.hybrid_pattern is not None and layout is not None:
        return 1.0, f"pipeline_layout={layout!r}, but a hybrid model is split evenly; legal: null"
    return None


@RULES.add("MC045", "core/transformer/pipeline_parallel_layer_layout.py; issue #1852 (empty stages)")
def _layout_fits_the_model(c: Candidate) -> Verdict:
    text = c.settings["pipeline_layout"]
    if not isinstance(text, str) or c.shape.hybrid_pattern is not None:
        return None
    try:
        stages = layout_stages(text)
    except PolicyError as error:
        return 1.0, error.message
    wanted = c.number("pipeline_parallel") * c.number("virtual_pipeline")
    if len(stages) != wanted:
        return float(abs(len(stages) - wanted)), (
            f"pipeline_layout={text!r} has {len(stages)} stages, but pipeline_parallel x virtual_pipeline = {wanted}"
        )
    flat = "".join(stages)
    pattern = "E" + "t" * c.shape.num_layers + "m" * c.shape.mtp_num_layers + "L"
    if flat != pattern:
        return 1.0 + abs(flat.count("t") - c.shape.num_layers), (
            f"pipeline_layout={text!r} must hold, in order, E, {c.shape.num_layers} x t, "
            f"{c.shape.mtp_num_layers} x m and L"
        )
    if "E" not in stages[0] or "L" not in stages[-1] or not all(stages):
        return 1.0, f"pipeline_layout={text!r}: E must be in the first stage, L in the last, and no stage empty"
    return _prediction_layers_are_placed(c, text, stages)


def _prediction_layers_are_placed(c: Candidate, text: str, stages: tuple[str, ...]) -> Verdict:
    pipeline, virtual = c.number("pipeline_parallel"), c.number("virtual_pipeline")
    holding = [index for index, stage in enumerate(stages) if "m" in stage]
    if len(holding) > 1:
        return float(len(holding) - 1), f"pipeline_layout={text!r}: every m must be in one and the same stage"
    if holding and (holding[0] // pipeline < virtual - 1 or (virtual > 1 and holding[0] % pipeline == 0)):
        return 1.0, (
            f"pipeline_layout={text!r}: m must be in the last model chunk of a pipeline rank, and with "
            "virtual_pipeline > 1 not on the first rank"
        )
    return None
