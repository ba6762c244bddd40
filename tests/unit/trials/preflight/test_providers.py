"""Whose package goes by the name ``deep_ep``."""

import sys
from pathlib import Path

import pytest

from autotune_trials.preflight import providers
from autotune_trials.preflight.advice import advice
from autotune_trials.preflight.providers import provider_of

EXTENSIONS = ("deep_ep_cpp", "hybrid_ep_cpp")


def plant(folder: Path, files: dict[str, str], distribution: str = "") -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    if distribution:
        name, version = distribution.split()
        info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


@pytest.mark.parametrize(
    ("files", "distribution", "name"),
    [
        ({"deep_ep_cpp.py": ""}, "deep-ep 1.2.1", providers.V1),
        ({"deep_ep_cpp.py": "", "hybrid_ep_cpp.py": ""}, "deep-ep 1.2.1", providers.HYBRID),
        ({"deep_ep/_C.cpython-312.so": ""}, "deep-ep 2.1.0", providers.V2),
        ({"deep_ep/buffers/__init__.py": ""}, "deep-ep 2.1.0", providers.V2),
        ({"deep_ep/buffer.py": "import os\nfrom uccl import ep\n"}, "deep_ep 0.1.0", providers.UCCL),
        ({"deep_ep/buffer.py": "# like uccl\n\nfrom\n"}, "deep-ep 1.0.0", providers.UNKNOWN),
    ],
)
def test_the_providers_are_told_apart_without_an_import(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], distribution: str, name: str
) -> None:
    plant(tmp_path, {"deep_ep/__init__.py": "raise RuntimeError('imported')", **files}, distribution)
    monkeypatch.syspath_prepend(str(tmp_path))
    found = provider_of("deep_ep", EXTENSIONS)
    assert found is not None
    assert (found.name, found.distribution) == (name, distribution)
    assert found.file == str(tmp_path / "deep_ep" / "__init__.py")
    assert "deep_ep" not in sys.modules


def test_a_folder_without_code_and_a_missing_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    assert provider_of("deep_ep", EXTENSIONS) is None
    (tmp_path / "deep_ep").mkdir()
    found = provider_of("deep_ep", EXTENSIONS)
    assert found is not None
    assert (found.name, found.file) == (providers.UNKNOWN, "")


@pytest.mark.parametrize(
    ("reason", "fix"),
    [
        ("libnvshmem_host.so.3: cannot open shared object file", "nvshmem"),
        ("/lib/libibverbs.so.1: version `IBVERBS_PRIVATE_34' not found", "rdma-core"),
        ("deep_ep_cpp.so: undefined symbol: ncclGetLsaDevicePointer", "NCCL release"),
        ("deep_ep_cpp.so: undefined symbol: _ZNSt15__exception_ptr13exception_ptr9_M_addrefEv", "libstdc++"),
        ("deep_ep_cpp.so: undefined symbol: _Z14THPStream_WrapRKN3c106StreamE", "against the torch"),
        ("CUDA error: no kernel image is available for execution on the device", "TORCH_CUDA_ARCH_LIST"),
        ("No NVLink connection between GPU 0 and GPU 0", "every rank see all GPUs"),
        ("cannot import name 'HybridEPBuffer' from 'deep_ep'", "hybrid-ep"),
        ("No module named 'deep_ep'", "from source"),
        ("Transformer Engine (TE) fused kernel is not available", "transformer-engine[pytorch]"),
        ("NCCL is too old", "NCCL release"),
        ("CUDA out of memory in torch, CAPABILITY 9.0", ""),
        ("quite another thing", ""),
    ],
)
def test_published_failures_have_a_way_out(reason: str, fix: str) -> None:
    said = advice(reason, error="ImportError")
    assert fix in said
    assert bool(said) is bool(fix)
