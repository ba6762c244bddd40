"""Canonical settings <-> words of Megatron-LM's command line, and the arguments that it prints."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune_policies.errors import PolicyError
from autotune_policies.megatron_core import RELEASES, render
from autotune_policies.megatron_lm import arguments_of, merge_arguments, read_argument_dump, read_arguments
from autotune_policies.megatron_lm_flags import defaults_of, flags_of
from autotune_policies.settings import Settings, resolve
from tests.support.settings_strategy import settings_for

MODEL = ["--num-layers", "8", "--hidden-size", "64", "--swiglu", "--num-experts", "8", "--lr", "1e-4"]


def expressible(values: Settings) -> Settings:
    """The settings with the two combinations changed that the command line has no words for."""
    if values["tensor_parallel"] == 1:
        values["sequence_parallel"] = False
    if values["recompute_granularity"] == "selective" and not values["recompute_modules"]:
        values["recompute_modules"] = ["core_attn"]
    return values


def printed(words: list[str], release: str) -> str:
    """What Megatron-LM prints for such words: each name padded with dots, lists with their members' representation."""
    values: dict[str, Any] = {
        **defaults_of(release), "hidden_size": 64, "data_path": None, "a_name_wider_than_the_dots_" * 2: 1,
    }  # fmt: skip
    flags = flags_of(release)
    for position, word in enumerate(words):
        flag = flags.get(word)
        if flag is None:
            continue
        rest = words[position + 1 :]
        operands = rest[: next((i for i, other in enumerate(rest) if other.startswith("--")), len(rest))]
        values[flag.field] = operands if flag.arity == "many" else operands[0] if operands else True
    if values["pipeline_model_parallel_layout"]:
        stages = values["pipeline_model_parallel_layout"].count("|") + 1
        chunks = stages // int(values["pipeline_model_parallel_size"])
        values["virtual_pipeline_model_parallel_size"] = None if chunks == 1 else chunks
    values["overlap_p2p_comm"] = values["virtual_pipeline_model_parallel_size"] not in (None, "1")
    graphs = "cuda_graph_modules" if "cuda_graph_modules" in values else "cuda_graph_scope"
    if values[graphs]:
        values[graphs] = "[" + ", ".join(f"<CudaGraphModule.{name}: 1>" for name in values[graphs]) + "]"
    for field, name in (("first", "first"), ("last", "last")):
        values[f"decoder_{name}_pipeline_num_layers"] = values.pop(f"num_layers_in_{field}_pipeline_stage")
    lines = [f"  {name} {'.' * (48 - len(name))} {value}" for name, value in values.items()]
    return "\n".join(
        [
            "using world size: 8, data-parallel size: 8",
            "------------------------ arguments ------------------------",
            *sorted(lines, key=str.lower),
            "-------------------- end of arguments ---------------------",
            "> building tokenizer ...",
        ]
    )


@pytest.mark.parametrize("release", RELEASES)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_what_is_said_reads_back_the_same(release: str, data: st.DataObject) -> None:
    asked = expressible(data.draw(settings_for(release)))
    words = arguments_of(asked, release)
    assert read_arguments(words, release) == asked
    assert read_arguments(["torchrun", "pretrain_gpt.py", *MODEL, *words, "--bf16"], release) == asked
    assert read_argument_dump(printed(words, release), release) == asked


@pytest.mark.parametrize("release", RELEASES)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_merging_replaces_every_word_of_other_settings_and_keeps_the_rest(release: str, data: st.DataObject) -> None:
    before = expressible(data.draw(settings_for(release)))
    after = expressible(data.draw(settings_for(release)))
    own = [
        "torchrun",
        "--nproc-per-node",
        "8",
        "pretrain_gpt.py",
        *MODEL[:4],
        *arguments_of(before, release),
        *MODEL[4:],
    ]
    merged = merge_arguments(own, after, release)
    assert read_arguments(merged, release) == after
    assert merged == ["torchrun", "--nproc-per-node", "8", "pretrain_gpt.py", *MODEL, *arguments_of(after, release)]


@pytest.mark.parametrize(
    ("release", "said", "unsaid"),
    [
        ("0.16", "--moe-deepep-num-sms 24", "--moe-flex-dispatcher-num-sms"),
        ("0.18", "--cuda-graph-modules attn", "--cuda-graph-scope"),
        ("0.17", "--cuda-graph-scope attn", "--cuda-graph-modules"),
        ("0.19", "--moe-flex-dispatcher-num-sms 24", "--moe-deepep-num-sms"),
    ],
)
def test_words_are_those_of_the_release(release: str, said: str, unsaid: str) -> None:
    words = arguments_of(
        {
            "dispatcher": "deepep", "num_sms": 24, "cuda_graph_impl": "transformer_engine",
            "cuda_graph_modules": ["attn"],
        },
        release,
    )  # fmt: skip
    text = " ".join(words)
    assert said in text
    assert unsaid not in text
    assert "--moe-token-dispatcher-type flex --moe-flex-dispatcher-backend deepep" in text


