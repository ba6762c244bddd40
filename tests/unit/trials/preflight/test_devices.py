"""What NVML and device files say of a node, and what that means."""

import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune_trials.facts import node_facts
from autotune_trials.preflight.devices import gpu_findings, network_findings
from autotune_trials.preflight.nvml import Gpu, look, read_gpus
from tests.support.planted import H100, NVML, Planted

GARBAGE = (None, 7, -1, "words", b"\xff", [], (1,), (1, 2), {"a": 1}, [1, 2], object(), 1.5, [None], True)
FABRIC = {"clusterUuid": [7] * 16, "status": 0, "cliqueId": 3, "state": 3, "healthSummary": 1}
Plant = Callable[..., None]


def planted_nvml() -> ModuleType:
    module = ModuleType("pynvml")
    exec(NVML.replace("{gpus!r}", "[]"), module.__dict__)
    return module


@pytest.fixture
def plant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Plant:
    """Gives this process an NVML of our own."""

    def make(gpus: list[dict[str, object]] | None) -> None:
        Planted(tmp_path, gpus)
        module = ModuleType("pynvml")
        exec((tmp_path / "pynvml.py").read_text(), module.__dict__)
        monkeypatch.setitem(sys.modules, "pynvml", module)

    return make


def test_a_plain_gpu_is_read_and_unsupported_readings_are_unknown(plant: Plant) -> None:
    plant([H100])
    assert read_gpus() == (
        Gpu(0, "NVIDIA H100", "GPU-1", (9, 0), False, 0, nvlinks_active=18, nvlinks=18, fabric_state=None),
    )
    assert [(found.name, found.state, found.says) for found in gpu_findings(read_gpus())] == [
        ("gpus", "ok", "1 x NVIDIA H100, 18 NVLinks each")
    ]


@pytest.mark.parametrize(
    ("change", "name", "state", "says"),
    [
        ({"mig": (1, 1)}, "mig", "fail", "GPU 0 is divided into instances"),
        ({"links": [1] * 15 + [0] * 3}, "nvlink", "warn", "3 of 18 NVLinks of GPU 0 are down"),
        ({"links": [0] * 18}, "nvlink", "fail", "18 of 18 NVLinks of GPU 0 are down"),
        ({"ecc": 2}, "ecc", "warn", "GPU 0 has 2 uncorrected memory errors"),
        ({"pids": [11, 12]}, "neighbours", "warn", "GPU 0 is used by other processes: 11, 12"),
        ({"fabric": {**FABRIC, "state": 2}}, "fabric", "fail", "GPU 0 has not joined the NVLink fabric yet"),
        ({"fabric": {**FABRIC, "healthSummary": 2}}, "fabric", "warn", "the NVLink fabric of GPU 0 says"),
        ({"fabric": {**FABRIC, "status": 15}}, "fabric", "warn", "the NVLink fabric of GPU 0 says"),
    ],
)
def test_trouble_of_one_gpu(plant: Plant, change: dict[str, object], name: str, state: str, says: str) -> None:
    plant([{**H100, **change}])
    [found] = gpu_findings(read_gpus())
    assert (found.name, found.state) == (name, state)
    assert found.says.startswith(says)
    assert found.fix


def test_gpus_that_cannot_reach_each_other(plant: Plant) -> None:
    plant([{**H100, "p2p": {1: 5}}, {**H100, "p2p": {0: 5}}, {**H100, "p2p": {}}])
    [found] = gpu_findings(read_gpus())
    assert (found.name, found.state) == ("p2p", "fail")
    assert found.says == "no NVLink path between 1 pairs of GPUs: 0 and 1"


def test_the_domain_of_the_fabric(plant: Plant) -> None:
    plant([{**H100, "fabric": FABRIC}, {**H100, "fabric": FABRIC}])
    assert {gpu.fabric_domain for gpu in read_gpus()} == {"07" * 16 + ".3"}
    plant([{**H100, "fabric": FABRIC}, {**H100, "fabric": {**FABRIC, "cliqueId": 4}}])
    [found] = gpu_findings(read_gpus())
    assert (found.name, found.state) == ("fabric", "fail")
    plant([{**H100, "fabric": {**FABRIC, "clusterUuid": [0] * 16}}])
    assert read_gpus()[0].fabric_domain is None


def test_no_driver_and_no_gpu_are_unknown_and_no_failure(plant: Plant) -> None:
    for gpus in (None, []):
        plant(gpus)
        assert [found.state for found in gpu_findings(*look())] == ["unknown"]


