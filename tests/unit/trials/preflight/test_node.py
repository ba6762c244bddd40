"""One node with planted libraries and planted GPUs, seen as the preflight sees it."""

import socket
from pathlib import Path

import pytest

from autotune_trials.preflight import node
from autotune_trials.preflight.exchange import PERMUTE_FUSION
from autotune_trials.preflight.node import inspect_node, run_exchange
from tests.support.planted import BUFFER, H100, PERMUTATION, UTILS, Planted

TORCH = """
class Thing:
    def __getattr__(self, name): return Thing()
    def __call__(self, *_, **__): return Thing()
    def __getitem__(self, _): return Thing()
    def _op(self, *_): return Thing()
    __add__ = __radd__ = __mul__ = __rmul__ = __mod__ = __floordiv__ = __truediv__ = __eq__ = __ne__ = _op
    __int__ = __bool__ = lambda self: 0

def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    return Thing() if name != "cuda" else type("Cuda", (), {"is_available": staticmethod(lambda: False)})
"""


@pytest.fixture
def planted(tmp_path: Path) -> Planted:
    planted = Planted(tmp_path)
    planted.package("deep_ep", BUFFER, utils=UTILS)
    planted.package("transformer_engine.pytorch", permutation=PERMUTATION)
    return planted


def test_without_gpus_nothing_is_exchanged_and_that_is_said(planted: Planted, tmp_path: Path) -> None:
    report = inspect_node(["deepep", PERMUTE_FUSION], planted.env, 10.0)
    assert list(report.verdicts) == ["deepep", PERMUTE_FUSION]
    assert report.verdicts["deepep"]["available"] is True
    assert report.verdicts["deepep"]["untried"] == {"exchange": "GPUs that can be used here: 0, needed: 2"}
    assert report.verdicts[PERMUTE_FUSION]["untried"] == {"permute": "GPUs that can be used here: 0, needed: 1"}
    assert [(found.name, found.state) for found in report.findings] == [("gpus", "unknown")]


def test_with_gpus_an_exchange_has_the_last_word(planted: Planted) -> None:
    planted.gpus([H100, H100])
    report = inspect_node(["deepep", PERMUTE_FUSION], planted.env, 10.0)
    for name, level in (("deepep", "exchange"), (PERMUTE_FUSION, "permute")):
        verdict = report.verdicts[name]  # the planted torch has nothing in it
        assert (verdict["available"], verdict["level"]) == (False, level)
        assert verdict["error"] == "AttributeError"
        assert verdict["untried"] == {}
    assert report.findings[0].says == "2 x NVIDIA H100, 18 NVLinks each"
    assert [(gpu["name"], gpu["nvlinks_active"]) for gpu in report.gpus] == [("NVIDIA H100", 18)] * 2


def test_gpus_that_trials_may_not_use_do_not_count(planted: Planted) -> None:
    planted.gpus([H100, H100])
    planted.env["CUDA_VISIBLE_DEVICES"] = "1"
    [verdict] = inspect_node(["deepep"], planted.env, 10.0).verdicts.values()
    assert verdict["untried"] == {"exchange": "GPUs that can be used here: 1, needed: 2"}


@pytest.mark.parametrize(("named", "usable"), [("-1", 0), ("-1,0", 0), ("NoDevFiles", 0), ("1,9,0", 1)])
def test_a_gpu_that_cuda_hides_does_not_count(planted: Planted, named: str, usable: int) -> None:
    planted.gpus([H100, H100])
    planted.env["CUDA_VISIBLE_DEVICES"] = named
    [verdict] = inspect_node([PERMUTE_FUSION if usable == 0 else "deepep"], planted.env, 10.0).verdicts.values()
    [said] = verdict["untried"].values()
    assert said.startswith(f"GPUs that can be used here: {usable}, needed")


def test_what_failed_before_is_not_exchanged(planted: Planted) -> None:
    planted.gpus([H100, H100])
    planted.package("deep_ep", "raise ImportError('libnvshmem_host.so.3: cannot open shared object file')")
    [verdict] = inspect_node(["deepep"], planted.env, 10.0).verdicts.values()
    assert verdict["level"] == "import"


def test_a_good_verdict_is_not_looked_for_again(planted: Planted, tmp_path: Path) -> None:
    first = inspect_node(["deepep"], planted.env, 10.0, tmp_path / "scratch").verdicts["deepep"]
    planted.package("torch", "raise ImportError('changed')")  # no file of the library's own
    assert inspect_node(["deepep"], planted.env, 10.0, tmp_path / "scratch").verdicts["deepep"] == first
    again = inspect_node(["deepep"], planted.env, 10.0, tmp_path / "scratch", cached=False)
    assert again.verdicts["deepep"]["reason"] == "changed"


def test_a_library_that_only_the_trials_find_is_looked_at_again_when_it_changes(
    planted: Planted, tmp_path: Path
) -> None:
    inspect_node(["deepep"], planted.env, 10.0, tmp_path / "scratch")
    planted.package("deep_ep", "raise ImportError('changed')", utils=UTILS)
    [verdict] = inspect_node(["deepep"], planted.env, 10.0, tmp_path / "scratch").verdicts.values()
    assert verdict["reason"] == "changed"


