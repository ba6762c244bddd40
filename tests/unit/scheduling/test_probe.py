"""The probe against planted packages that fail in every way that real ones do."""

import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from autotune_policies.backends import BACKENDS
from autotune_trials.preflight import levels
from autotune_trials.preflight.elf import MACHINES
from autotune_trials.probe import probe_all
from tests.support.planted import BUFFER, H100, HYBRID, PERMUTATION, UTILS, Planted
from tests.support.shared_objects import fatbin, shared_object

WORKS = BUFFER + HYBRID


@pytest.fixture
def planted(tmp_path):
    return Planted(tmp_path)


def test_a_package_that_imports_is_available(planted):
    planted.package("deep_ep", "print('hello from the import')\n" + WORKS, utils=UTILS)
    verdicts = planted.probe("deepep", "hybridep")
    for backend, verdict in verdicts.items():
        assert verdict == {
            "backend": backend, "available": True, "reason": "", "error": "", "fix": "", "level": "compiler",
            "provider": f"an unknown package (no distribution, {planted.folder}/deep_ep/__init__.py)",
            "notes": ["devices: no GPU to be seen: NVML does not start: Driver Not Loaded"], "untried": {},
            "seconds": verdict["seconds"],
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
        ("import os\nwhile True: os.write(1, b'x' * (1 << 20))", "Flood", "the import printed more than 64 MiB"),
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
    verdict = planted.probe("deepep", timeout_s=3.0)["deepep"]
    assert (verdict["available"], verdict["error"]) == (False, "Hang")
    assert "3 s" in verdict["reason"]
    stat = Path(f"/proc/{pid_file.read_text()}/stat")
    assert not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z"


@pytest.mark.parametrize("end", ["pass", "raise ImportError('left one')"])
def test_a_daemon_of_an_import_ends_with_it(planted, tmp_path, end):
    body = f"""
import os, pathlib
read_end, write_end = os.pipe()
child = os.fork()
if child == 0:
    os.setsid()
    if os.fork() == 0:
        os.write(write_end, str(os.getpid()).encode())
        os.closerange(0, 256)
        os.execve("/bin/sleep", ["sleep", "600"], {{}})
    os._exit(0)
os.waitpid(child, 0)
pathlib.Path({str(tmp_path / "pid")!r}).write_bytes(os.read(read_end, 20))
{end}
"""
    planted.package("deep_ep", body + WORKS, utils=UTILS)
    planted.probe("deepep")
    stat = Path(f"/proc/{(tmp_path / 'pid').read_text()}/stat")
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


def test_the_second_release_is_called_by_its_name(planted):
    planted.package("deep_ep", "class Buffer: pass\n", utils="class EventHandle: pass\n", _C="")
    verdict = planted.probe("deepep")["deepep"]
    assert verdict["level"] == "import"
    assert verdict["reason"].endswith("; DeepEP V2 is installed, which Megatron-Core does not take")
    assert verdict["provider"].startswith("DeepEP V2 (")
    assert "DeepEP V1" in verdict["fix"]


@pytest.mark.parametrize(
    ("body", "error", "reason"),
    [
        ("assert False, 'NCCL GIN is unavailable'", "AssertionError", "NCCL GIN is unavailable; DeepEP V2 is"),
        ("import os; os.abort()", "Crash", "the import was ended by SIGABRT"),
    ],
)
def test_nothing_but_another_release_helps_whatever_the_second_one_dies_of(planted, body, error, reason):
    planted.package("deep_ep", f"from . import _C\n{body}", utils=UTILS, _C="")
    (planted.folder / "hybrid_ep_cpp.so").touch()
    verdict = planted.probe("deepep")["deepep"]
    assert (verdict["error"], verdict["level"]) == (error, "import")
    assert verdict["reason"].startswith(reason)
    assert verdict["provider"].startswith("DeepEP V2 (")
    assert "build DeepEP V1" in verdict["fix"]


def test_a_crash_is_told_with_the_level_where_it_happened(planted):
    body = WORKS.replace(
        "def set_num_sms(new_num_sms): pass",
        "def set_num_sms(new_num_sms): pass\n    class Trap:\n"
        "        def __get__(self, *_): import os; os.abort()\n    get_combine_config = Trap()",
    ).replace("    @staticmethod\n    def get_combine_config(num_ranks): pass\n", "")
    planted.package("deep_ep", body, utils=UTILS)
    verdict = planted.probe("deepep")["deepep"]
    assert (verdict["error"], verdict["level"]) == ("Crash", "signatures")
    assert verdict["reason"].startswith("the check of its signatures was ended by SIGABRT")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("previous_event=None", "event=None", "'previous_event'"),
        ("def combine(self, x, handle,", "def combine(self, x, handle, workspace,", "'workspace'"),
        ("def set_num_sms(", "def set_sms(", "deep_ep has no Buffer.set_num_sms"),
        ("class Buffer:", "Buffer = 7\nclass Other:", "Buffer of deep_ep is no function but int"),
        ("def set_num_sms(new_num_sms): pass", "def x(): pass\n    set_num_sms = 'twenty'", "no function but str"),
    ],
)
def test_a_library_that_takes_other_calls_is_refused_before_it_runs(planted, old, new, said):
    planted.package("deep_ep", BUFFER.replace(old, new), utils=UTILS)
    verdict = planted.probe("deepep")["deepep"]
    assert (verdict["error"], verdict["level"]) == ("Signature", "signatures")
    assert said in verdict["reason"]


