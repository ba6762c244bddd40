"""Three words for whether a prediction fits, by the estimate's own error."""

from dataclasses import replace

from autotune.predict.fit import fit_of
from autotune.predict.memory import predict_memory
from autotune.request import load_request


def test_the_room_left_decides_with_the_error_of_the_estimate() -> None:
    request = load_request("dsv3", "gb300")
    settings = request.settings(request.space.baseline)
    memory = predict_memory(request.shape, request.contract, settings, request.gang, request.cluster)
    memory = replace(memory, uncertainty=0.1)
    need, peak = memory.device_memory_bytes, memory.peak_memory_bytes
    spread = int(0.1 * peak)

    assert fit_of(memory, need + spread + 1) == "fits"
    assert fit_of(memory, need + spread - 1) == "may not fit"
    assert fit_of(memory, need) == "may not fit"
    assert fit_of(memory, need - 1) == "does not fit"
    assert fit_of(memory, None) is None
    assert fit_of(memory, 10 * need, peak - 1) == "does not fit"
    assert fit_of(memory, 10 * need, peak + 1) == "may not fit"
    assert fit_of(memory, None, 2 * peak) == "fits"
