"""Where compilers of kernels keep their results on this node, and locks that a killed rank left there.

Standard library only.
"""

import contextlib
import os
from pathlib import Path

_FOLDERS = {
    "TRITON_CACHE_DIR": "triton",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "TORCH_EXTENSIONS_DIR": "torch_extensions",
    "EP_JIT_CACHE_DIR": "deepep",
    "HYBRID_EP_CACHE_DIR": "hybridep",
}


def cache_variables(root: Path, fingerprint: str) -> dict[str, str]:
    """Variables that move the caches of one stack into a folder; a variable the user has set is left alone.

    Args:
        root: Node-local folder.
        fingerprint: Digest of the stack: what another stack has compiled must not be loaded.
    """
    return {
        variable: str(root / "cache" / fingerprint / folder)
        for variable, folder in _FOLDERS.items()
        if variable not in os.environ
    }


def forget_stale_locks(extensions: Path) -> None:
    """Remove the locks of torch's C++ extension builds when nobody alive can hold them.

    torch waits for such a lock (``torch/utils/file_baton.py``, a file without an owner) for ever, so one rank that was
    killed while it compiled would make every later trial of the node hang.
    """
    locks = list(extensions.glob("*/lock"))
    if not locks or _in_use(extensions):
        return
    for lock in locks:
        lock.unlink(missing_ok=True)


def _in_use(extensions: Path) -> bool:
    wanted = f"TORCH_EXTENSIONS_DIR={extensions}".encode()
    for process in Path("/proc").glob("[0-9]*"):
        if process.name != str(os.getpid()):
            with contextlib.suppress(OSError):  # it ended while we looked, or belongs to somebody else
                if wanted in (process / "environ").read_bytes().split(b"\0"):
                    return True
    return False
