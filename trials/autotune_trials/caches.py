"""Where compilers of kernels keep their results on this node, and locks that a killed rank left there.

Standard library only.
"""

import os
from pathlib import Path

from autotune_trials.processes import in_use

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
    wanted = f"TORCH_EXTENSIONS_DIR={extensions}".encode()
    if not locks or in_use(lambda word: word == wanted):
        return
    for lock in locks:
        lock.unlink(missing_ok=True)
