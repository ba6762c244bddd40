"""Settings that no configuration object holds: what they mean as environment variables and launch settings."""

import shutil
from collections.abc import Mapping

from autotune_policies.errors import PolicyError
from autotune_policies.settings import SETTINGS, Settings

_COUNTS: Mapping[str, tuple[str, ...]] = {
    "tokens_per_chunk": (
        "NUM_OF_TOKENS_PER_CHUNK_DISPATCH_API",
        "NUM_OF_TOKENS_PER_CHUNK_COMBINE_API",
        "NUM_OF_TOKENS_PER_CHUNK_PREPROCESSING_API",
    ),
    "layernorm_sm_margin": ("NVTE_FWD_LAYERNORM_SM_MARGIN", "NVTE_BWD_LAYERNORM_SM_MARGIN"),
    "cuda_device_max_connections": ("CUDA_DEVICE_MAX_CONNECTIONS",),
}
"""Settings that are a number in each of these variables."""

_ALLOCATORS: Mapping[str, str] = {
    "fixed_segments": "expandable_segments:False",
    "expandable_segments": "expandable_segments:True",
    "expandable_segments_graph_reuse": "expandable_segments:True,graph_capture_record_stream_reuse:True",
}
_ALLOCATOR_VARIABLE = "PYTORCH_CUDA_ALLOC_CONF"

_LOCAL_RANK = ("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK")

ENVIRONMENT_SETTINGS = tuple(name for name, row in SETTINGS.items() if row.home == "env")
LAUNCH_SETTINGS = tuple(name for name, row in SETTINGS.items() if row.home == "launch")


def environment_of(settings: Mapping[str, object]) -> dict[str, str]:
    """The variables that make these settings true; a setting that is null or absent asks for none."""
    variables: dict[str, str] = {}
    for name, names in _COUNTS.items():
        if settings.get(name) is not None:
            variables |= dict.fromkeys(names, str(settings[name]))
    allocator = settings.get("cuda_allocator")
    if allocator is not None:
        variables[_ALLOCATOR_VARIABLE] = _ALLOCATORS[str(allocator)]
    return variables


def read_environment(environment: Mapping[str, str]) -> Settings:
    """The settings that an environment amounts to: the inverse of :func:`environment_of`.

    A setting of several variables is read only where they agree; what has no canonical form is null.
    """
    settings: Settings = {}
    for name, names in _COUNTS.items():
        values = {environment.get(variable, "") for variable in names}
        text = values.pop() if len(values) == 1 else ""
        settings[name] = int(text) if text.isascii() and text.isdecimal() else None
    words = _flags(environment.get(_ALLOCATOR_VARIABLE, ""))
    settings["cuda_allocator"] = next((name for name, text in _ALLOCATORS.items() if _flags(text) == words), None)
    return settings


def launch_of(settings: Mapping[str, object]) -> dict[str, dict[str, int]]:
    """The launch settings that make these settings true, as a policy's ``launch`` writes them."""
    per_node = settings.get("gpus_per_numa_node")
    return {"numa_binding": {"gpus_per_numa_node": per_node}} if isinstance(per_node, int) else {}


def numa_words(gpus_per_numa_node: int, environment: Mapping[str, str]) -> list[str]:
    """The words before a rank's command that bind it to the cores and memory of its GPU's NUMA node.

    Raises:
        PolicyError: numactl is not here, or no variable says which rank of the node this is.
    """
    if shutil.which("numactl", path=environment.get("PATH")) is None:
        raise PolicyError("launch.numa_binding needs numactl, which is not here", hint="install numactl")
    ranks = [environment[name] for name in _LOCAL_RANK if environment.get(name, "").isdecimal()]
    if not ranks:
        raise PolicyError(
            f"launch.numa_binding needs the local rank, but none of {', '.join(_LOCAL_RANK)} is set",
            hint="start exec once per rank, such as by srun",
        )
    node = int(ranks[0]) // gpus_per_numa_node
    return ["numactl", f"--cpunodebind={node}", f"--membind={node}"]


def _flags(text: str) -> frozenset[str]:
    return frozenset(part.strip() for part in text.split(",") if part.strip())
