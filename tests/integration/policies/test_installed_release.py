"""What is rendered exists in the installed Megatron-Core, is accepted by it, and is read back from it."""

import dataclasses
import importlib.util
import warnings
from pathlib import Path
from typing import Any

import pytest

from autotune_policies import PolicyError, load_policy
from autotune_policies.apply import detect_stack
from autotune_policies.megatron_core import read_back, release_of, render
from autotune_policies.settings import SETTINGS, Settings, resolve

pytestmark = [
    pytest.mark.trial,
    pytest.mark.skipif(
        importlib.util.find_spec("torch") is None or importlib.util.find_spec("megatron") is None,
        reason="megatron-core is not installed",
    ),
    # Megatron warns of its own default when nobody names the graph modules.
    pytest.mark.filterwarnings("ignore:.*full scope is deprecated:UserWarning"),
]

EXAMPLE = Path(__file__).parents[2] / "unit" / "policies" / "example.yaml"
TRANSFORMER = [name for name, row in SETTINGS.items() if row.home == "transformer"]


@pytest.fixture(scope="module")
def core() -> Any:
    """Megatron's configuration classes; their import warns about optional libraries, which is upstream's own."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from megatron.core.distributed import DistributedDataParallelConfig
        from megatron.core.transformer.transformer_config import TransformerConfig

    class Core:
        transformer = TransformerConfig
        ddp = DistributedDataParallelConfig
        release = release_of(detect_stack()["megatron_core"])

    return Core


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch is imported by now, so the policy's variables have to be in force already."""
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    monkeypatch.setenv("RANK", "0")  # 0.19 warns when it cannot tell which rank is to log
    for name, value in load_policy(EXAMPLE).env.items():
        monkeypatch.setenv(name, value)


def build(core: Any, **fields: Any) -> Any:
    import torch

    shape: dict[str, Any] = {
        "num_layers": 6, "hidden_size": 64, "num_attention_heads": 4, "num_moe_experts": 8, "moe_ffn_hidden_size": 64,
        "add_bias_linear": False, "bf16": True, "params_dtype": torch.bfloat16, "pipeline_dtype": torch.bfloat16,
    }  # fmt: skip
    return core.transformer(**{**shape, **fields})


def test_every_rendered_field_is_a_field_of_the_class(core: Any) -> None:
    for dispatcher, num_sms in (("alltoall", None), ("deepep", 20), ("hybridep", 16)):
        fields = render({"dispatcher": dispatcher, "num_sms": num_sms}, core.release)
        assert set(fields.transformer) <= {field.name for field in dataclasses.fields(core.transformer)}
        assert set(fields.ddp) <= {field.name for field in dataclasses.fields(core.ddp)}


def test_what_we_call_unused_is_the_class_default(core: Any) -> None:
    """Nothing of flex, graphs or recompute is left over: an untouched class says the same."""
    built = build(core)
    plain = build(core, **render({"sequence_parallel": False}, core.release).transformer)
    chosen = {"moe_token_dispatcher_type", "recompute_modules"}  # the class has other defaults for these two
    for name in set(render({}, core.release).transformer) - chosen:
        assert getattr(built, name) == getattr(plain, name), name


CASES: dict[str, Settings] = {
    "defaults": resolve({}),
    "allgather": resolve({"dispatcher": "allgather", "expert_parallel": 4}),
    "deepep": resolve({"dispatcher": "deepep", "num_sms": 24, "expert_parallel": 8}),
    "hybridep": resolve({"dispatcher": "hybridep", "num_sms": 32, "expert_parallel": 8}),
    "pipeline": resolve({"pipeline_parallel": 2, "virtual_pipeline": 3, "expert_parallel": 2}),
    "layout": resolve({"pipeline_parallel": 2, "virtual_pipeline": 2, "pipeline_layout": "Et|tt|tt|tL"}),
    "tensor": resolve({"tensor_parallel": 2, "sequence_parallel": True, "expert_tensor_parallel": 2}),
    "selective": resolve({"recompute_granularity": "selective", "recompute_modules": ["layernorm", "moe"]}),
    "full": resolve({"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}),
    "graphs": resolve({"cuda_graph_impl": "local", "cuda_graph_modules": ["attn"]}),
    "full_iteration": resolve({"cuda_graph_impl": "full_iteration"}),
    "offload": resolve({"offload_modules": ["core_attn", "attn_proj"]}),
}
if detect_stack().get("megatron_core", "0.16").startswith("0.19"):
    hybridep: dict[str, object] = {"dispatcher": "hybridep", "num_sms": 16, "expert_parallel": 8, "grouped_gemm": True}
    CASES["budgets"] = resolve(
        {**hybridep, "num_sms_preprocessing": 32, "permute_fusion_into_hybridep": True, "num_blocks_permute": 16,
         "num_blocks_unpermute": 32}
    )  # fmt: skip
    CASES["capacity"] = resolve({**hybridep, "op_fuser": True, "rank_capacity_factor": 1.5, "paged_stash": True})


@pytest.mark.parametrize("name", CASES)
def test_the_class_accepts_the_fields_and_keeps_them(name: str, core: Any) -> None:
    built = build(core, **render(CASES[name], core.release).transformer)
    assert read_back(built, core.release) == {key: CASES[name][key] for key in TRANSFORMER}


@pytest.mark.parametrize("before", CASES)
@pytest.mark.parametrize("after", CASES)
def test_applying_to_a_built_configuration_leaves_nothing_of_the_one_before(before: str, after: str, core: Any) -> None:
    policy = load_policy(EXAMPLE)._replace(settings=CASES[after])
    config = build(core, **render(CASES[before], core.release).transformer)
    expected = build(core, **render(CASES[after], core.release).transformer)
    policy.apply(config, num_gpus=16, stack={"deep_ep": "1.2.1"})
    assert read_back(config, core.release) == {key: CASES[after][key] for key in TRANSFORMER}
    # Also the values that the class works out by itself are those of a configuration built that way.
    assert getattr(config, "mtp_standalone", False) == getattr(expected, "mtp_standalone", False)
    for name in render(CASES[after], core.release).transformer:
        assert getattr(config, name) == getattr(expected, name), name


def test_a_layout_for_another_number_of_layers_applies_nothing(core: Any) -> None:
    policy = load_policy(EXAMPLE)._replace(settings=CASES["layout"])
    config = build(core, num_layers=8)
    before = dict(vars(config))
    with pytest.raises(PolicyError, match="does not fit this model"):
        policy.apply(config, num_gpus=16, stack={"deep_ep": "1.2.1"})
    assert vars(config) == before
