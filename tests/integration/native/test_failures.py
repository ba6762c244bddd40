"""How the program ends when it cannot do what was asked."""

import importlib.metadata
from pathlib import Path
from typing import Any

import pytest

HIDE_TRITON = """
import importlib.util
import sys
real = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "triton" else real(name, *rest)
class Hide:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] == "triton":
            raise ModuleNotFoundError("No module named 'triton'", name="triton")
sys.meta_path.insert(0, Hide)
"""


def assert_rejected(run: Any) -> None:
    assert 2 in run.exit_codes  # the other rank may have been ended before it could say so too
    assert {failure["kind"] for failure in run.failures} == {"rejected"}


def test_a_gpu_dispatcher_is_rejected_not_replaced(launch: Any) -> None:
    run = launch(2, dispatcher="deepep", num_sms=24, expert_parallel=2)
    assert_rejected(run)
    assert run.failures[0]["message"] == "dispatcher=deepep needs GPUs; a CPU runs alltoall and allgather"
    assert not run.named("step")


def test_what_megatron_refuses_is_rejected_with_its_reason(launch: Any) -> None:
    run = launch(2, expert_parallel=2, recompute_granularity="selective", recompute_modules=["moe_act"])
    assert_rejected(run)
    message = run.failures[0]["message"]
    assert message.startswith("Megatron-Core refuses it: ")
    assert "moe_act" in message
    assert "\n" not in message


def test_numbers_that_are_not_finite_end_the_run_after_the_record(launch: Any) -> None:
    run = launch(2, model={"aux_loss_coeff": 1e39}, expert_parallel=2)
    assert 1 in run.exit_codes
    assert run.failures[0]["kind"] == "numerics"
    assert "in step 1" in run.failures[0]["message"]
    assert [event["step"] for event in run.named("step")] == [1]


@pytest.mark.skipif(
    importlib.metadata.version("megatron-core") < "0.18", reason="earlier releases import triton only if it is there"
)
def test_it_runs_without_triton(launch: Any, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(HIDE_TRITON)
    run = launch(1, contract={"steps": 2}, env={"PYTHONPATH": str(tmp_path)})
    assert run.exit_codes == [0], run.logs[0][-2000:]
