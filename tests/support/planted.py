"""Made-up libraries for probes: importable, with the interfaces that Megatron-Core calls, and nothing behind them."""

from collections.abc import Mapping
from pathlib import Path

from autotune_trials.preflight.verdict import Verdict
from autotune_trials.probe import probe_all

UTILS = "class EventHandle: pass\nclass EventOverlap: pass\n"
BUFFER = """
class Buffer:
    def __init__(self, group, num_nvl_bytes=0, num_rdma_bytes=0, low_latency_mode=False): pass
    @staticmethod
    def set_num_sms(new_num_sms): pass
    @staticmethod
    def get_dispatch_config(num_ranks): pass
    @staticmethod
    def get_combine_config(num_ranks): pass
    def get_dispatch_layout(self, topk_idx, num_experts, previous_event=None, async_finish=False,
                            allocate_on_comm_stream=False): pass
    def dispatch(self, x, handle=None, num_tokens_per_rank=None, num_tokens_per_rdma_rank=None, is_token_in_rank=None,
                 num_tokens_per_expert=None, topk_idx=None, topk_weights=None, expert_alignment=1, config=None,
                 previous_event=None, async_finish=False, allocate_on_comm_stream=False): pass
    def combine(self, x, handle, topk_weights=None, bias=None, config=None, previous_event=None, async_finish=False,
                allocate_on_comm_stream=False): pass
"""
HYBRID = """
class HybridEPBuffer:
    def __init__(self, group, hidden_dim, max_num_of_tokens_per_rank, num_local_experts, use_fp8=False,
                 num_sms_dispatch_api=None, num_sms_combine_api=None, num_sms_preprocessing_api=None): pass
    def dispatch_with_permute(self, *, hidden, routing_map=None, probs=None, scaling_factor=None,
                              num_of_experts_per_rank=None, pad_multiple=None, num_permuted_tokens=None,
                              non_blocking=False, handle=None): pass
    def combine_with_unpermute(self, *, hidden, probs=None, handle=None, pad_multiple=None): pass
"""
PERMUTATION = "moe_permute = moe_permute_with_probs = moe_unpermute = len\n"
NVCC = "#!/bin/sh\nexit 0\n"
FLAGS = "HAVE_DEEP_EP = {0}\nHAVE_HYBRIDEP = {0}\nHAVE_TE_EP = {0}\n"
NVML = """
class NVMLError(Exception):
    pass

NVML_NVLINK_MAX_LINKS, NVML_MEMORY_ERROR_TYPE_UNCORRECTED, NVML_VOLATILE_ECC = 18, 1, 0
GPUS = {gpus!r}

def nvmlInit():
    if GPUS is None:
        raise NVMLError("Driver Not Loaded")

def nvmlShutdown(): pass
def nvmlDeviceGetCount(): return len(GPUS)
def nvmlDeviceGetHandleByIndex(index): return index
def nvmlSystemGetDriverVersion(): return "580.1"

class Process:
    def __init__(self, pid): self.pid = pid

def _get(key):
    def read(gpu, *_):
        if key not in GPUS[gpu]:
            raise NVMLError("Not Supported")
        return GPUS[gpu][key]
    return read

nvmlDeviceGetName, nvmlDeviceGetUUID = _get("name"), _get("uuid")
nvmlDeviceGetCudaComputeCapability, nvmlDeviceGetMigMode = _get("capability"), _get("mig")
nvmlDeviceGetTotalEccErrors = _get("ecc")

def nvmlDeviceGetNvLinkState(gpu, link):
    links = _get("links")(gpu)
    if link >= len(links):
        raise NVMLError("Invalid Argument")
    return links[link]

def nvmlDeviceGetP2PStatus(gpu, other, kind):
    assert kind == 2
    return _get("p2p")(gpu).get(other, 0)

def nvmlDeviceGetComputeRunningProcesses(gpu):
    return [Process(pid) for pid in _get("pids")(gpu)]

import ctypes

class c_nvmlGpuFabricInfo_v3_t(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint), ("clusterUuid", ctypes.c_uint8 * 16), ("status", ctypes.c_uint),
                ("cliqueId", ctypes.c_uint32), ("state", ctypes.c_ubyte), ("healthMask", ctypes.c_uint32),
                ("healthSummary", ctypes.c_uint8)]

def nvmlDeviceGetGpuFabricInfoV(gpu, info):
    for name, value in _get("fabric")(gpu).items():
        setattr(info._obj, name, (ctypes.c_uint8 * 16)(*value) if name == "clusterUuid" else value)
"""
H100 = {"name": b"NVIDIA H100", "uuid": "GPU-1", "capability": (9, 0), "mig": (0, 0), "ecc": 0, "links": [1] * 18}
"""One GPU as the planted NVML has it; ``p2p``, ``pids`` and ``fabric`` are left unsupported."""


class Planted:
    """A folder of made-up packages that comes first on the import path of the probes.

    Args:
        folder: Where to plant.
        gpus: What the planted NVML says of each GPU; None = it has no driver.
    """

    def __init__(self, folder: Path, gpus: list[dict[str, object]] | None = None) -> None:
        self.folder = folder
        self.env: dict[str, str] = {"PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
        self.package("torch")
        self.package("megatron.core.transformer.moe", fused_a2a=FLAGS.format(True))
        self.megatron_core("0.16.1")
        self.gpus(gpus)
        self.compiler(NVCC)

    def package(self, name: str, body: str = "", **modules: str) -> None:
        folder = self.folder
        for part in name.split("."):
            folder = folder / part
            folder.mkdir(exist_ok=True)
            (folder / "__init__.py").touch()
        (folder / "__init__.py").write_text(body)
        for module, text in modules.items():
            (folder / f"{module}.py").write_text(text)

    def megatron_core(self, version: str) -> None:
        metadata = self.folder / "megatron_core-0.dist-info" / "METADATA"
        metadata.parent.mkdir(exist_ok=True)
        metadata.write_text(f"Metadata-Version: 2.1\nName: megatron-core\nVersion: {version}\n")

    def gpus(self, gpus: list[dict[str, object]] | None) -> None:
        (self.folder / "pynvml.py").write_text(NVML.replace("{gpus!r}", repr(gpus)))

    def compiler(self, script: str) -> None:
        path = self.folder / "cuda" / "bin" / "nvcc"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(script)
        path.chmod(0o700)
        self.env["CUDA_HOME"] = str(self.folder / "cuda")

    def probe(self, *backends: str, timeout_s: float = 10.0) -> Mapping[str, Verdict]:
        return probe_all(backends, self.env, timeout_s)
