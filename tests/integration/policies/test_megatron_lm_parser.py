"""The words for Megatron-LM, given to its own parser, build the configuration that is rendered for Megatron-Core.

The parser ships with the wheel from 0.17 on. The one thing not run is the question which GPU this is; it is answered
with Hopper, since a machine without one cannot.
"""

import argparse
import dataclasses
import functools
import importlib.util
import random
import sys
import warnings
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune_policies.apply import detect_stack
from autotune_policies.layout import layout_stages
from autotune_policies.megatron_core import read_back, release_of, render
from autotune_policies.megatron_lm import arguments_of, read_argument_dump
from autotune_policies.settings import SETTINGS, Settings, resolve
from tests.support.settings_strategy import CONFIGURED, settings_for

HAS_PARSER = importlib.util.find_spec("megatron") is not None and importlib.util.find_spec("megatron.training")
pytestmark = [
    pytest.mark.trial,
    pytest.mark.skipif(not HAS_PARSER, reason="megatron.training is not installed"),
    # Megatron's words about defaults, deprecated models and optional libraries.
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

MODEL = (
    "--num-layers 16 --hidden-size 64 --num-attention-heads 4 --seq-length 64 --max-position-embeddings 64 "
    "--train-iters 4 --lr 1e-4 --num-experts 16 --moe-ffn-hidden-size 64 --bf16 --disable-bias-linear --mock-data "
    "--tokenizer-type NullTokenizer --vocab-size 128 --global-batch-size 128 --no-gradient-accumulation-fusion"
)
WORLD_SIZE = 64
DRAWN = 400

PIPELINES: list[Settings] = [
    {},
    {"pipeline_parallel": 2},
    {"pipeline_parallel": 2, "virtual_pipeline": 2},
    {"pipeline_parallel": 4, "virtual_pipeline": 2},
    {"pipeline_parallel": 2, "pipeline_layout": "Et*8|t*8L"},
    {"pipeline_parallel": 2, "virtual_pipeline": 2, "pipeline_layout": "Et*3|(t*5|)*2t*3L"},
]
TENSORS: list[Settings] = [
    {},
    {"tensor_parallel": 2, "sequence_parallel": True},
    {"tensor_parallel": 2, "sequence_parallel": True, "expert_tensor_parallel": 2},
    {"context_parallel": 2},
]
DISPATCHERS: list[Settings] = [
    {},
    {"dispatcher": "allgather"},
    {"dispatcher": "deepep", "num_sms": 24},
    {"dispatcher": "hybridep", "num_sms": 16, "num_sms_preprocessing": 32},
    {"dispatcher": "hybridep", "num_sms": 32, "permute_fusion_into_hybridep": True, "num_blocks_permute": 8},
    {"dispatcher": "ncclep", "num_sms": 8, "rank_capacity_factor": 1.5},
]
GRAPHS: list[Settings] = [
    {},
    {"cuda_graph_impl": "transformer_engine", "cuda_graph_modules": ["attn", "moe_router"]},
    {"cuda_graph_impl": "local", "cuda_graph_modules": ["attn"]},
    {"cuda_graph_impl": "full_iteration"},
]
RECOMPUTE: list[Settings] = [
    {},
    {"recompute_granularity": "selective", "recompute_modules": ["layernorm", "moe"]},
    {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1},
]
FLAGS = ("grouped_gemm", "ep_overlap", "overlap_grad_reduce", "distributed_optimizer", "shared_expert_overlap")


@pytest.fixture(scope="module")
def megatron() -> Any:
    """Megatron-LM's parser and what it makes of parsed arguments."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from megatron.core.transformer.transformer_config import TransformerConfig
        from megatron.training import argument_utils, arguments

    class AsGiven(TransformerConfig):  # type: ignore[misc]
        """The fields as the arguments give them, before the class has checked and completed them."""

        def __post_init__(self) -> None:
            pass

    class Megatron:
        release = release_of(detect_stack()["megatron_core"])
        parser = arguments.add_megatron_arguments(argparse.ArgumentParser(allow_abbrev=False))
        parse_args, validate_args = staticmethod(arguments.parse_args), staticmethod(arguments.validate_args)
        build = staticmethod(
            getattr(argument_utils, "core_transformer_config_from_args", None)
            or arguments.core_transformer_config_from_args
        )
        config, as_given = TransformerConfig, AsGiven

    return Megatron


@pytest.fixture
def _hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (9, 0))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda *_: SimpleNamespace(major=9, minor=0))
    for name, value in {"RANK": "0", "WORLD_SIZE": str(WORLD_SIZE), "CUDA_DEVICE_MAX_CONNECTIONS": "1"}.items():
        monkeypatch.setenv(name, value)


def drawn() -> list[Settings]:
    """Combinations of settings, most of them legal; the same ones in every run."""
    chance = random.Random(4)
    found = []
    for _ in range(DRAWN):
        asked: Settings = {"expert_parallel": chance.choice([1, 2, 4, 8]), "micro_batch_size": chance.choice([1, 2])}
        for choices in (PIPELINES, TENSORS, DISPATCHERS, GRAPHS, RECOMPUTE):
            # The plain one as often as all others together, so that most combinations are legal.
            asked |= chance.choice([choices[0]] * (len(choices) - 1) + choices[1:])
        asked |= {name: chance.random() < 0.3 for name in FLAGS}
        asked["manual_gc_interval"] = chance.choice([None, 5])
        asked["overlap_param_gather"] = asked["overlap_grad_reduce"] and asked["distributed_optimizer"]
        found.append(resolve(asked))
    return found


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_the_parser_understands_every_setting(megatron: Any, data: st.DataObject) -> None:
    asked = data.draw(settings_for(megatron.release))
    if asked["tensor_parallel"] == 1:
        asked["sequence_parallel"] = False
    if asked["recompute_granularity"] == "selective" and not asked["recompute_modules"]:
        asked["recompute_modules"] = ["core_attn"]
    parsed = vars(megatron.parser.parse_args([*MODEL.split(), *arguments_of(asked, megatron.release)]))
    layout = asked["pipeline_layout"]
    chunks = parsed["num_virtual_stages_per_pipeline_rank"]
    if isinstance(layout, str):
        chunks = len(layout_stages(layout)) // parsed["pipeline_model_parallel_size"]
    found = read_back(
        {
            **parsed,
            "virtual_pipeline_model_parallel_size": chunks,
            "recompute_modules": parsed["recompute_modules"] or [],
        },
        megatron.release,
    )
    assert found == asked


@pytest.mark.usefixtures("_hopper")
def test_the_same_configuration_is_built_and_the_printed_arguments_read_back(
    megatron: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    compared = 0
    seen: dict[str, set[str]] = {name: set() for name in SETTINGS}
    for asked in drawn():
        rendered = render(asked, megatron.release)
        words = [*MODEL.split(), *arguments_of(asked, megatron.release)]
        arguments = megatron.parser.parse_args(words)
        arguments.rank, arguments.world_size = 0, WORLD_SIZE
        arguments._is_global_batch_size_explicitly_specified = True
        try:
            given_fields = dataclasses.fields(megatron.config)
            megatron.validate_args(arguments)
            printed = capsys.readouterr().out
            as_given = megatron.build(arguments, config_class=megatron.as_given)
            wanted = megatron.config(
                **{
                    **{row.name: getattr(as_given, row.name) for row in given_fields if row.init},
                    **rendered.transformer,
                }
            )
        except (AssertionError, ValueError):  # an illegal combination; upstream says so itself
            continue
        built = vars(megatron.build(arguments))
        compared += 1
        assert _plain(built, asked) == _plain(vars(wanted), asked)
        assert {name: getattr(arguments, name) for name in rendered.ddp} == rendered.ddp
        assert {name: getattr(arguments, name) for name in rendered.training} == rendered.training
        configured = {name: value for name, value in asked.items() if name in CONFIGURED}
        assert read_argument_dump(printed, megatron.release) == configured
        for name, value in asked.items():
            seen[name].add(str(value))
    assert compared >= 80
    varied = ("pipeline_layout", "virtual_pipeline", "dispatcher", "num_sms", "cuda_graph_impl", "ep_overlap", *FLAGS)
    assert {name for name in varied if len(seen[name]) < 2} == set()
    assert seen["dispatcher"] >= {"alltoall", "allgather", "deepep", "hybridep"}


@pytest.mark.usefixtures("_hopper")
def test_the_whole_command_is_parsed_as_a_process_gets_it(megatron: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = resolve({"pipeline_parallel": 2, "virtual_pipeline": 2, "expert_parallel": 4, "ep_overlap": True})
    monkeypatch.setattr(sys, "argv", ["pretrain_gpt.py", *MODEL.split(), *arguments_of(asked, megatron.release)])
    arguments = megatron.parse_args()
    megatron.validate_args(arguments)
    config = megatron.build(arguments)
    assert (config.virtual_pipeline_model_parallel_size, config.overlap_moe_expert_parallel_comm) == (2, True)
    assert (config.moe_token_dispatcher_type, arguments.use_distributed_optimizer) == ("alltoall", True)


def _plain(fields: dict[str, Any], asked: Settings) -> dict[str, Any]:
    """Fields that can be compared: a partial function is what it calls with what.

    The class completes the list of recomputed modules where nobody named one, also where nothing reads it.
    """
    plain = {
        name: (value.func, value.args, value.keywords) if isinstance(value, functools.partial) else value
        for name, value in fields.items()
    }
    if asked["recompute_granularity"] != "selective":
        del plain["recompute_modules"]
    return plain
