"""Every way a trial can fail, as one table: how it is recognised, what to do about it, and whether to run again.

``docs/outcomes.md`` prints the table; a test holds the two together.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Kind = Literal[
    "rejected", "import", "out_of_memory", "numerics", "tokens", "graph", "timeout", "crash", "exception", "hang",
    "hardware", "outside", "unknown", "fallback", "contaminated",
]  # fmt: skip
"""What it was, in one word."""

Retry = Literal["never", "elsewhere", "again"]
"""``never``: it lies in the settings or the software, so it would end the same way. ``elsewhere``: it may lie in the
node, so it counts only when it was seen on other nodes too. ``again``: it says nothing of the settings."""


@dataclass(frozen=True)
class Cause:
    """One way to fail.

    Attributes:
        name: Its name in ``outcome.json``.
        kind: What it was, in one word.
        retry: Whether the same settings are run again.
        advice: One line for the user.
        title: How a reason begins where a text recognised it; empty where the error speaks for itself.
        pattern: What the log or the error says; None where something else than a text shows it.
    """

    name: str
    kind: Kind
    retry: Retry
    advice: str
    title: str = ""
    pattern: re.Pattern[str] | None = None


def _text(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.IGNORECASE)


_LEAVE_OUT = "or leave the dispatcher out of the search"

CAUSES: tuple[Cause, ...] = (
    # -- recognised by a text; the first that fits counts, so that the telling ones come first ---------------------
    Cause(
        "device_memory", "out_of_memory", "never",
        "lower micro_batch_size, recompute or offload more, or shard further",
        pattern=re.compile(r"CUDA out of memory|CUDA error: out of memory|Cuda failure (?:2 )?'out of memory'"
                           r"|CUDA driver error: out of memory|cudaErrorMemoryAllocation|CUBLAS_STATUS_ALLOC_FAILED"
                           r"|\bOutOfMemoryError\b"),
    ),
    Cause(
        "host_memory", "out_of_memory", "never",
        "less offloading to the host, fewer ranks per node, or more memory for the container",
        pattern=re.compile(r"DefaultCPUAllocator: (?:can't allocate|not enough) memory|std::bad_alloc"
                           r"|(?<!MR registration failed: )(?<!ibv_reg_mr failed: )Cannot allocate memory"
                           r"|\boom_kill event|\bOOM[ -]Killed\b"),
    ),
    Cause(
        "shared_memory", "out_of_memory", "never",
        "the container's /dev/shm is full: make it larger (--shm-size, an emptyDir in memory), or fewer data workers",
        pattern=_text(r"shared memory segment[^\n]*No space left on device"
                      r"|/dev/shm\b[^\n]*No space left on device|No space left on device[^\n]*/dev/shm\b"
                      r"|/torch_\d+[^\n]*No space left on device|out of shared memory"),
    ),
    Cause(
        "gpu_fault", "hardware", "elsewhere",
        "the log says that a GPU or its link is broken: have the node checked (nvidia-smi -q, dmesg), or leave it out",
        "broken hardware",
        _text(r"uncorrectable (?:ECC|NVLink) error|GPU is lost|fallen off the bus|hardware stack error"
              # Numbers that a faulting program raises too are no word of the hardware.
              r"|\bXid\b(?![^\n]{0,40}:\s*(?:13|31|43|45)\b)"),
    ),
    Cause(
        "abi_mismatch", "import", "never",
        f"a library was built for other versions than those installed: build it again in this container, {_LEAVE_OUT}",
        "binary mismatch",
        _text(r"undefined symbol|cannot open shared object file|version [`'][^']+' not found"
              r"|cudaRegisterLinkedBinary"),
    ),
    Cause(
        "wrong_architecture", "import", "never",
        "the library has no code for this GPU: build it with TORCH_CUDA_ARCH_LIST of this GPU",
        "no code for this GPU",
        _text(r"no kernel image is available|named symbol not found"),
    ),
    Cause(
        "no_compiler", "import", "never",
        "kernels are compiled on the node: the image needs nvcc (a devel image) and CUDA_HOME",
        "kernels cannot be compiled",
        _text(r"failed to compile the code, compile command|nvcc(?:: command)? not found"),
    ),
    Cause(
        "missing_package", "import", "never",
        f"install the package in the image of every node, {_LEAVE_OUT}",
        "missing package",
        _text(r"No module named|(?:DeepEP|HybridEP|Transformer ?Engine)\b[^.\n]{0,40}\bis not installed"),
    ),
    Cause(
        "import_error", "import", "never",
        f"a library is installed, but not the version that is needed: see the stack on the node, {_LEAVE_OUT}",
        "import failed",
        _text(r"\bImportError\b|cannot import name|NCCL GIN is unavailable"),
    ),
    Cause(
        "dispatcher_limit", "rejected", "never",
        "the dispatcher cannot do this size: other expert_parallel or num_sms, or another dispatcher",
        "beyond the dispatcher's limits",
        _text(r"Unsupported number of EP ranks|tx_depth\s*<\s*65536|num_rc_per_pe\s*(?:==|>=)"
              r"|num_of_hybrid_ep_ranks_per_nvlink_domain"),
    ),
    Cause(
        "tokens_dropped", "tokens", "never",
        "tokens were dropped, so the work is less than asked: raise the capacity or the rank budget",
        "tokens dropped",
        _text(r"\b[1-9]\d* (?:tokens? (?:were |was )?dropped|dropped tokens?)|"
              r"(?:num_)?dropped[_ ]tokens?\s*[:=]\s*[1-9]"),
    ),
    Cause(
        "graph_overflow", "graph", "never",
        "more tokens came than the captured graph has room for: raise the budget, or leave the MoE layer out of graphs",
        "graph overflow",
        _text(r"over[- ]?budget|(?:paged stash|buffer|token budget|permuted tokens?)[^\n]{0,60}overflow"
              r"|overflow[^\n]{0,60}(?:paged stash|token budget|permuted)"),
    ),
    Cause(
        "graph_capture", "graph", "never",
        "an operation of the captured part cannot be in a graph: fewer cuda_graph_modules",
        "graph capture failed",
        _text(r"operation (?:not permitted|failed due to a previous error) (?:when stream is|during) captur"
              r"|cudaErrorStreamCapture|CUDA graph captur\w* fail"),
    ),
    Cause(
        "not_a_number", "numerics", "never",
        "the loss or the gradient is no number: the settings compute something else than the baseline does",
        "numerics",
        _text(r"found (?:NaN|Inf) in local grad norm|loss is (?:nan|inf)\b|\bgrad(?:ient)? norm is (?:nan|inf)\b"
              r"|Unexpected result (?:nan|inf)"),
    ),
    Cause(
        "network_setup", "timeout", "elsewhere",
        "the RDMA transport does not come up: check /dev/infiniband, GDRCopy, IBGDA driver options, container rights",
        "network set-up failed",
        _text(r"init failed for transport|Unable to create ah|mlx5dv_devx|MR registration|ibv_reg_mr"
              r"|cuMemCreate[^\n]*not permitted"),
    ),
    Cause(
        "no_peer_access", "timeout", "never",
        "GPUs of the node do not see each other: make all of them visible to every rank, or use alltoall",
        "no NVLink between GPUs",
        _text(r"No NVLink connection between GPU|cudaErrorPeerAccessUnsupported|peer access is not supported"),
    ),
    Cause(
        "illegal_access", "crash", "elsewhere",
        "a kernel wrote outside its memory: another version of the dispatcher, or another dispatcher",
        "illegal memory access",
        _text(r"illegal memory access|misaligned address|illegal instruction was encountered|unspecified launch failure"
              r"|device-side assert"),
    ),
    Cause(
        "dispatcher_timeout", "timeout", "elsewhere",
        "ranks waited for tokens in vain: check the fabric and the NVSHMEM version, then fewer nodes per EP group",
        "dispatcher timed out",
        _text(r"DeepEP(?: error:| timeout)[^\n]*time[d -]?out|DeepEP timeout|timeout \((?:dispatch|combine)\b[^)]*\)"
              r"|CPU recv timeout|ALLGATHER TIMEOUT|HybridEP[^\n]*time[d -]?out"),
    ),
    Cause(
        "collective_timeout", "timeout", "elsewhere",
        "a collective never completed: a rank that is not there, or a broken link; see stacks.txt and the NCCL log",
        "collective timed out",
        _text(r"watchdog[^\n]*caught collective operation timeout|collective operation timeout"
              r"|Timed out (?:after \d+ \w+ )?waiting[^\n]*(?:operation|recv|send)"),
    ),
    # -- recognised by how a rank ended ----------------------------------------------------------------------------
    Cause("rejected", "rejected", "never", "the software refuses these settings: a rule would spare the launch"),
    Cause("crash", "crash", "elsewhere", "see the stack in the rank's log; another version, or other settings"),
    Cause(
        "import_crash", "import", "elsewhere",
        f"a library kills the process when it is imported: build it again in this container, {_LEAVE_OUT}",
    ),
    Cause(
        "import_hang", "import", "elsewhere",
        f"an import never returns (dead file system? library that waits for devices?): see stacks.txt, {_LEAVE_OUT}",
    ),
    Cause("exception", "exception", "never", "see the traceback in the rank's log"),
    Cause("hang", "hang", "elsewhere", "see stacks.txt for what each rank waited for"),
    Cause("deadline", "hang", "elsewhere", "hanging, or too slow for deadline_s: see stacks.txt and steps.jsonl"),
    Cause(
        "sick_node", "hardware", "again",
        "an error counter of the node moved, so it is in quarantine: have it checked, then remove its file",
    ),
    Cause("cancelled", "outside", "again", "the run was stopped; the same command runs the trial again"),
    Cause("outside", "outside", "again", "somebody or the scheduler ended the process; nothing to do"),
    Cause("lost", "outside", "again", "the node or its worker is gone; see the Ray dashboard"),
    Cause("unknown", "unknown", "elsewhere", "no rank said why: see the logs on the node"),
    # -- recognised by a judge, from what a run that finished brought back -----------------------------------------
    Cause("built_differently", "fallback", "never", "the software did something else than asked: the reason names it"),
    Cause("unproven", "fallback", "never", "a rank showed no proof of what ran; the program must report it"),
    Cause(
        "ended_early", "exception", "never",
        "steps of the contract are missing: a limit of the program's own, the end of its data, or a garbled log",
    ),
    Cause("no_measurement", "exception", "never", "raise the contract's steps, or lower its warmup_steps"),
    Cause(
        "out_of_parity", "numerics", "never",
        "it trains to other numbers than the baseline from the same seed and data: fast, but wrong",
    ),
    Cause("disturbed", "contaminated", "again", "the node or a neighbour disturbed it: the reason says what and where"),
)  # fmt: skip
"""All of them; names are unique."""

_BY_NAME = {cause.name: cause for cause in CAUSES}


def cause_named(name: str) -> Cause:
    """The cause of that name.

    Raises:
        KeyError: there is none.
    """
    return _BY_NAME[name]


def recognise(text: str) -> Cause | None:
    """The most telling cause that a text shows; None when it shows none."""
    return next((cause for cause in CAUSES if cause.pattern is not None and cause.pattern.search(text)), None)


def telling_line(text: str, cause: Cause) -> str:
    """The line of the text that shows the cause; empty when there is none."""
    lines: Iterable[str] = text.splitlines() if cause.pattern is not None else ()
    return next((line.strip() for line in lines if cause.pattern and cause.pattern.search(line)), "")