def test_a_full_iteration_is_a_scope_before_0_18_and_an_implementation_after() -> None:
    asked = {"cuda_graph_impl": "full_iteration"}
    assert "--cuda-graph-impl local --cuda-graph-scope full_iteration" in " ".join(arguments_of(asked, "0.17"))
    assert "--cuda-graph-impl full_iteration" in " ".join(arguments_of(asked, "0.18"))
    older = ["--cuda-graph-impl", "local", "--cuda-graph-scope", "full_iteration"]
    for release in RELEASES:
        assert read_arguments(older, release)["cuda_graph_impl"] == "full_iteration"


@pytest.mark.parametrize(
    ("asked", "release", "words"),
    [
        ({"sequence_parallel": True}, "0.19", "sequence_parallel=True with tensor_parallel=1 cannot be expressed"),
        ({"recompute_granularity": "selective"}, "0.16", "selective without recompute_modules cannot be expressed"),
        ({"dispatcher": "ncclep", "num_sms": 8}, "0.18", "dispatcher=ncclep cannot be expressed"),
        ({"op_fuser": True}, "0.17", "op_fuser=True cannot be expressed"),
        ({}, "0.15", "Megatron-Core '0.15' is not supported"),
    ],
)
def test_what_the_command_line_cannot_say_is_refused_by_name(asked: dict[str, Any], release: str, words: str) -> None:
    with pytest.raises(PolicyError, match=words):
        arguments_of(asked, release)


@pytest.mark.parametrize(
    ("words", "release", "expected"),
    [
        ("--recompute-activations", "0.19", {"recompute_granularity": "selective", "recompute_modules": ["core_attn"]}),
        ("--enable-cuda-graph", "0.16", {"cuda_graph_impl": "local"}),
        ("--external-cuda-graph", "0.17", {"cuda_graph_impl": "transformer_engine"}),
        ("--cuda-graph-impl local --cuda-graph-scope attn", "0.19", {"cuda_graph_modules": ["attn"]}),
        ("--cuda-graph-impl local --cuda-graph-scope full", "0.16", {"cuda_graph_modules": []}),
        ("--moe-token-dispatcher-type flex --moe-enable-deepep", "0.16", {"dispatcher": "deepep", "num_sms": 20}),
        ("--moe-token-dispatcher-type=flex --moe-deepep-num-sms=24", "0.19", {"dispatcher": "deepep", "num_sms": 24}),
        ("--num-layers 12 --pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 3", "0.18",
         {"virtual_pipeline": 2}),
        ("--pipeline-model-parallel-size 2 --pipeline-model-parallel-layout Et|t|t|tL", "0.17",
         {"virtual_pipeline": 2}),
        ("--tensor-model-parallel-size 2 --sequence-parallel", "0.16",
         {"sequence_parallel": True, "expert_tensor_parallel": 2}),
        ("--sequence-parallel", "0.16", {"sequence_parallel": False}),
        ("--manual-gc --manual-gc-interval 5", "0.19", {"manual_gc_interval": 5}),
        ("--manual-gc-interval 5", "0.19", {"manual_gc_interval": None}),
        ("--micro-batch-size 1 --lr -1e-4 --micro-batch-size 4", "0.19", {"micro_batch_size": 4}),
        ("", "0.19", {"dispatcher": "allgather", "distributed_optimizer": False}),
    ],
)  # fmt: skip
def test_older_words_and_the_parsers_own_defaults_are_understood(
    words: str, release: str, expected: dict[str, Any]
) -> None:
    found = read_arguments(words.split(), release)
    assert {name: found[name] for name in expected} == expected


def test_a_batch_that_is_not_said_is_not_known() -> None:
    assert "micro_batch_size" not in read_arguments([], "0.19")