@pytest.mark.parametrize(
    ("body", "says", "fix"),
    [
        ("raise ModuleNotFoundError('No module', name='pynvml')", "NVML has no Python binding here", "nvidia-ml-py"),
        ("import no_such_module", "NVML cannot be imported: No module named 'no_such_module'", "nvidia-ml-py"),
        ("1 / 0", "NVML cannot be imported: division by zero", "nvidia-ml-py"),
        ("", "NVML does not start: module 'pynvml' has no attribute 'nvmlInit'", "driver"),
        ("def nvmlInit(): raise SystemExit(3)", "NVML does not start: 3", "driver"),
        ("raise SystemExit", "NVML cannot be imported: SystemExit", "nvidia-ml-py"),
        ("def nvmlInit(): raise OSError('libnvidia-ml.so.1')", "NVML does not start: libnvidia-ml.so.1", "driver"),
    ],
)
def test_why_there_is_no_nvml_is_told_and_a_gpu_that_is_there_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, says: str, fix: str
) -> None:
    (tmp_path / "pynvml.py").write_text(body)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "pynvml", raising=False)
    gpus, absence = look()
    monkeypatch.delitem(sys.modules, "pynvml", raising=False)
    [found] = gpu_findings(gpus, absence, tmp_path)
    assert (gpus, found.state) == ((), "unknown")
    assert found.says == f"no GPU to be seen: {says}"
    assert fix in found.fix
    for name in ("nvidia0", "nvidiactl"):
        (tmp_path / "dev").mkdir(exist_ok=True)
        (tmp_path / "dev" / name).touch()
    [found] = gpu_findings(gpus, absence, tmp_path)
    assert found.state == "warn"
    assert found.says.endswith(", but there is /dev/nvidia0")


@given(st.sampled_from(GARBAGE), st.sampled_from(GARBAGE))
def test_an_nvml_that_answers_with_garbage_leaves_readings_unknown(one: object, other: object) -> None:
    """Whatever the functions of a binding give, nobody is hurt."""
    nvml = ModuleType("pynvml")
    nvml.nvmlInit = nvml.nvmlShutdown = lambda: None  # type: ignore[attr-defined]
    nvml.nvmlDeviceGetCount = lambda: 2  # type: ignore[attr-defined]
    nvml.nvmlDeviceGetHandleByIndex = lambda index: index  # type: ignore[attr-defined]
    answers = [name for name in vars(planted_nvml()) if name.startswith("nvml") and name not in vars(nvml)]
    for number, name in enumerate(answers):
        setattr(nvml, name, lambda *_, given=(one, other)[number % 2]: given)
    nvml.c_nvmlGpuFabricInfo_v3_t = lambda: other  # type: ignore[attr-defined]
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "pynvml", nvml)
        gpus = read_gpus()
        facts = node_facts()
    assert [gpu.index for gpu in gpus] == [0, 1]
    assert all(isinstance(gpu.name, str) for gpu in gpus)
    json.dumps([asdict(gpu) for gpu in gpus])
    json.dumps(facts)
    gpu_findings(gpus)


def test_a_driver_that_tells_of_a_billion_gpus_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    nvml = ModuleType("pynvml")
    nvml.nvmlInit = nvml.nvmlShutdown = lambda: None  # type: ignore[attr-defined]
    nvml.nvmlDeviceGetCount = lambda: 10**9  # type: ignore[attr-defined]
    nvml.nvmlDeviceGetHandleByIndex = asked.append  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    assert read_gpus() == ()
    assert len(asked) == 256


def test_device_files(tmp_path: Path) -> None:
    assert {found.name: found.state for found in network_findings(tmp_path)} == dict.fromkeys(
        ("infiniband", "gdrcopy", "imex"), "warn"
    )
    for name in ("sys/class/infiniband/mlx5_0", "dev/infiniband", "dev/nvidia-caps-imex-channels"):
        (tmp_path / name).mkdir(parents=True)
    [adapters, *_] = network_findings(tmp_path)
    assert (adapters.state, "no /dev/infiniband/uverbs" in adapters.says) == ("warn", True)
    for name in ("dev/infiniband/uverbs0", "dev/gdrdrv", "dev/nvidia-caps-imex-channels/channel0"):
        (tmp_path / name).touch()
    assert [(found.state, found.fix) for found in network_findings(tmp_path)] == [("ok", "")] * 3
