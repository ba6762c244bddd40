"""Megatron-Core without a GPU: the CUDA calls it makes unconditionally, answered on a CPU.

Nothing here changes what is computed. Each stand-in has the one reason it exists for; all of them are installed only
when the gang runs on CPUs, and the GPU path never imports this module. Two moments matter: :func:`before_import`
runs between ``import torch`` and the first Megatron import, :func:`after_import` when Megatron is loaded.
"""

import contextlib
import functools
import importlib
import importlib.machinery
import importlib.metadata
import importlib.util
import sys
from collections.abc import Callable
from typing import Any
from unittest.mock import MagicMock

import torch

_CPU = torch.device("cpu")
_CUDA_TYPES = ("FloatTensor", "HalfTensor", "BFloat16Tensor")


class _Event:
    """Work on a CPU is done when the call returns, so there is nothing to record and nothing to wait for."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def record(self, *_: Any) -> None: ...

    def wait(self, *_: Any) -> None: ...

    def synchronize(self) -> None: ...


class _Stream:
    """The only queue of a CPU process: every stream is the same one."""

    cuda_stream = 0

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Stream)

    def __hash__(self) -> int:
        return 0

    def wait_stream(self, *_: Any) -> None: ...

    def wait_event(self, *_: Any) -> None: ...

    def record_event(self, *_: Any) -> _Event:
        return _Event()

    def synchronize(self) -> None: ...

    @staticmethod
    def priority_range() -> tuple[int, int]:
        return 0, 0


def before_import() -> None:
    """Answer CUDA calls on the CPU; to be called once, before Megatron is imported."""
    _no_compiled_kernels()
    _devices_are_cpu()
    _streams_are_one()
    _cuda_generator_is_cpu_generator()
    _optimizer_recognises_tensors()


def after_import() -> None:
    """The few stand-ins that have to replace names inside Megatron itself."""
    _forget_triton_stub()
    _rng_tracker_uses_cpu_generator()
    _split_sizes_are_numbers()
    _norm_takes_part_in_sequence_parallel()
    _router_without_transformer_engine()
    _recompute_without_fp8()
    _recompute_without_a_compiler()
    _latent_attention_without_transformer_engine()


def _no_compiled_kernels() -> None:
    # Megatron wraps its fusable functions in torch.compile at import. On a CPU that would load the compiler (1.5 s of
    # a trial's start) and build C++ kernels in the first step, for functions that compute the same uncompiled.
    def compile_nothing(model: Any = None, **_: Any) -> Any:
        return model if model is not None else lambda function: function

    torch.compile = compile_nothing
    _triton_stub()


def _triton_stub() -> None:
    # From 0.18 on the package imports triton for GPU kernels at its own import; CPU builds of torch come without it.
    # Earlier releases ask politely, and would take a stand-in for the real thing.
    release = tuple(int(part) for part in importlib.metadata.version("megatron-core").split(".")[:2])
    if release < (0, 18) or importlib.util.find_spec("triton") is not None:
        return
    # Mocks answer every name in a kernel's signature and swallow every decorator.
    triton, language = MagicMock(name="triton"), MagicMock(name="triton.language")
    triton.__version__ = "0.0"  # older than anything that has the kernels, so that nothing counts on them
    triton.__spec__ = importlib.machinery.ModuleSpec("triton", None, is_package=True)
    triton.language = language
    sys.modules.update({"triton": triton, "triton.language": language})


def _forget_triton_stub() -> None:
    # torch asks for the package later, and would go on to use what it finds.
    if isinstance(sys.modules.get("triton"), MagicMock):
        del sys.modules["triton"], sys.modules["triton.language"]


def _devices_are_cpu() -> None:
    # Buffers are created on torch.cuda.current_device(), on the literal "cuda", or moved there by .cuda() and .to().
    torch.cuda.current_device = lambda: _CPU
    torch.cuda.synchronize = lambda *_, **__: None
    torch.cuda.is_current_stream_capturing = lambda: False
    torch.cuda.empty_cache = lambda: None
    for name in (
        "tensor",
        "as_tensor",
        "empty",
        "zeros",
        "ones",
        "full",
        "arange",
        "rand",
        "randn",
        "empty_like",
        "zeros_like",
    ):
        setattr(torch, name, _on_cpu(getattr(torch, name)))
    torch.Tensor.cuda = lambda tensor, *_, **__: tensor
    torch.Tensor.to = _on_cpu(torch.Tensor.to)
    # Profiler ranges raise in builds without CUDA; 0.16's overlap schedule opens them unasked.
    torch.cuda.nvtx.range_push = torch.cuda.nvtx.range_pop = lambda *_, **__: 0


def _on_cpu(function: Callable[..., Any]) -> Callable[..., Any]:
    def is_cuda(value: object) -> bool:
        return isinstance(value, str | torch.device) and str(value).startswith("cuda")

    @functools.wraps(function)
    def call(*args: Any, **keywords: Any) -> Any:
        if is_cuda(keywords.get("device")):
            keywords["device"] = _CPU
        if len(args) > 1 and is_cuda(args[1]):
            args = (args[0], _CPU, *args[2:])
        return function(*args, **keywords)

    return call


def _streams_are_one() -> None:
    # The alltoall dispatcher, the shared expert and the overlap schedule order their work with streams and events.
    stream = _Stream()
    torch.cuda.Stream, torch.cuda.Event = _Stream, _Event
    torch.cuda.current_stream = lambda *_, **__: stream
    torch.cuda.default_stream = lambda *_, **__: stream
    torch.cuda.stream = lambda *_: contextlib.nullcontext()
    torch.Tensor.record_stream = lambda *_: None


def _cuda_generator_is_cpu_generator() -> None:
    # The tensor-parallel random-number tracker forks the state of the CUDA generator.
    torch.cuda.manual_seed = torch.manual_seed
    torch.cuda.get_rng_state = lambda *_, **__: torch.get_rng_state()
    torch.cuda.set_rng_state = lambda state, *_, **__: torch.set_rng_state(state)


def _optimizer_recognises_tensors() -> None:
    # Mixed-precision optimizers and gradient clipping sort parameters by the name of their type, in the CUDA spelling.
    original = torch.Tensor.type

    def type_name(tensor: Any, *args: Any, **keywords: Any) -> Any:
        answer = original(tensor, *args, **keywords)
        if isinstance(answer, str) and answer.removeprefix("torch.") in _CUDA_TYPES:
            return answer.replace("torch.", "torch.cuda.", 1)
        return answer

    torch.Tensor.type = type_name


def _rng_tracker_uses_cpu_generator() -> None:
    random = importlib.import_module("megatron.core.tensor_parallel.random")
    random._get_cuda_rng_state = lambda *_, **__: torch.get_rng_state()  # type: ignore[attr-defined]
    random._set_cuda_rng_state = lambda state, *_, **__: torch.set_rng_state(state)  # type: ignore[attr-defined]


def _split_sizes_are_numbers() -> None:
    # all_to_all takes plain numbers as split sizes. Megatron makes them while it copies from the GPU, so on a CPU,
    # where nothing is copied, they would stay tensors.
    dispatcher = importlib.import_module("megatron.core.transformer.moe.token_dispatcher")

    def move(tensor: Any, as_numpy: bool = False, record_stream: bool = False) -> Any:
        return tensor.detach().numpy() if as_numpy and torch.is_tensor(tensor) else tensor

    dispatcher.maybe_move_tensor_to_cpu = move  # type: ignore[attr-defined]


def _norm_takes_part_in_sequence_parallel() -> None:
    # torch's norms compute what sequence parallelism needs; only the mark that makes Megatron sum their weight
    # gradients over the tensor-parallel ranks is missing, which is why upstream refuses them.
    wrapped = importlib.import_module("megatron.core.transformer.torch_norm").WrappedTorchNorm

    def create(cls: type, config: Any, hidden_size: int, eps: float = 1e-5, **_: Any) -> Any:
        kind = torch.nn.RMSNorm if config.normalization == "RMSNorm" else torch.nn.LayerNorm
        norm = kind(hidden_size, eps=eps)
        for parameter in norm.parameters():
            parameter.sequence_parallel = config.sequence_parallel
        return norm

    wrapped.__new__ = create


def _router_without_transformer_engine() -> None:
    # 0.16 forgets to define this name when Transformer Engine is missing, and asks for it in every router call.
    utils = importlib.import_module("megatron.core.transformer.moe.moe_utils")
    if not hasattr(utils, "te_general_gemm"):
        utils.te_general_gemm = None  # type: ignore[attr-defined]


def _recompute_without_fp8() -> None:
    # Recomputing a norm passes no fp8 flag; its default False is taken for a recipe, and asks Transformer Engine.
    random = importlib.import_module("megatron.core.tensor_parallel.random")
    random.CheckpointWithoutOutput.__init__.__defaults__ = (None,)


def _recompute_without_a_compiler() -> None:
    # 0.19 builds a C++ helper at the first selective recompute, which takes ninja, a compiler and a minute. On a CPU
    # the bytes are copied instead, as earlier releases did: below autograd, so that it does not notice either.
    random = importlib.import_module("megatron.core.tensor_parallel.random")

    def share_storage(output: Any, recomputed: Any) -> None:
        storage, source = output.untyped_storage(), recomputed.untyped_storage()
        storage.resize_(source.nbytes())
        storage.copy_(source)

    if hasattr(random, "_get_share_storage"):
        random._get_share_storage = lambda: share_storage  # type: ignore[attr-defined]


def _latent_attention_without_transformer_engine() -> None:
    # 0.16 takes its own wrapper module for the library: the module can be imported, but it then holds mocks.
    attention = importlib.import_module("megatron.core.transformer.multi_latent_attention")
    if importlib.util.find_spec("transformer_engine") is None:
        attention.HAVE_TE = False  # type: ignore[attr-defined]
