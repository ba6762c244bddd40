"""A training script, a command or a log as a policy."""

import shlex
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune_policies.__main__ import main
from autotune_policies.errors import PolicyFormatError
from autotune_policies.megatron_lm import arguments_of, read_arguments
from autotune_policies.megatron_lm_import import is_log, read_log, read_script
from autotune_policies.policy import load_policy
from autotune_policies.settings import resolve

SCRIPT = """\
#!/bin/bash
export CUDA_DEVICE_MAX_CONNECTIONS=32 NCCL_DEBUG=WARN
GPUS_PER_NODE=8
SAVE=$1
EP=8

MODEL_ARGS=(
    --num-layers 16 --hidden-size 1024   # the shape
    --num-experts 64 --bf16 --seq-length 4096
)
MOE_ARGS="
    --moe-token-dispatcher-type flex --moe-flex-dispatcher-backend deepep \\
    --expert-model-parallel-size ${EP} --moe-grouped-gemm
"
NVTE_FWD_LAYERNORM_SM_MARGIN=16 NVTE_BWD_LAYERNORM_SM_MARGIN=16 \\
torchrun --nproc_per_node $GPUS_PER_NODE --nnodes 4 --master_addr $MASTER train.py "${MODEL_ARGS[@]}" $MOE_ARGS \\
    --micro-batch-size 2 --global-batch-size 256 --moe-flex-dispatcher-num-sms 24 --save "$SAVE/run" \\
    --pipeline-model-parallel-size 4 --pipeline-model-parallel-layout "Et*4|t*4|t*4|t*4L" 2>&1 | tee log.txt
"""
WHO = ["--model", "m", "--cluster", "c", "--megatron-core", "0.19"]


def test_a_script_says_settings_environment_and_contract() -> None:
    found = read_script(SCRIPT, "run.sh", "0.19")
    asked = {
        "dispatcher": "deepep", "num_sms": 24, "expert_parallel": 8, "grouped_gemm": True, "micro_batch_size": 2,
        "pipeline_parallel": 4, "pipeline_layout": "Et*4|t*4|t*4|t*4L", "distributed_optimizer": False,
        "layernorm_sm_margin": 16, "cuda_device_max_connections": 32,
    }  # fmt: skip
    assert resolve(found.settings) == resolve(asked)
    assert found.env == {
        "CUDA_DEVICE_MAX_CONNECTIONS": "32",
        "NVTE_FWD_LAYERNORM_SM_MARGIN": "16",
        "NVTE_BWD_LAYERNORM_SM_MARGIN": "16",
    }
    assert found.contract == {"seq_length": 4096, "global_batch_size": 256, "num_gpus": 32, "precision": "bf16"}
    assert found.stack == {"megatron_core": "0.19"}
    assert found.notes == ("variables that are no tuning knobs: NCCL_DEBUG",)


def test_the_command_writes_a_policy_without_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, target = tmp_path / "run.sh", tmp_path / "policy.yaml"
    source.write_text(SCRIPT, encoding="utf-8")
    assert main(["import", str(source), *WHO, "--as", "baseline", "-o", str(target)]) == 0
    policy = load_policy(target)
    assert policy.evidence == {
        "kind": "imported", "role": "baseline", "source": "command line in run.sh",
        "note": "variables that are no tuning knobs: NCCL_DEBUG",
    }  # fmt: skip
    assert policy.applies_to["num_gpus"] == 32
    capsys.readouterr()
    assert main(["render", str(target), "--for", "megatron-lm", "--megatron-core", "0.19"]) == 0
    said = read_arguments(shlex.split(capsys.readouterr().out.replace("\\\n", " ")), "0.19")
    assert said == {name: policy.settings[name] for name in said}


