"""Sampling with a fake NVML and a fake InfiniBand folder: no GPU, no waiting."""

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from autotune_trials.health import HealthSampler, is_stranger, visible_gpus


class Timeout(Exception):
    pass


class FakeNvml:
    """One GPU that can do everything; ``broken`` names functions that this driver does not have."""

    def __init__(self, broken=(), reasons=(0x1,), xids=()):
        self.reasons, self.xids = list(reasons), list(xids)
        self.ecc, self.rows, self.link_errors, self.pids = 0, (0, 0, 0, 0), 0, []
        self.open = 0
        for name in broken:
            setattr(self, name, self._missing)

    def _missing(self, *_):
        raise RuntimeError("Not Supported")

    def nvmlInit(self):
        self.open += 1

    def nvmlShutdown(self):
        self.open -= 1

    def nvmlDeviceGetHandleByIndex(self, index):
        return f"gpu-{index}"

    def nvmlDeviceGetHandleByUUID(self, uuid):
        return uuid

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle):
        return self.reasons.pop(0) if len(self.reasons) > 1 else self.reasons[0]

    def nvmlDeviceGetClockInfo(self, handle, kind):
        return 1980 - 10 * len(self.reasons)

    def nvmlDeviceGetTemperature(self, handle, sensor):
        return 60

    def nvmlDeviceGetComputeRunningProcesses(self, handle):
        return [SimpleNamespace(pid=pid) for pid in self.pids]

    def nvmlDeviceGetTotalEccErrors(self, handle, kind, counter):
        return self.ecc

    def nvmlDeviceGetRemappedRows(self, handle):
        return self.rows

    def nvmlDeviceGetNvLinkState(self, handle, link):
        return int(link < 2)

    def nvmlDeviceGetNvLinkErrorCounter(self, handle, link, counter):
        return self.link_errors

    def nvmlEventSetCreate(self):
        return "events"

    def nvmlDeviceRegisterEvents(self, handle, kind, events):
        pass

    def nvmlEventSetWait_v2(self, events, timeout_ms):
        if not self.xids:
            raise Timeout
        return SimpleNamespace(device="gpu-0", eventData=self.xids.pop(0))


def sampler_of(nvml, tmp_path, gpus=("0",)):
    return HealthSampler(gpus, "AUTOTUNE_FAMILY=ours", nvml=nvml, infiniband=tmp_path)


def sampled(nvml, tmp_path, times=4, between=lambda: None):
    sampler = sampler_of(nvml, tmp_path)
    sampler.open()
    for _ in range(times):
        sampler.sample()
    between()
    sampler.close()
    [gpu] = sampler.stop()["gpus"]
    assert nvml.open == 0
    return gpu


def test_the_share_of_slowed_samples_is_counted_by_reason(tmp_path):
    gpu = sampled(FakeNvml(reasons=[0x1, 0x44, 0x40, 0x80]), tmp_path)
    assert gpu["throttled"] == {"hardware thermal limit": 0.5, "power brake": 0.25}
    assert gpu["samples"] == 4
    assert gpu["sm_clock_mhz"] == [1950, 1970]
    assert gpu["temperature_c_max"] == 60


def test_a_power_cap_is_a_gpus_normal_life(tmp_path):
    assert sampled(FakeNvml(reasons=[0x4]), tmp_path)["throttled"] == {}


def test_only_counters_that_moved_are_told(tmp_path):
    nvml = FakeNvml(xids=[79, 31])
    nvml.ecc = 7

    def break_it():
        nvml.ecc, nvml.rows, nvml.link_errors = 9, (0, 0, 0, 1), 1

    gpu = sampled(nvml, tmp_path, between=break_it)
    assert gpu["ecc_uncorrected"] == 2
    assert gpu["remapped_rows_failed"] == 1
    assert gpu["nvlink_errors"] == 8  # two links with four counters each
    assert gpu["xid_errors"] == [79]  # 31 is a program's own bad address
    quiet = sampled(FakeNvml(), tmp_path)
    assert {"ecc_uncorrected", "nvlink_errors", "remapped_rows_failed"}.isdisjoint(quiet)


def test_a_driver_that_can_do_little_is_enough(tmp_path):
    names = [name for name in dir(FakeNvml) if name.startswith("nvmlDeviceGet") and "Handle" not in name]
    gpu = sampled(FakeNvml(broken=[*names, "nvmlEventSetCreate"]), tmp_path)
    assert (gpu["samples"], gpu["throttled"], gpu["sm_clock_mhz"]) == (0, {}, None)


def test_without_nvml_there_are_no_gpus(tmp_path):
    sampler = sampler_of(FakeNvml(broken=["nvmlInit"]), tmp_path)
    sampler.start(interval_s=60)
    assert sampler.stop() == {"gpus": [], "infiniband": {}}


def test_a_running_sampler_stops_at_once(tmp_path):
    sampler = sampler_of(FakeNvml(), tmp_path, gpus=("0", "GPU-7f"))
    sampler.start(interval_s=3600)
    assert [gpu["samples"] >= 1 for gpu in sampler.stop(wait_s=10)["gpus"]] == [True, True]


def test_infiniband_counters_are_compared(tmp_path):
    folder = tmp_path / "mlx5_0" / "ports" / "1" / "counters"
    folder.mkdir(parents=True)
    for name in ("link_downed", "symbol_error"):
        (folder / name).write_text("5\n")
    sampler = sampler_of(FakeNvml(), tmp_path)
    sampler.start(interval_s=3600)
    (folder / "link_downed").write_text("7\n")
    assert sampler.stop(wait_s=10)["infiniband"] == {"mlx5_0/1": {"link_downed": 2}}


def test_only_a_process_that_uses_cuda_and_is_not_ours_is_a_stranger(monkeypatch):
    assert not is_stranger(2**22 + 1, "AUTOTUNE_FAMILY=ours")  # an id of the host means nothing in a container
    assert not is_stranger(os.getpid(), "AUTOTUNE_FAMILY=ours")  # has not loaded the driver
    with subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", "input()"], stdin=subprocess.PIPE, env={"AUTOTUNE_FAMILY": "ours"}
    ) as ours:
        monkeypatch.setattr("pathlib.Path.read_bytes", lambda path: b"libcuda" if path.name == "maps" else b"A=1\0B=2")
        assert is_stranger(ours.pid, "AUTOTUNE_FAMILY=ours")
        monkeypatch.setattr("pathlib.Path.read_bytes", lambda path: b"A=1\0AUTOTUNE_FAMILY=ours\0")
        assert not is_stranger(ours.pid, "AUTOTUNE_FAMILY=ours")
        ours.communicate(b"\n")


@pytest.mark.parametrize(
    ("named", "gpus"),
    [(None, ("0", "1")), ("", ()), ("-1,0", ()), ("4,5,6", ("4", "5")), ("GPU-a, GPU-b", ("GPU-a", "GPU-b"))],
)
def test_the_gpus_of_a_gang_are_the_visible_ones(monkeypatch, named, gpus):
    if named is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
    assert visible_gpus(2) == gpus
