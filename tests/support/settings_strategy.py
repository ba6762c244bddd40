"""Random settings that a Megatron-Core release can express."""

from typing import Any

from hypothesis import strategies as st

from autotune_policies.settings import FLEX_DISPATCHERS, SETTINGS, Setting, Settings, resolve

SINCE_0_19 = {"ncclep", "gdn_norm_out", "fused_group_mlp"}
SETTINGS_SINCE = {
    "permute_fusion_into_hybridep": "0.17", "num_blocks_permute": "0.17", "num_blocks_unpermute": "0.17",
    "num_sms_preprocessing": "0.18", "rank_capacity_factor": "0.18", "paged_stash": "0.18", "op_fuser": "0.18",
}  # fmt: skip
CONFIGURED = {name: row for name, row in SETTINGS.items() if row.home not in ("env", "launch")}


def configured(values: Settings) -> Settings:
    """The settings that a configuration object holds; the others are in the environment or the launcher."""
    return {name: value for name, value in values.items() if name in CONFIGURED}


def values_of(row: Setting, release: str) -> st.SearchStrategy[Any]:
    choices = [choice for choice in row.choices if release == "0.19" or choice not in SINCE_0_19]
    kinds: dict[str, st.SearchStrategy[Any]] = {
        "bool": st.booleans(),
        "int": st.integers(row.minimum, 64),
        "float": st.floats(row.minimum, 8, exclude_min=True, allow_nan=False),
        "list": st.lists(st.sampled_from(choices), unique=True) if choices else st.nothing(),
        "str": st.sampled_from(choices) if choices else st.none(),
    }
    strategy = kinds[row.kind]
    return st.none() | strategy if row.optional else strategy


@st.composite
def settings_for(draw: st.DrawFn, release: str) -> Settings:
    """Any settings that the release can express."""
    known = {name: row for name, row in CONFIGURED.items() if release >= SETTINGS_SINCE.get(name, release)}
    values = {name: draw(values_of(row, release)) for name, row in known.items()}
    if draw(st.booleans()):
        stages = values["pipeline_parallel"] * values["virtual_pipeline"]
        values["pipeline_layout"] = "|".join(["Et", *["t"] * (stages - 2), "tL"][-stages:])
    if values["dispatcher"] not in FLEX_DISPATCHERS:
        values["num_sms"] = None
    elif values["num_sms"] is None:
        values["num_sms"] = draw(st.integers(1, 64))
    if values["cuda_graph_impl"] == "full_iteration":
        values["cuda_graph_modules"] = []
    if values["cuda_graph_impl"] == "local" and {"moe_router", "moe_preprocess"} & set(values["cuda_graph_modules"]):
        values["cuda_graph_modules"] = ["moe_router", "moe_preprocess"]
    for name in ("permute_fusion_into_hybridep", *values):  # a condition before what depends on it
        if name in values and not SETTINGS[name].effective(values):
            values[name] = SETTINGS[name].default
    return configured(resolve(values))
