"""The levels that a dispatcher passes inside its own process, cheap ones first; the first failure ends it.

=========== =============================================================================================
installed   whose package it is, and whether its shared objects are for this machine; nothing is imported
import      the imports of Megatron-Core, and its own word on them
signatures  whether the library takes the calls that Megatron-Core makes
binary      whether its kernels were built for these GPUs
devices     NVLink, fabric, peer access, MIG, memory errors, neighbours
network     InfiniBand, GDRCopy, IMEX
compiler    CUDA's compiler, where kernels are compiled at first use
exchange    a tiny dispatch and combine on GPUs, in processes of its own (:mod:`.exchange`)
permute     a tiny fused permutation on a GPU, likewise; before it come ``installed`` and ``import``
=========== =============================================================================================
"""

import importlib
import importlib.util
import os
import platform
import shutil
import subprocess
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from autotune_policies.backends import BACKENDS, Backend, Release
from autotune_trials.preflight import devices, elf, nvml
from autotune_trials.preflight.calls import refusals
from autotune_trials.preflight.exchange import PERMUTE_FUSION
from autotune_trials.preflight.providers import Provider, provider_of

Notes = list[str]
"""What a level could not find out, or what is worth knowing although it passed."""

_COMPILER_TIMEOUT_S = 30.0
_FUSED_A2A = "megatron.core.transformer.moe.fused_a2a"
_PERMUTATION = Backend(
    PERMUTE_FUSION,
    library="transformer_engine",
    imports=(("transformer_engine.pytorch.permutation", ("moe_permute", "moe_permute_with_probs", "moe_unpermute")),),
    extensions=("transformer_engine_torch",),
    source="megatron/core/extensions/transformer_engine.py: without one of these imports there is no fused permutation",
)

SUBJECTS: Mapping[str, Backend] = {**BACKENDS, PERMUTE_FUSION: _PERMUTATION}
"""What can be taken through levels: the dispatchers, and the fused permutation, which is a library's too."""


class UnusableError(Exception):
    """A level failed for a reason of its own rather than by an exception of the library's.

    Attributes:
        error: Kind of failure, one word.
    """

    def __init__(self, error: str, reason: str) -> None:
        super().__init__(reason)
        self.error = error


def pass_levels(backend: Backend, reached: Callable[[str], None]) -> Notes:
    """Take a dispatcher through its levels, in this process.

    Args:
        backend: The dispatcher.
        reached: Called with the name of each level before it begins.

    Returns:
        What is worth knowing of levels that were passed.

    Raises:
        BaseException: whatever the library raises, or :class:`UnusableError`.
    """
    notes: Notes = []
    for name in _levels_of(backend):
        reached(name)
        notes += pass_level(name, backend)
    return notes


def pass_level(name: str, backend: Backend) -> Notes:
    """Take a dispatcher through one level, in this process; raises as :func:`pass_levels` does."""
    return [f"{name}: {note}" for note in _levels_of(backend)[name](backend)]


def _levels_of(backend: Backend) -> Mapping[str, Callable[[Backend], Notes]]:
    if backend.name == PERMUTE_FUSION:
        return {name: _LEVELS[name] for name in ("installed", "import")}
    return _LEVELS if backend.flex else _COLLECTIVE


def provider(backend: Backend) -> Provider | None:
    """Whose package a dispatcher would load here; None when there is none."""
    return provider_of(backend.imports[0][0].partition(".")[0], backend.extensions) if backend.imports else None


def _installed(backend: Backend) -> Notes:
    whose = provider(backend)
    top = backend.imports[0][0].partition(".")[0]
    if whose is None:
        raise ModuleNotFoundError(f"No module named {top!r}")
    if not whose.file:
        raise ModuleNotFoundError(f"{top!r} is a folder without code")
    for library in whose.libraries:
        try:
            built_for = elf.machine(Path(library))
        except (OSError, ValueError) as error:
            raise UnusableError("BrokenLibrary", str(error)) from error
        if built_for != platform.machine():
            raise UnusableError(
                "WrongMachine", f"{library} is for {built_for}, but this machine is {platform.machine()}"
            )
    return []


