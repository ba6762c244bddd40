"""A card's run is built by the installed Megatron-Bridge; a process of its own, since library stand-ins stay loaded."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[3]
HAS_BRIDGE = importlib.util.find_spec("megatron") is not None and importlib.util.find_spec("megatron.bridge")
pytestmark = [
    pytest.mark.trial,
    pytest.mark.skipif(not HAS_BRIDGE, reason="megatron-bridge is not installed"),
]

CARD = """\
title: a card in the form of the published ones
verification_index: {performance: {GB200: verified}}
items:
  pretrain_performance:
    GB200:
      status: verified
      precision: fp8_mx
      enabled_features: {moe_dispatcher: hybridep}
      command: >
        ./train.sh --nodes 2 --gpus-per-node 4 --recipe qwen3_30b_a3b_pretrain_8gpu_gb200_fp8mx_config
        --max_steps 50 -mb 2 model.moe_flex_dispatcher_num_sms=24 train.manual_gc=true train.manual_gc_interval=7
        dataset.num_workers=8
      metrics: {last_10_steps_step_time_ms_avg: 6501.12}
"""
PROGRAM = """\
import sys, warnings
from pathlib import Path
warnings.simplefilter("ignore")
from tests.support.bridge_stubs import install_stubs, use_local_models
install_stubs()
use_local_models(Path(sys.argv[1]))
from autotune_policies.__main__ import main
sys.exit(main(sys.argv[2:]))
"""


def test_the_recipe_of_a_card_becomes_a_policy_with_its_overrides_and_without_its_numbers(tmp_path: Path) -> None:
    card, policy, models = tmp_path / "card.yaml", tmp_path / "policy.yaml", tmp_path / "models"
    card.write_text(CARD, encoding="utf-8")
    models.mkdir()
    done = subprocess.run(
        [
            sys.executable, "-c", PROGRAM, str(models), "import", str(card),
            "--model", "qwen3-30b", "--cluster", "gb200", "-o", str(policy),
        ],
        capture_output=True, text=True, check=False, cwd=ROOT,
        env={"PYTHONPATH": f"{ROOT}:{ROOT / 'policies'}", "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    found = yaml.safe_load(policy.read_text(encoding="utf-8"))
    settings = found["settings"]
    assert (settings["dispatcher"], settings["num_sms"], settings["micro_batch_size"]) == ("hybridep", 24, 2)
    assert settings["manual_gc_interval"] == 7
    assert (found["applies_to"]["num_gpus"], found["applies_to"]["precision"]) == (8, "fp8_mx")
    assert found["evidence"]["kind"] == "imported"
    assert (
        "reported by the card, not measured here: last_10_steps_step_time_ms_avg 6501.12" in found["evidence"]["note"]
    )
    assert not {"step_time_s", "trial", "tokens_per_s_per_gpu"} & set(found["evidence"])
    assert found["env"]["NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN"] == "8"