@pytest.mark.parametrize(
    ("words", "release", "message"),
    [
        ("--cuda-graph-modules attn", "0.16", "--cuda-graph-modules is no flag of Megatron-LM 0.16"),
        ("--decoder-first-pipeline-num-layers 3", "0.19", "--decoder-first-pipeline-num-layers: an uneven split"),
        ("--account-for-loss-in-pipeline-split", "0.17", "--account-for-loss-in-pipeline-split: an uneven split"),
        ("--moe-layer-recompute", "0.16", "no longer valid"),
        ("--checkpoint-activations", "0.16", "no longer valid"),
        ("--yaml-cfg x.yaml", "0.19", "--yaml-cfg: the settings are in a file"),
        ("--expert-model-parallel-size", "0.19", "--expert-model-parallel-size has no value"),
        ("--expert-model-parallel-size four", "0.19", "is 'four', which is no whole number"),
        ("--moe-expert-rank-capacity-factor x", "0.19", "is 'x', which is no number"),
        ("--moe-grouped-gemm=true", "0.19", "--moe-grouped-gemm takes no value, but got 'true'"),
        ("--moe-token-dispatcher-type alltoal", "0.19", "dispatcher='alltoal' is not legal"),
        ("--moe-deepep-num-sms 8 --moe-hybridep-num-sms 16", "0.19", "differ"),
        ("--num-layers-per-virtual-pipeline-stage 2", "0.19", "means nothing without --num-layers"),
        ("--num-layers 8 --num-layers-per-virtual-pipeline-stage 3", "0.19", "8 is no multiple of 1 ranks x 3"),
        ("--pipeline-model-parallel-size 2 --pipeline-model-parallel-layout Et|t|tL", "0.19", "3 stages, no multiple"),
        ("--pipeline-model-parallel-size 4 --num-virtual-stages-per-pipeline-rank 2 --no-overlap-p2p-communication",
         "0.19", "--no-overlap-p2p-communication with an interleaved pipeline"),
        ("--pipeline-model-parallel-size 4 --num-virtual-stages-per-pipeline-rank 2 "
         "--microbatch-group-size-per-virtual-pipeline-stage 8", "0.19", "8 is no setting here"),
    ],
)  # fmt: skip
def test_a_command_line_that_no_settings_mean_is_refused(words: str, release: str, message: str) -> None:
    with pytest.raises(PolicyError, match=message):
        read_arguments(words.split(), release)


def test_a_file_of_settings_is_refused_when_merging() -> None:
    with pytest.raises(PolicyError, match="--yaml-cfg: the settings would come from a file"):
        merge_arguments(["--yaml-cfg", "x.yaml"], {}, "0.19")
    with pytest.raises(PolicyError, match="--args-file: the settings would come from a file"):
        merge_arguments(["--args-file=x"], {}, "0.19")


def test_options_that_end_before_ours_are_refused() -> None:
    with pytest.raises(PolicyError, match="'--' ends the options"):
        merge_arguments(["train.py", "--micro-batch-size", "2", "--", "x"], {}, "0.19")
    assert merge_arguments(["launch", "--", "train.py", "--lr", "1"], {}, "0.19")[:3] == ["launch", "--", "train.py"]


def test_merging_removes_older_words_and_keeps_the_fine_print_of_the_chosen_backend() -> None:
    kept = ["pretrain_gpt.py", "--moe-hybridep-pad-uneven-dispatch-inputs", "--lr=1e-4", "--data-path", "0.5", "a"]
    own = [*kept[:1], "--moe-ncclep-zero-copy", "--recompute-activations", "--decoder-last-pipeline-num-layers", "3"]
    own += ["--no-overlap-p2p-communication", "--cuda-graph-scope=attn", *kept[1:]]
    asked = {"dispatcher": "hybridep", "num_sms": 32}
    assert merge_arguments(own, asked, "0.19") == [*kept, *arguments_of(asked, "0.19")]


def test_the_last_of_several_printed_blocks_counts_and_prefixes_are_passed_over() -> None:
    first, last = (printed(arguments_of({"micro_batch_size": size}, "0.19"), "0.19") for size in (1, 4))
    log = first + "\n" + "\n".join(f"[default0]:2026-01-02 {line}" for line in last.splitlines())
    assert read_argument_dump(log, "0.19")["micro_batch_size"] == 4


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no block of printed arguments"),
        ("------------------------ arguments ------------------------\n  lr .... 1", "no block of printed arguments"),
        (
            "------------------------ arguments ------------------------\n  lr .... 1\n"
            "-------------------- end of arguments ---------------------",
            "not those of a Megatron-LM training program",
        ),
        (printed(arguments_of({}, "0.16"), "0.16"), "have no .*cuda_graph_modules, which Megatron-LM 0.19 has"),
    ],
)
def test_printed_arguments_that_are_not_there_or_of_another_release_are_refused(text: str, message: str) -> None:
    with pytest.raises(PolicyError, match=message):
        read_argument_dump(text, "0.19")


def test_a_printed_interleaved_schedule_without_overlap_is_refused() -> None:
    text = printed(arguments_of({"pipeline_parallel": 4, "virtual_pipeline": 2}, "0.19"), "0.19")
    assert read_argument_dump(text, "0.19")["virtual_pipeline"] == 2
    dots = "." * (48 - len("overlap_p2p_comm"))
    with pytest.raises(PolicyError, match="--no-overlap-p2p-communication"):
        read_argument_dump(text.replace(f"overlap_p2p_comm {dots} True", f"overlap_p2p_comm {dots} False"), "0.19")


@pytest.mark.parametrize("release", RELEASES)
def test_every_field_of_the_release_has_a_word_or_is_derived_by_the_parser(release: str) -> None:
    fields = set(render({}, release).merged())
    assert fields - {flag.field for flag in flags_of(release).values()} == {"overlap_p2p_comm", "batch_p2p_comm"}
    assert resolve({}).keys() >= read_arguments([], release).keys()