def test_a_module_of_the_user_is_always_imported(planted: Planted, tmp_path: Path) -> None:
    (planted.folder / "my_recipe.py").write_text("")
    [verdict] = inspect_node(["module:my_recipe"], planted.env, 10.0, tmp_path / "scratch").verdicts.values()
    assert verdict["available"] is True
    (planted.folder / "my_recipe.py").write_text("import nothing_of_that_name")
    [verdict] = inspect_node(["module:my_recipe"], planted.env, 10.0, tmp_path / "scratch").verdicts.values()
    assert verdict["reason"] == "No module named 'nothing_of_that_name'"


def test_compile_caches_of_an_exchange_are_those_of_trials_also_when_nothing_is_trusted(
    planted: Planted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HYBRID_EP_CACHE_DIR", raising=False)
    planted.package("deep_ep", "import os\nraise ImportError(os.environ['HYBRID_EP_CACHE_DIR'])")
    [verdict] = inspect_node(["deepep"], planted.env, 10.0, tmp_path / "scratch", cached=False).verdicts.values()
    assert verdict["reason"].startswith(str(tmp_path / "scratch" / "cache"))


@pytest.mark.parametrize("answer", ["None", "'tokens'", "(None,) * 5", "[[1, 2]] * 5"])
def test_a_library_that_answers_with_garbage_is_told(planted: Planted, answer: str) -> None:
    planted.package("torch", TORCH)
    garbage = f"def __getattr__(name):\n    return lambda *_, **__: {answer}\n"
    planted.package("megatron.core.transformer.moe", fused_a2a=garbage)
    found = run_exchange("deepep", 1, planted.env, timeout_s=20.0)
    assert (found["available"], found["level"]) == (False, "exchange")
    assert found["error"] in ("TypeError", "ValueError", "WrongResult")
    assert found["reason"]
    if found["error"] == "WrongResult":
        assert found["reason"].endswith("came back, but a tensor was expected")


def test_everything_is_looked_at_again_without_a_folder_and_on_other_devices(planted: Planted, tmp_path: Path) -> None:
    inspect_node(["deepep"], planted.env, 10.0, tmp_path / "scratch")
    planted.package("deep_ep", "raise ImportError('changed')", utils=UTILS)
    assert inspect_node(["deepep"], planted.env, 10.0).verdicts["deepep"]["reason"] == "changed"
    planted.gpus([H100])
    assert inspect_node(["deepep"], planted.env, 10.0, tmp_path / "scratch").verdicts["deepep"]["reason"] == "changed"


def test_a_driver_that_crashes_is_a_finding(planted: Planted) -> None:
    (planted.folder / "pynvml.py").write_text("import os; os.abort()")
    report = inspect_node(["deepep"], planted.env, 10.0)
    assert (report.findings[0].name, report.findings[0].state) == ("devices", "fail")
    assert "the check of its devices was ended by SIGABRT" in report.findings[0].says


@pytest.mark.parametrize(
    ("body", "error", "reason"),
    [
        ("import os; os.abort()", "Crash", "the exchange of tokens was ended by SIGABRT"),
        ("import time; time.sleep(300)", "Hang", "the exchange of tokens did not come back within 0.8 s"),
        ("import sys; sys.exit(3)", "SystemExit", "3"),
        ("raise RuntimeError('CUDA error: no kernel image is available')", "RuntimeError", "CUDA error: no kernel"),
    ],
)
def test_an_exchange_that_fails_is_told(planted: Planted, body: str, error: str, reason: str) -> None:
    planted.package("torch", body)
    found = run_exchange("deepep", 2, planted.env, timeout_s=0.8 if error == "Hang" else 20.0)
    assert (found["error"], found["level"]) == (error, "exchange")
    assert found["reason"].startswith(reason)


def test_the_rank_that_failed_is_named_and_not_the_one_that_waits_for_it(planted: Planted) -> None:
    wait = "import os, time\nif os.environ['RANK'] == '0': time.sleep(300)\n"
    planted.package("torch", wait + "raise RuntimeError('rank 1 has no GPU')")
    assert run_exchange("deepep", 2, planted.env, timeout_s=30.0)["reason"] == "rank 1 has no GPU"


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("import ctypes; ctypes.string_at(0)", "Crash: the check of its devices was ended by SIGSEGV"),
        ("def nvmlInit():\n    import os; os._exit(3)", "Exit: the check of its devices exited with status 3"),
        ("import threading\ndef nvmlInit(): threading.Event().wait()", "Hang: the check of its devices did not come"),
    ],
)
def test_a_driver_in_trouble_hurts_nobody_who_asks_what_the_node_is(
    planted: Planted, monkeypatch: pytest.MonkeyPatch, body: str, says: str
) -> None:
    (planted.folder / "pynvml.py").write_text(body)
    monkeypatch.setenv("PYTHONPATH", str(planted.folder))  # where this process would find it as well
    monkeypatch.setattr(node, "_DEVICES_TIMEOUT_S", 0.7 if says.startswith("Hang") else 30.0)
    report = inspect_node(["alltoall"], {}, 10.0)
    assert (report.host, report.facts["gpus"], report.gpus) == (socket.gethostname(), [], ())
    [found] = report.findings
    assert (found.name, found.state) == ("devices", "fail")
    assert found.says.startswith(says)
