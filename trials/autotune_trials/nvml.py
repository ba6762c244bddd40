"""NVML, asked through its Python binding: loaded in one way, and answering None wherever it cannot tell.

Standard library only; the binding is the module ``pynvml`` of the distribution nvidia-ml-py.
"""

import contextlib
import importlib
from collections.abc import Iterator
from typing import Any

from autotune_trials.lines import one_line

_MOST_NVLINKS = 32
_MOST_GPUS = 256
"""Of one node; a driver that tells of more is not to be believed."""


def load(binding: Any = None) -> Any:
    """The binding, initialised; None where it cannot be used (:func:`absence` says why).

    Args:
        binding: Another one than the installed ``pynvml``.
    """
    return _load(binding)[0]


def absence() -> str:
    """Why NVML cannot be used here, in words that follow "NVML"; empty when it can."""
    nvml, why = _load(None)
    close(nvml)
    return why


def _load(binding: Any) -> tuple[Any, str]:
    if binding is None:
        try:
            binding = importlib.import_module("pynvml")
        except ImportError as error:
            missing = isinstance(error, ModuleNotFoundError) and error.name == "pynvml"
            return None, "has no Python binding here" if missing else f"cannot be imported: {_words(error)}"
        except (Exception, SystemExit) as error:  # somebody else's module of that name
            return None, f"cannot be imported: {_words(error)}"
    try:
        binding.nvmlInit()
    except (Exception, SystemExit) as error:  # no library and no driver have errors of their own
        return None, f"does not start: {_words(error)}"
    return binding, ""


def _words(error: BaseException) -> str:
    return one_line((str(error).strip().splitlines() or [""])[0]) or type(error).__name__


@contextlib.contextmanager
def opened(binding: Any = None) -> Iterator[Any]:
    """:func:`load` for the time of a block."""
    nvml = load(binding)
    try:
        yield nvml
    finally:
        close(nvml)


def close(nvml: Any) -> None:
    """Let go of what :func:`load` gave."""
    ask(nvml, "nvmlShutdown")


def ask(nvml: Any, name: str, *arguments: Any) -> Any:
    """What a function of NVML answers; None where the binding, the driver or the GPU does not know it."""
    with contextlib.suppress(Exception):
        return getattr(nvml, name)(*arguments)
    return None


def handles(nvml: Any) -> dict[int, Any]:
    """The GPUs to be seen, by NVML's number of them."""
    count = min(number(ask(nvml, "nvmlDeviceGetCount")) or 0, _MOST_GPUS)
    found = {index: ask(nvml, "nvmlDeviceGetHandleByIndex", index) for index in range(count)}
    return {index: handle for index, handle in found.items() if handle is not None}


def nvlinks(nvml: Any, handle: Any) -> list[bool]:
    """Whether each NVLink of a GPU is up; NVML answers with an error from the first link on that it does not have."""
    states: list[bool] = []
    for link in range(min(number(getattr(nvml, "NVML_NVLINK_MAX_LINKS", None)) or _MOST_NVLINKS, _MOST_NVLINKS)):
        state = number(ask(nvml, "nvmlDeviceGetNvLinkState", handle, link))
        if state is None:
            break
        states.append(bool(state))
    return states


def users(nvml: Any, handle: Any) -> list[int]:
    """Processes that compute on a GPU; inside a container these may be the host's numbers."""
    found = ask(nvml, "nvmlDeviceGetComputeRunningProcesses", handle)
    pids = [number(getattr(process, "pid", None)) for process in found] if isinstance(found, list) else []
    return [pid for pid in pids if pid is not None]


def number(value: Any) -> int | None:
    """A whole number, None for anything else: a binding of another release may answer with something strange."""
    return int(value) if isinstance(value, int) else None


def text(value: Any) -> str | None:
    """A text, which older bindings give as bytes, on one line; None for anything else."""
    if isinstance(value, bytes):
        value = value.decode(errors="replace")
    return one_line(value) if isinstance(value, str) else None