@settings(max_examples=30, deadline=None)
@given(
    expert=st.sampled_from([1, 2, 8]), micro=st.integers(1, 8), dispatcher=st.sampled_from(["alltoall", "deepep"]),
    graphs=st.sampled_from(["none", "local"]),
)  # fmt: skip
def test_a_command_of_our_own_words_comes_back(expert: int, micro: int, dispatcher: str, graphs: str) -> None:
    asked = resolve(
        {
            "expert_parallel": expert, "micro_batch_size": micro, "dispatcher": dispatcher, "cuda_graph_impl": graphs,
            "num_sms": 24 if dispatcher == "deepep" else None, "pipeline_parallel": 2, "pipeline_layout": "Et*3|tL",
        }
    )  # fmt: skip
    words = " \\\n  ".join(f"'{word}'" for word in arguments_of(asked, "0.18"))
    assert resolve(read_script(f"python pretrain_gpt.py {words}\n", "x", "0.18").settings) == asked


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("--micro-batch-size 2", "", "command line in run.sh does not say --micro-batch-size"),
        ("EP=8\n", "", "^run.sh:14: \\${EP} is not defined in the file"),
        ('"${MODEL_ARGS[@]}"', "${EXTRA}", "^run.sh:15: \\${EXTRA} is not defined in the file"),
        ("--expert-model-parallel-size ${EP}", "--num-virtual-stages-per-pipeline-rank $X", "^run.sh:15: \\$X is not"),
        ("--num-layers 16", "--cuda-graph-scope-x attn --decoder-first-pipeline-num-layers 3", "an uneven split"),
        ("CONNECTIONS=32", "CONNECTIONS=$1", "CUDA_DEVICE_MAX_CONNECTIONS is \\$1, which the file does not define"),
        ("CONNECTIONS=32", "CONNECTIONS=many", "^run.sh:15: CUDA_DEVICE_MAX_CONNECTIONS='many' must be a whole number"),
        ("| tee log.txt", "; python x.py --bf16 --moe-grouped-gemm", "2 commands of Megatron-LM \\(lines 15, 18\\)"),
        ("torchrun", "# torchrun", "no command with a flag of Megatron-LM"),
        ('"Et*4', "'Et*4", "is not closed"),
    ],
)
def test_a_script_that_leaves_something_open_is_refused_with_its_line(old: str, new: str, message: str) -> None:
    assert old in SCRIPT
    text = SCRIPT.replace(old, new)
    if old == "torchrun":
        text = text[: text.index("NVTE_FWD")]
    with pytest.raises(PolicyFormatError, match=message):
        read_script(text, "run.sh", "0.19")


@pytest.mark.parametrize(
    ("words", "precision"),
    [
        ("--bf16", "bf16"), ("--fp16", "fp16"), ("--bf16 --fp8-format hybrid", "fp8_ds"),
        ("--bf16 --fp8-format e4m3 --fp8-recipe mxfp8", "fp8_mx"), ("--bf16 --fp4-format e2m1", "nvfp4"), ("", None),
        ("--bf16 --fp8-format e4m3 --fp8-recipe custom", "fp8_custom"),
    ],
)  # fmt: skip
def test_precision_is_what_the_flags_say(words: str, precision: str | None) -> None:
    found = read_script(f"x --micro-batch-size 1 {words}", "x", "0.19")
    assert found.contract.get("precision") == precision


def test_hybridep_without_its_environment_is_no_policy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "run.sh"
    source.write_text(SCRIPT.replace("backend deepep", "backend hybridep"), encoding="utf-8")
    assert main(["import", str(source), *WHO]) == 2
    assert "NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN is missing" in capsys.readouterr().err
    variables = "NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN=8 NVLINK_DOMAIN_SIZE=8 USE_MNNVL=0"
    options = [word for variable in variables.split() for word in ("--env", variable)]
    assert main(["import", str(source), *WHO, *options]) == 0


def test_a_log_says_settings_and_contract_but_no_environment(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from .test_megatron_lm import printed

    asked = resolve({"expert_parallel": 4, "dispatcher": "deepep", "num_sms": 20})
    facts = "  seq_length .... 2048\n  global_batch_size .... 64\n  world_size .... 16\n  bf16 .... True\n"
    text = printed(arguments_of(asked, "0.17"), "0.17").replace("-\n", "-\n" + facts, 1)
    assert is_log(text)
    assert not is_log(SCRIPT)
    found = read_log(text, "log.txt", "0.17")
    assert resolve(found.settings) == asked
    assert found.contract == {"seq_length": 2048, "global_batch_size": 64, "num_gpus": 16, "precision": "bf16"}
    path = tmp_path / "log.txt"
    path.write_text(text, encoding="utf-8")
    assert main(["import", str(path), "--model", "m", "--cluster", "c", "--megatron-core", "0.17"]) == 0
    assert "kind: imported" in capsys.readouterr().out
    with pytest.raises(PolicyFormatError, match=r"^log.txt: the printed arguments have no .*"):
        read_log(text, "log.txt", "0.19")
