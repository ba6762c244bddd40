"""A profiler's trace, planted event by event, read into seconds by part."""

from typing import Any

import pytest

from autotune_trials.native.trace import TraceError, seconds_by_part

HOST, BACKWARD = 1, 2
S = 1_000_000.0  # a trace counts in microseconds


def span(
    category: str, name: str, start_s: float, end_s: float, thread: int = HOST, **arguments: Any
) -> dict[str, Any]:
    return {
        "ph": "X", "cat": category, "name": name, "tid": thread, "ts": start_s * S, "dur": (end_s - start_s) * S,
        "args": arguments,
    }  # fmt: skip


def ranged(part: str, start_s: float, end_s: float) -> dict[str, Any]:
    return span("user_annotation", f"autotune:{part}", start_s, end_s)


def link(identity: int, forward_s: float, backward_s: float, backward_thread: int) -> list[dict[str, Any]]:
    shared = {"cat": "fwdbwd", "name": "fwdbwd", "id": identity}
    return [
        {**shared, "ph": "s", "tid": HOST, "ts": forward_s * S},
        {**shared, "ph": "f", "tid": backward_thread, "ts": backward_s * S},
    ]


def kernel(launched_s: float, start_s: float, end_s: float, *, thread: int = HOST, name: str = "k", number: int = 0):
    number = number or int(start_s * 1000) + 1
    return [
        span("cuda_runtime", "cudaLaunchKernel", launched_s, launched_s + 0.001, thread, correlation=number),
        span("kernel", name, start_s, end_s, 7, correlation=number),
    ]


def read(*events: Any) -> dict[str, float]:
    flat = [event for item in events for event in (item if isinstance(item, list) else [item])]
    return seconds_by_part({"traceEvents": flat})


def test_on_a_cpu_the_parts_are_time_of_the_calling_thread_forward_and_backward() -> None:
    found = read(
        ranged("step", 0.0, 10.0),
        ranged("dispatch", 1.0, 2.0), span("cpu_op", "_AllToAll", 1.2, 1.8),
        ranged("experts", 2.0, 4.0), span("cpu_op", "aten::mm", 2.5, 3.5),
        span("cpu_op", "aten::softmax", 4.0, 4.5),
        span("cpu_op", "_AllToAllBackward", 5.0, 7.0), link(1, 1.2, 5.0, HOST),
        span("cpu_op", "gloo's own thread", 0.0, 10.0, thread=9),
    )  # fmt: skip

    assert found["dispatch_s"] == found["exposed_dispatch_s"] == pytest.approx(1.0 + 2.0)
    assert found["experts_s"] == pytest.approx(2.0)
    assert found["other_s"] == pytest.approx(0.5)
    assert found["host_s"] == pytest.approx(10.0 - 5.5)
    assert found["exposed_combine_s"] == 0.0


def test_a_part_within_what_another_ones_backward_recomputes_is_its_own() -> None:
    found = read(
        ranged("step", 0.0, 10.0),
        span("cpu_op", "CheckpointFunction", 0.5, 0.9),
        span("cpu_op", "CheckpointFunctionBackward", 2.0, 9.0), link(1, 0.5, 2.0, HOST),
        ranged("permute", 3.0, 4.0), span("cpu_op", "aten::index", 3.1, 3.9),
        span("cpu_op", "IndexBackward0", 6.0, 7.5), link(2, 3.1, 6.0, HOST),
    )  # fmt: skip

    assert found["permute_s"] == pytest.approx(1.0 + 1.5)
    assert found["other_s"] == pytest.approx(0.4 + 7.0 - 2.5)


def test_on_a_gpu_communication_that_another_stream_hides_is_not_exposed() -> None:
    found = read(
        ranged("step", 0.0, 10.0),
        span("gpu_user_annotation", "autotune:step", 0.9, 9.0, 7),
        span("gpu_user_annotation", "autotune:experts", 2.0, 3.5, 7),
        ranged("dispatch", 0.1, 0.2), kernel(0.15, 1.0, 4.0, name="deep_ep::dispatch"),
        ranged("experts", 0.2, 0.4), kernel(0.3, 2.0, 3.5, name="gemm"),
        ranged("combine", 0.5, 0.6), kernel(0.55, 5.0, 6.0, name="ncclDevKernel_SendRecv"),
        kernel(0.7, 6.0, 8.0, name="ncclDevKernel_ReduceScatter"), kernel(0.8, 7.5, 9.0, name="layer_norm"),
    )  # fmt: skip

    assert found["dispatch_s"] == pytest.approx(3.0)
    assert found["exposed_dispatch_s"] == pytest.approx(1.5)
    assert found["exposed_combine_s"] == pytest.approx(1.0)
    assert found["experts_s"] == pytest.approx(1.5)
    assert found["exposed_other_communication_s"] == pytest.approx(1.5)
    assert found["other_s"] == pytest.approx(1.5)
    assert found["host_s"] == pytest.approx(10.0 - 3.0 - 1.0 - 3.0)


def test_a_kernel_of_the_backward_pass_belongs_to_the_part_of_its_forward_operator() -> None:
    found = read(
        ranged("step", 0.0, 4.0),
        ranged("experts", 0.1, 0.3), span("cpu_op", "grouped_gemm", 0.15, 0.25), kernel(0.2, 0.5, 1.0),
        span("cpu_op", "GroupedGemmBackward", 1.0, 1.4, BACKWARD), link(1, 0.15, 1.0, BACKWARD),
        kernel(1.2, 2.0, 3.0, thread=BACKWARD), kernel(1.5, 3.0, 3.5, thread=BACKWARD),
    )  # fmt: skip

    assert found["experts_s"] == pytest.approx(1.5)
    assert found["other_s"] == pytest.approx(0.5)


def test_several_steps_give_their_mean_and_what_lies_between_them_does_not_count() -> None:
    found = read(
        ranged("step", 0.0, 2.0), ranged("optimizer", 1.0, 1.5),
        ranged("step", 5.0, 9.0), ranged("optimizer", 6.0, 6.7), span("cpu_op", "next batch", 3.0, 4.0),
    )  # fmt: skip

    assert found["step_time_s"] == pytest.approx(3.0)
    assert found["optimizer_s"] == pytest.approx(0.6)
    assert found["other_s"] == 0.0


def test_a_trace_without_a_step_is_no_profile() -> None:
    with pytest.raises(TraceError, match="no step"):
        read(span("cpu_op", "aten::mm", 0.0, 1.0))
