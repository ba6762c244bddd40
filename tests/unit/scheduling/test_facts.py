import sys
import types

from hypothesis import given
from hypothesis import strategies as st

from autotune_trials.facts import fingerprint, gpu_names, node_facts

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
