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


V1_CODE = {
    "deep_ep/__init__.py": "from .buffer import Buffer\nimport deep_ep_cpp\nraise RuntimeError('imported')\n",
    "deep_ep/buffer.py": "import torch\nimport deep_ep_cpp\n",
}
HYBRID_CODE = {
    **V1_CODE,
    "deep_ep/__init__.py": V1_CODE["deep_ep/__init__.py"] + "from .hybrid_ep_buffer import HybridEPBuffer\n",
    "deep_ep/hybrid_ep_buffer.py": "import os\nimport hybrid_ep_cpp\n",
}
V2_CODE = {
    "deep_ep/__init__.py": "from .buffers.elastic import ElasticBuffer\nraise RuntimeError('imported')\n",
    "deep_ep/buffers/elastic.py": "from .. import _C\n",
    "deep_ep/_C.cpython-312.so": "",
}
UCCL_CODE = {
    "deep_ep/__init__.py": "from .buffer import Buffer\nraise RuntimeError('imported')\n",
    "deep_ep/buffer.py": "import os\ntry:\n    from uccl import ep\nexcept ImportError:\n    pass\n",
    "uccl/__init__.py": "",
    "uccl/ep.abi3.so": "",
}
LEFT_OVER = {"deep_ep_cpp.so": "", "hybrid_ep_cpp.so": ""}


@pytest.mark.parametrize("left_over", [{}, LEFT_OVER], ids=["clean", "left_over"])
@pytest.mark.parametrize(
    ("files", "distribution", "name", "libraries"),
    [
        ({**V1_CODE, "deep_ep_cpp.so": ""}, "deep-ep 1.2.1", providers.V1, ["deep_ep_cpp.so"]),
        ({**HYBRID_CODE, **LEFT_OVER}, "deep-ep 1.2.1", providers.HYBRID, ["deep_ep_cpp.so", "hybrid_ep_cpp.so"]),
        (V2_CODE, "deep-ep 2.1.0", providers.V2, ["deep_ep/_C.cpython-312.so"]),
        ({**V2_CODE, "deep_ep/buffers/elastic.py": "import deep_ep._C as c"}, "deep-ep 2.1.0", providers.V2,
         ["deep_ep/_C.cpython-312.so"]),
        (UCCL_CODE, "deep_ep 0.1.0", providers.UCCL, ["uccl/ep.abi3.so"]),
    ],
    ids=["V1", "hybrid", "V2", "V2_absolute", "UCCL"],
)  # fmt: skip
def test_the_providers_are_told_apart_by_their_own_code_without_an_import(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], distribution: str, name: str,
    libraries: list[str], left_over: dict[str, str],
) -> None:  # fmt: skip
    plant(tmp_path, {**left_over, **files}, distribution)
    monkeypatch.syspath_prepend(str(tmp_path))
    found = provider_of("deep_ep", EXTENSIONS)
    assert found is not None
    assert (found.name, found.distribution) == (name, distribution)
    assert found.file == str(tmp_path / "deep_ep" / "__init__.py")
    assert found.libraries == tuple(str(tmp_path / library) for library in libraries)
    assert "deep_ep" not in sys.modules


@pytest.mark.parametrize(
    ("files", "name"),
    [
        ({"deep_ep_cpp.py": ""}, providers.V1),
        ({"deep_ep/_C.cpython-312.so": "", "hybrid_ep_cpp.so": ""}, providers.V2),
        ({"deep_ep/buffers/base.py": "", "deep_ep_cpp.so": ""}, providers.V2),
        ({"deep_ep/buffers/__pycache__/base.pyc": "", "deep_ep_cpp.so": ""}, providers.V1),
        ({"hybrid_ep_cpp.so": ""}, providers.UNKNOWN),
        ({"deep_ep/__init__.py": "from .buffer import (", "deep_ep/_C.so": ""}, providers.V2),
        ({"deep_ep/__init__.py": "from . import buffer", "deep_ep/buffer.py": "# import uccl"}, providers.UNKNOWN),
        ({"deep_ep/__init__.py": "from ..... import x\nfrom . import __init__"}, providers.UNKNOWN),
        ({"deep_ep/test_all.py": "import uccl"}, providers.UNKNOWN),
    ],
)
def test_a_package_whose_code_says_nothing_is_told_by_the_files_that_lie_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], name: str
) -> None:
    plant(tmp_path, {"deep_ep/__init__.py": "raise RuntimeError('imported')", **files})
    monkeypatch.syspath_prepend(str(tmp_path))
    found = provider_of("deep_ep", EXTENSIONS)
    assert found is not None
    assert found.name == name


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