def _import(backend: Backend) -> Notes:
    importlib.import_module("torch")  # its libraries must be loaded before an extension that links to them
    for name, attributes in backend.imports:
        module = __import__(name, fromlist=attributes)  # what `from name import attributes` does first
        for attribute in attributes:
            if not hasattr(module, attribute):
                raise ImportError(f"cannot import name {attribute!r} from {name!r}")
    if backend.flag is not None and importlib.util.find_spec("megatron") is not None:
        flag = getattr(importlib.import_module(_FUSED_A2A), backend.flag, None)
        if not flag:
            why = "has no support for it" if flag is None else f"says {backend.flag} = {flag}"
            raise ImportError(f"{backend.name} can be imported, but this megatron-core {why}")
    return []


def _signatures(backend: Backend) -> Notes:
    notes: Notes = []
    for call, why in refusals(backend.calls, megatron_release()):
        if call.setting is None:
            raise UnusableError("Signature", why)
        notes.append(f"{call.setting}=true would silently do nothing: {why}")
    return notes


def _binary(backend: Backend) -> Notes:
    whose = provider(backend)
    libraries = whose.libraries if whose else ()
    if not libraries:
        return []
    capabilities = sorted({gpu.compute_capability for gpu in nvml.read_gpus() if gpu.compute_capability})
    notes: Notes = []
    for library in libraries:
        found = elf.targets(Path(library))
        if not found:
            notes.append(f"unknown: no kernels were found in {Path(library).name}")
        for capability in capabilities:
            if found and not elf.runs_on(found, capability):
                built = ", ".join(sorted({_number(target.compute_capability) for target in found}))
                raise UnusableError(
                    "WrongGpu", f"{library} was built for {built}, but the GPU here has {_number(capability)}"
                )
    if not capabilities:
        notes.append("unknown: no GPU to compare with")
    return notes


def _devices(_: Backend) -> Notes:
    return _unless_failed(devices.gpu_findings(*nvml.look()))


def _network(_: Backend) -> Notes:
    return _unless_failed(devices.network_findings()) if nvml.read_gpus() else []


def _unless_failed(findings: tuple[devices.Finding, ...]) -> Notes:
    failed = next((finding for finding in findings if finding.state == "fail"), None)
    if failed is not None:
        raise UnusableError("Devices", f"{failed.says}{'; ' if failed.fix else ''}{failed.fix}")
    return [finding.says for finding in findings if finding.state != "ok"]


def _compiler(backend: Backend) -> Notes:
    if not backend.compiles:
        return []
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    compiler = f"{home}/bin/nvcc" if home else shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    try:
        asked = subprocess.run([compiler, "--version"], capture_output=True, timeout=_COMPILER_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired as error:
        late = f"{compiler} --version does not come back within {_COMPILER_TIMEOUT_S:g} s"
        raise UnusableError("Compiler", f"{backend.name} compiles its kernels, but {late}") from error
    except OSError as error:
        raise UnusableError("Compiler", f"{backend.name} compiles its kernels, but {compiler} cannot be run") from error
    if asked.returncode:
        raise UnusableError("Compiler", f"{backend.name} compiles its kernels, but {compiler} --version fails")
    return []


def _collective(_: Backend) -> Notes:
    try:
        metadata.version("megatron-core")
    except metadata.PackageNotFoundError:
        raise ModuleNotFoundError("megatron-core is not installed") from None
    torch: Any = importlib.import_module("torch")
    distributed: Any = importlib.import_module("torch.distributed")
    library = "nccl" if torch.cuda.is_available() else "gloo"
    if not (distributed.is_available() and distributed.is_backend_available(library)):
        raise ImportError(f"this torch was built without {library}")
    try:
        importlib.import_module(_FUSED_A2A)  # it imports the libraries of all dispatchers, whichever is asked for
    except BaseException as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        says = f"megatron-core cannot be imported beside what is installed: {reason}"
        raise UnusableError(type(error).__name__, says) from error
    return []


def megatron_release() -> Release | None:
    """The release of the installed megatron-core; None without one, or with a version that is not two numbers."""
    try:
        major, minor, *_ = metadata.version("megatron-core").split(".")
        return int(major), int(minor)
    except (metadata.PackageNotFoundError, ValueError):
        return None


def _number(capability: tuple[int, int]) -> str:
    return f"{capability[0]}.{capability[1]}"


_COLLECTIVE: Mapping[str, Callable[[Backend], Notes]] = {"import": _collective}
_LEVELS: Mapping[str, Callable[[Backend], Notes]] = {
    "installed": _installed,
    "import": _import,
    "signatures": _signatures,
    "binary": _binary,
    "devices": _devices,
    "network": _network,
    "compiler": _compiler,
}
