"""From a point of the space to settings in which nothing is implied."""

from collections.abc import Mapping

from autotune.space.layout import BALANCED, GENERATED, generate, layer_costs
from autotune_policies.settings import Settings, Value, resolve
from autotune_trials.spec import ModelShape


def settings_of(point: Mapping[str, Value], fixed: Mapping[str, Value], shape: ModelShape) -> Settings:
    """All canonical settings of a point.

    What follows from other settings is filled in where the point does not say it: sequence parallelism (MoE training
    with tensor parallelism needs it), a generated layout as the text it stands for, and the grouping of full
    recompute. A generated layout that cannot exist (fewer layers than stages) stays null; the rules refuse it.

    Raises:
        PolicyError: a name or a value that is no setting.
    """
    given: dict[str, object] = {**fixed, **point}
    layout = given.get("pipeline_layout")
    if layout in GENERATED:
        given["pipeline_layout"] = None
    settings = resolve(given)
    if "sequence_parallel" not in given:
        settings["sequence_parallel"] = _int(settings, "tensor_parallel") > 1
    if settings["recompute_granularity"] == "full" and "recompute_method" not in given:
        settings["recompute_method"] = "uniform"
        settings["recompute_num_layers"] = 1
    if isinstance(layout, str) and layout in GENERATED:
        stages = _int(settings, "pipeline_parallel") * _int(settings, "virtual_pipeline")
        if stages <= shape.num_layers:
            costs = layer_costs(shape) if layout == BALANCED else None
            settings["pipeline_layout"] = generate(layout, shape.num_layers, stages, shape.mtp_num_layers, costs)
    return settings


def _int(settings: Settings, name: str) -> int:
    value = settings[name]
    assert isinstance(value, int)
    return value
