"""A library is looked at again when anything of it has changed, whatever its version says."""

import os
import sys
from pathlib import Path

import pytest

from autotune_trials.preflight import stamps
from autotune_trials.preflight.stamps import library_files


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of packages that comes first on the import path; whatever else is installed does not change."""
    for name in (
        "deep_ep/__init__.py", "deep_ep/buffer.py", "deep_ep/utils/event.py", "deep_ep/include/kernel.cuh",
        "deep_ep_cpp.so", "hybrid_ep_cpp.so", "uccl/__init__.py", "uccl/ep.abi3.so", "transformer_engine_torch.so",
        "transformer_engine/__init__.py", "transformer_engine/libtransformer_engine.so",
        "transformer_engine/pytorch/permutation.py", "megatron/core/transformer/moe/fused_a2a.py",
    ):  # fmt: skip
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    (tmp_path / "megatron" / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("megatron", "deep_ep", "uccl", "transformer_engine"):  # one that was imported would be found instead
        monkeypatch.delitem(sys.modules, name, raising=False)
    return tmp_path


@pytest.mark.parametrize(
    "file",
    [
        "deep_ep/__init__.py", "deep_ep/buffer.py", "deep_ep/utils/event.py", "deep_ep/include/kernel.cuh",
        "deep_ep_cpp.so", "hybrid_ep_cpp.so", "transformer_engine_torch.so",
        "transformer_engine/libtransformer_engine.so", "transformer_engine/pytorch/permutation.py",
        "megatron/core/transformer/moe/fused_a2a.py",
    ],
)  # fmt: skip
def test_a_file_that_changed_is_seen(site: Path, file: str) -> None:
    before = library_files()
    assert library_files() == before
    os.utime(site / file, (1, 1))
    assert library_files() != before


def test_a_file_that_came_or_went_is_seen(site: Path) -> None:
    before = library_files()
    (site / "deep_ep" / "new.py").touch()
    assert library_files() != before
    (site / "deep_ep" / "new.py").unlink()
    assert library_files() == before
    (site / "deep_ep" / "buffer.py").unlink()
    assert library_files() != before


def test_behind_the_wrapper_of_uccl_is_another_package(site: Path) -> None:
    before = library_files()
    os.utime(site / "uccl" / "ep.abi3.so", (1, 1))
    assert library_files() == before
    (site / "deep_ep" / "__init__.py").write_text("from .buffer import Buffer\n")
    (site / "deep_ep" / "buffer.py").write_text("from uccl import ep\n")
    before = library_files()
    os.utime(site / "uccl" / "ep.abi3.so", (2, 2))
    assert library_files() != before


def test_what_importing_writes_is_no_change(site: Path) -> None:
    before = library_files()
    (site / "deep_ep" / "__pycache__").mkdir()
    (site / "deep_ep" / "__pycache__" / "buffer.cpython-312.pyc").touch()
    assert library_files() == before


def test_a_distribution_that_was_installed_again_is_seen(site: Path) -> None:
    info = site / "torch-2.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 2.0\n")
    digests = {library_files()}
    (info / "RECORD").write_text("torch/__init__.py,sha256=x,1\n")
    digests.add(library_files())
    (info / "direct_url.json").write_text("{}")
    digests.add(library_files())
    assert len(digests) == 3


def test_another_way_of_looking_counts_as_well(site: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    before = library_files()
    (tmp_path / "other_preflight").mkdir()
    monkeypatch.setattr(stamps, "__file__", str(tmp_path / "other_preflight" / "stamps.py"))
    assert library_files() != before


def test_nothing_is_said_of_a_package_without_end(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stamps, "_MOST_FILES", 5)
    assert library_files() is None