def test_an_optional_call_that_is_not_taken_is_a_note(planted):
    planted.package("deep_ep", WORKS, utils=UTILS)
    planted.megatron_core("0.19.2")
    verdict = planted.probe("hybridep")["hybridep"]
    assert verdict["available"] is True
    [note] = [note for note in verdict["notes"] if note.startswith("signatures: ")]
    assert note.startswith("signatures: permute_fusion_into_hybridep=true would silently do nothing")


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
@pytest.mark.parametrize(
    ("source", "flags", "error", "fix"),
    [
        ("void _Z14THPStream_WrapRKN3c106StreamE(void);", [], "AbiMismatch", "against the torch that is installed"),
        ("void planted(void);", ["-L.", "-lnvshmem_host"], "MissingLibrary", "nvshmem"),
    ],
)
def test_a_real_extension_that_the_linker_refuses(planted, source, flags, error, fix):
    name = source.partition("(")[0].removeprefix("void ")
    (planted.folder / "extension.c").write_text(f"{source}\nvoid *PyInit_deep_ep_cpp(void) {{ {name}(); return 0; }}\n")
    (planted.folder / "other.c").write_text("void planted(void) {}\n")
    compiler = [str(shutil.which("cc")), "-shared", "-fPIC", "-Wl,-z,now", "-o"]
    library = planted.folder / "libnvshmem_host.so"
    subprocess.run([*compiler, str(library), "other.c"], cwd=planted.folder, check=True)
    subprocess.run([*compiler, "deep_ep_cpp.so", "extension.c", *flags], cwd=planted.folder, check=True)
    library.unlink()
    planted.package("deep_ep", "import deep_ep_cpp\n" + WORKS, utils=UTILS)
    verdict = planted.probe("deepep")["deepep"]
    assert (verdict["error"], verdict["level"]) == (error, "import")
    assert fix in verdict["fix"]


def test_a_compiler_is_needed_only_where_kernels_are_compiled_late(planted):
    planted.package("deep_ep", WORKS, utils=UTILS)
    planted.compiler("#!/bin/sh\nexit 3\n")
    verdicts = planted.probe("deepep", "hybridep")
    assert verdicts["deepep"]["available"] is True
    assert (verdicts["hybridep"]["error"], verdicts["hybridep"]["level"]) == ("Compiler", "compiler")
    assert "CUDA_HOME" in verdicts["hybridep"]["fix"]


@pytest.mark.parametrize(
    ("script", "said"), [("#!/bin/sh\nexec sleep 60\n", "does not come back within 0.2 s"), ("", "cannot be run")]
)
def test_a_compiler_that_hangs_or_is_no_program_is_told(planted, monkeypatch, script, said):
    planted.compiler(script)
    monkeypatch.setenv("CUDA_HOME", planted.env["CUDA_HOME"])
    monkeypatch.setattr(levels, "_COMPILER_TIMEOUT_S", 0.2)
    with pytest.raises(levels.UnusableError, match=said) as refused:
        list(levels.pass_level("compiler", BACKENDS["hybridep"]))
    assert refused.value.error == "Compiler"


def test_variables_of_hybridep_reach_hybridep_alone(planted):
    says = "import os\nraise ImportError(os.environ.get('NVLINK_DOMAIN_SIZE', 'nothing') + os.environ['OTHER'])"
    planted.package("deep_ep", says, utils=UTILS)
    planted.env |= {"NVLINK_DOMAIN_SIZE": "72", "OTHER": "!"}
    verdicts = planted.probe("deepep", "hybridep")
    assert [verdicts[name]["reason"] for name in ("deepep", "hybridep")] == ["nothing!", "72!"]


