"""The preflight on one real GPU; skipped, and counted as skipped, where there is none."""

import importlib.util
from pathlib import Path

import pytest

from autotune_trials.facts import gpu_names
from autotune_trials.preflight.elf import runs_on, targets
from autotune_trials.preflight.exchange import PERMUTE_FUSION
from autotune_trials.preflight.node import inspect_node, run_exchange
from autotune_trials.preflight.nvml import read_gpus

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def _needs_a_gpu() -> None:
    if not gpu_names():
        pytest.skip("no NVIDIA GPU can be seen through NVML")


def test_nvml_reads_what_torch_says() -> None:
    torch = pytest.importorskip("torch")
    gpu = read_gpus()[0]
    assert gpu.compute_capability == torch.cuda.get_device_capability(0)
    assert gpu.name == torch.cuda.get_device_name(0)
    assert gpu.mig in (False, None)


@pytest.mark.parametrize("dispatcher", ["alltoall", "allgather"])
def test_the_exchange_of_one_rank_over_nccl(dispatcher: str) -> None:
    found = run_exchange(dispatcher, 1, {}, timeout_s=120.0)
    assert (found["available"], found["reason"]) == (True, "")


def test_a_node_is_inspected_and_every_verdict_has_a_reason_or_is_good(tmp_path: Path) -> None:
    report = inspect_node(["alltoall", "deepep", "hybridep", PERMUTE_FUSION], {}, 120.0, tmp_path)
    assert report.verdicts["alltoall"]["available"] is True, report.verdicts["alltoall"]
    assert all(each["available"] or each["reason"] for each in report.verdicts.values())
    if importlib.util.find_spec("transformer_engine") is None:
        assert report.verdicts[PERMUTE_FUSION]["level"] == "installed"
        assert report.verdicts[PERMUTE_FUSION]["available"] is False
    again = inspect_node(["alltoall"], {}, 120.0, tmp_path)
    assert again.verdicts["alltoall"] == report.verdicts["alltoall"]


def test_a_real_library_was_built_for_this_gpu() -> None:
    spec = importlib.util.find_spec("nvidia.nccl") if importlib.util.find_spec("nvidia") else None
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("the nvidia-nccl wheel is not installed")
    [library] = Path(next(iter(spec.submodule_search_locations))).glob("lib/libnccl.so.2")
    capability = read_gpus()[0].compute_capability
    assert capability is not None
    assert runs_on(targets(library), capability)
