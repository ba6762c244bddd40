"""The probe against planted packages that fail in every way that real ones do."""

import sys
from pathlib import Path

import pytest

from autotune_trials.probe import BACKENDS, probe_all

UTILS = "class EventHandle: pass\nclass EventOverlap: pass\n"
WORKS = "class Buffer: pass\nclass HybridEPBuffer: pass\n"
FLAGS = "HAVE_DEEP_EP = {0}\nHAVE_HYBRIDEP = {0}\nHAVE_TE_EP = {0}\n"


class Planted:
    """A folder of made-up packages that comes first on the import path of the probes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.package("torch")
        self.package("megatron.core.transformer.moe", fused_a2a=FLAGS.format(True))

    def package(self, name: str, body: str = "", **modules: str) -> None:
        folder = self.folder
        for part in name.split("."):
            folder = folder / part
            folder.mkdir(exist_ok=True)
            (folder / "__init__.py").touch()
        (folder / "__init__.py").write_text(body)
        for module, text in modules.items():
            (folder / f"{module}.py").write_text(text)

    def probe(self, *backends: str, timeout_s: float = 10.0):
        return probe_all(backends, {"PYTHONPATH": str(self.folder), "PYTHONDONTWRITEBYTECODE": "1"}, timeout_s)


@pytest.fixture
def planted(tmp_path):
    return Planted(tmp_path)


def test_a_package_that_imports_is_available(planted):
    planted.package("deep_ep", "print('hello from the import')\n" + WORKS, utils=UTILS)
    verdicts = planted.probe("deepep", "hybridep")
    for backend, verdict in verdicts.items():
        assert verdict == {
            "backend": backend, "available": True, "reason": "", "error": "", "seconds": verdict["seconds"],
        }  # fmt: skip


@pytest.mark.parametrize(
    ("body", "error", "reason"),
    [
        ("raise ImportError('libnvshmem_host.so.3: cannot open')", "ImportError", "libnvshmem_host.so.3: cannot open"),
        ("assert False, 'NCCL too old'", "AssertionError", "NCCL too old"),
        ("import sys; sys.exit(4)", "SystemExit", "4"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt", "KeyboardInterrupt"),
        ("raise RuntimeError('first line\\nsecond line')", "RuntimeError", "first line"),
        ("import os; os._exit(0)", "Exit", "the import exited with status 0"),
        ("import os; os._exit(7)", "Exit", "the import exited with status 7"),
        ("import ctypes; ctypes.string_at(0)", "Crash", "the import was ended by SIGSEGV"),
        ("import os; os.abort()", "Crash", "the import was ended by SIGABRT"),
        ("import os; os.write(1, b'{\"available\": true}'); os._exit(0)", "Exit", None),
    ],
)
def test_an_import_that_fails_is_told_and_hurts_nobody_else(planted, body, error, reason):
    planted.package("deep_ep", body, utils=UTILS)
    verdict = planted.probe("deepep")["deepep"]
    assert verdict["available"] is False
    assert verdict["error"] == error
    if reason is not None:
        assert verdict["reason"].partition(": {")[0] == reason or verdict["reason"].startswith(reason)
    assert "\n" not in verdict["reason"]


def test_a_hanging_import_is_killed_with_what_it_started(planted, tmp_path):
    pid_file = tmp_path / "pid"
    body = f"""
import pathlib, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"], start_new_session=True)
pathlib.Path({str(pid_file)!r}).write_text(str(child.pid))
time.sleep(300)
"""
    planted.package("deep_ep", body, utils=UTILS)
    verdict = planted.probe("deepep", timeout_s=0.9)["deepep"]
    assert (verdict["available"], verdict["error"]) == (False, "Hang")
    assert "0.9 s" in verdict["reason"]
    stat = Path(f"/proc/{pid_file.read_text()}/stat")
    assert not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z"


def test_the_second_release_of_deepep_lacks_what_megatron_imports(planted):
    planted.package("deep_ep", "class Buffer: pass\n", utils="class EventHandle: pass\n")
    verdicts = planted.probe("deepep", "hybridep")
    assert verdicts["deepep"]["reason"] == "cannot import name 'EventOverlap' from 'deep_ep.utils'"
    assert verdicts["hybridep"]["reason"] == "cannot import name 'HybridEPBuffer' from 'deep_ep'"


def test_megatron_has_the_last_word(planted):
    planted.package("deep_ep", WORKS, utils=UTILS)
    planted.package("transformer_engine.pytorch", "", ep="")
    planted.package("megatron.core.transformer.moe", fused_a2a="HAVE_DEEP_EP = False\nHAVE_HYBRIDEP = True\n")
    verdicts = planted.probe("deepep", "hybridep", "ncclep")
    assert "says HAVE_DEEP_EP = False" in verdicts["deepep"]["reason"]
    assert verdicts["hybridep"]["available"] is True
    assert "has no support for it" in verdicts["ncclep"]["reason"]


def test_a_missing_package_is_found_missing_without_importing_torch(planted):
    planted.package("torch", "raise RuntimeError('torch was imported')")
    verdict = planted.probe("ncclep")["ncclep"]
    assert verdict["reason"] == "No module named 'transformer_engine'"
    assert verdict["error"] == "ModuleNotFoundError"


def test_nothing_is_imported_here(planted):
    planted.package("deep_ep", WORKS, utils=UTILS)
    planted.probe("deepep")
    assert "deep_ep" not in sys.modules


def test_an_unknown_backend_says_what_is_legal():
    verdict = probe_all(["deepeep"])["deepeep"]
    assert verdict["available"] is False
    assert all(backend in verdict["reason"] for backend in BACKENDS)


@pytest.mark.trial
def test_the_real_collectives_are_available_here():
    pytest.importorskip("megatron.core")
    pytest.importorskip("torch")
    verdicts = probe_all(["alltoall"])
    assert verdicts["alltoall"]["available"] is True, verdicts