def test_the_fused_permutation_needs_what_megatron_imports_of_transformer_engine(planted):
    [verdict] = planted.probe("permute_fusion").values()
    assert (verdict["error"], verdict["level"]) == ("ModuleNotFoundError", "installed")
    assert verdict["reason"] == "No module named 'transformer_engine'"
    planted.package("transformer_engine.pytorch", permutation="moe_permute = moe_unpermute = len")
    [verdict] = planted.probe("permute_fusion").values()
    assert (verdict["available"], verdict["level"]) == (False, "import")
    assert "'moe_permute_with_probs'" in verdict["reason"]
    planted.package("transformer_engine.pytorch", permutation=PERMUTATION)
    [verdict] = planted.probe("permute_fusion").values()
    assert (verdict["available"], verdict["level"]) == (True, "import")


def test_gpus_that_are_divided_stop_a_dispatcher_with_kernels_of_its_own(planted):
    planted.package("deep_ep", WORKS, utils=UTILS)
    planted.gpus([{**H100, "mig": (1, 1)}])
    verdict = planted.probe("deepep")["deepep"]
    assert (verdict["error"], verdict["level"]) == ("Devices", "devices")
    assert verdict["reason"].startswith("GPU 0 is divided into instances (MIG)")
    assert verdict["reason"].endswith("nvidia-smi -i 0 -mig 0")


def test_a_driver_that_hangs_is_told_as_a_hang_of_the_devices(planted):
    planted.package("deep_ep", WORKS, utils=UTILS)
    (planted.folder / "pynvml.py").write_text("def nvmlInit():\n    import time; time.sleep(300)\n")
    verdict = planted.probe("deepep", timeout_s=3.0)["deepep"]
    assert (verdict["error"], verdict["level"]) == ("Hang", "devices")


def test_a_shared_object_of_another_machine_is_not_imported(planted):
    planted.package("deep_ep", "raise RuntimeError('imported')", utils=UTILS)
    (planted.folder / "deep_ep_cpp.so").write_bytes(b"\x7fELF\x02\x01" + bytes(12) + b"\x15\x00")
    verdict = planted.probe("deepep")["deepep"]
    assert (verdict["error"], verdict["level"]) == ("WrongMachine", "installed")
    assert "ELF machine 21" in verdict["reason"]


@pytest.mark.parametrize(
    ("kernels", "error"), [([(2, 100)], "WrongGpu"), ([(2, 90), (2, 100)], ""), ([(1, 80)], ""), ([], "")]
)
def test_kernels_of_another_gpu_are_found_before_the_first_launch(planted, kernels, error):
    planted.package("deep_ep", WORKS, utils=UTILS)
    machine = {name: number for number, name in MACHINES.items()}[platform.machine()]
    (planted.folder / "deep_ep_cpp.so").write_bytes(shared_object(fatbin(kernels), machine=machine))
    planted.gpus([H100])
    verdict = planted.probe("deepep")["deepep"]
    assert verdict["error"] == error
    assert verdict["provider"].startswith("DeepEP V1")
    if error:
        assert verdict["reason"].endswith("deep_ep_cpp.so was built for 10.0, but the GPU here has 9.0")
        assert "TORCH_CUDA_ARCH_LIST" in verdict["fix"]
    assert ("binary: unknown: no kernels were found in deep_ep_cpp.so" in verdict["notes"]) is (not kernels)


GLOO = """
class cuda:
    is_available = staticmethod(lambda: False)
"""
DISTRIBUTED = "is_available = is_backend_available = lambda *_: True\n"


@pytest.mark.parametrize(
    ("body", "error", "reason"),
    [
        ("", "", ""),
        ("raise ImportError('no such symbol')", "", ""),
        ("assert False, 'NCCL GIN is unavailable'", "AssertionError",
         "megatron-core cannot be imported beside what is installed: NCCL GIN is unavailable"),
        ("import os; os.abort()", "Crash", "the import was ended by SIGABRT: in <module> ({}/deep_ep/__init__.py:1)"),
        ("print('warning')\nimport ctypes; ctypes.string_at(0)", "Crash",
         "the import was ended by SIGSEGV: in <module> ({}/deep_ep/__init__.py:2)"),
    ],
)  # fmt: skip
def test_a_library_that_keeps_megatron_from_being_imported_is_in_the_way_of_every_dispatcher(
    planted, body, error, reason
):
    planted.package("torch", GLOO, distributed=DISTRIBUTED)
    planted.package("deep_ep", body, utils=UTILS)
    guarded = "try:\n    import deep_ep\nexcept ImportError:\n    pass\n"
    planted.package("megatron.core.transformer.moe", fused_a2a=guarded)
    verdict = planted.probe("alltoall")["alltoall"]
    assert (verdict["available"], verdict["error"], verdict["reason"]) == (
        not error,
        error,
        reason.format(planted.folder),
    )


@pytest.mark.trial
def test_the_real_collectives_are_available_here():
    pytest.importorskip("megatron.core")
    pytest.importorskip("torch")
    verdicts = probe_all(["alltoall"])
    assert verdicts["alltoall"]["available"] is True, verdicts
