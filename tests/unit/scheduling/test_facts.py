import sys
import types

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune_trials.facts import container, fingerprint, gpu_names, node_facts

names = st.sampled_from(["python", "cpu", "versions", "gpus", "gpu_driver", "cpu_count"])
facts = st.dictionaries(names, st.none() | st.integers() | st.lists(st.text(max_size=5), max_size=3))


@given(facts, st.text(max_size=9), st.text(max_size=9))
def test_the_host_name_does_not_count(stack, one, other):
    assert fingerprint({**stack, "host": one}) == fingerprint({**stack, "host": other})


@given(facts)
def test_the_order_of_the_facts_does_not_count(stack):
    assert fingerprint(stack) == fingerprint(dict(reversed(stack.items())))


@given(facts, st.sampled_from(["versions", "gpus", "cpu_count"]), st.integers(), st.integers())
def test_every_other_difference_counts(stack, name, one, other):
    same = fingerprint({**stack, name: one}) == fingerprint({**stack, name: other})
    assert same == (one == other)


def test_a_fingerprint_is_twelve_hexadecimal_digits_of_facts_that_stay():
    assert len(fingerprint(node_facts())) == 12
    int(fingerprint(node_facts()), 16)
    assert fingerprint(node_facts()) == fingerprint(node_facts())


def test_finding_out_imports_nothing_heavy():
    before = set(sys.modules)
    node_facts()
    assert not {"torch", "megatron", "deep_ep"} & (set(sys.modules) - before)


def test_gpus_are_named_by_nvml(monkeypatch):
    nvml = types.ModuleType("pynvml")
    nvml.NVMLError = RuntimeError
    nvml.nvmlInit = nvml.nvmlShutdown = lambda: None
    nvml.nvmlDeviceGetCount = lambda: 2
    nvml.nvmlDeviceGetHandleByIndex = lambda index: index
    nvml.nvmlDeviceGetName = lambda handle: [b"NVIDIA GB300", "NVIDIA GB300"][handle]
    nvml.nvmlSystemGetDriverVersion = lambda: b"580.65"
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    assert gpu_names() == ["NVIDIA GB300", "NVIDIA GB300"]
    assert node_facts()["gpu_driver"] == "580.65"


def test_without_a_driver_there_are_no_gpus(monkeypatch):
    nvml = types.ModuleType("pynvml")

    def no_driver():
        raise OSError("libnvidia-ml.so.1: cannot open shared object file")

    nvml.nvmlInit = no_driver
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    assert gpu_names() == []


def test_a_container_is_what_the_launcher_calls_it_else_what_its_image_says():
    assert container({"AUTOTUNE_CONTAINER": "sha256:12ab", "NVIDIA_BUILD_ID": "7"}) == "sha256:12ab"
    assert container({"NVIDIA_BUILD_ID": "7"}) == "nvidia-build-7"
    assert container({"APPTAINER_CONTAINER": "/images/nemo.sif"}) == "/images/nemo.sif"


def test_another_container_is_another_stack(monkeypatch):
    monkeypatch.setenv("AUTOTUNE_CONTAINER", "sha256:12ab")
    before = fingerprint(node_facts())
    monkeypatch.setenv("AUTOTUNE_CONTAINER", "sha256:34cd")
    assert fingerprint(node_facts()) != before


def test_the_nccl_of_a_container_is_told_by_its_file(monkeypatch, tmp_path):
    (tmp_path / "libnccl.so.2.29.2").touch()
    (tmp_path / "libnccl.so.2").symlink_to("libnccl.so.2.29.2")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    assert node_facts()["nccl_library"] == "libnccl.so.2.29.2"


@pytest.mark.parametrize("down", [None, 3])
def test_a_link_that_is_down_is_another_topology(monkeypatch, down):
    nvml = types.ModuleType("pynvml")
    nvml.NVMLError = RuntimeError
    nvml.NVML_NVLINK_MAX_LINKS = 18

    def link_state(handle, link):
        if link >= 4:
            raise RuntimeError("not supported")
        return link != down

    nvml.nvmlInit = nvml.nvmlShutdown = lambda: None
    nvml.nvmlDeviceGetCount = lambda: 2
    nvml.nvmlDeviceGetHandleByIndex = lambda index: index
    nvml.nvmlDeviceGetName = lambda handle: "NVIDIA H100"
    nvml.nvmlSystemGetDriverVersion = lambda: "580.65"
    nvml.nvmlDeviceGetTopologyCommonAncestor = lambda one, other: 20
    nvml.nvmlDeviceGetNvLinkState = link_state
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    links = 4 if down is None else 3
    assert node_facts()["gpu_topology"] == {"distances": [[], [20]], "nvlinks": [links, links]}
