"""What the tests of planted faults share: broken libraries, a throttled GPU, and a look at what is left running."""

import os
from pathlib import Path
from types import SimpleNamespace

from autotune import resources
from autotune.scheduling.trainable import execute

MARKER_VARIABLE = "TEST_MARKER"
"""Set for the ranks of a test, so that whatever they leave behind is found."""

IMPORTS = {
    "abi_error": 'raise ImportError("deep_ep_cpp.so: undefined symbol: _Z14THPStream_WrapRKN3c106StreamE")',
    "import_segfault": "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)",
    "import_hang": "import threading; threading.Event().wait()",
}


def throttled_nvml(share):
    """An NVML of one GPU whose clocks are lowered by heat in this share of the samples."""
    asked = iter(range(10**6))
    return SimpleNamespace(
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: None,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetCurrentClocksEventReasons=lambda handle: 0x40 if next(asked) % 100 < 100 * share else 0x1,
        nvmlDeviceGetClockInfo=lambda handle, kind: 1980,
        nvmlDeviceGetTemperature=lambda handle, sensor: 91,
        nvmlDeviceGetComputeRunningProcesses=lambda handle: [],
    )


def alive(marker):
    """Living processes that carry the mark of a test in their environment."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if f"{MARKER_VARIABLE}={marker}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


def run_to_nothing_left(gang, spec, folder, marker):
    """The outcome of a trial, of which no process is left."""
    folder.mkdir(parents=True, exist_ok=True)
    outcome = execute(gang, spec, folder)
    assert alive(marker) == []
    return outcome


def write_recipe_model(file):
    """The tiny model's file, with the stand-in's recipe and its loop."""
    text = resources.locate("models", "tiny-moe").read_text(encoding="utf-8")
    parts = {"function": "tiny", "entry": "pretrain", "forward_step": "pretrain_step"}
    lines = [f"    {name}: stand_in_recipe:{function}" for name, function in parts.items()]
    file.write_text("\n".join([text, "recipes:", "  local:", *lines, ""]), encoding="utf-8")
