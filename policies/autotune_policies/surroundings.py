"""Settings that no configuration object holds: what they mean as environment variables and launch settings."""

from collections.abc import Mapping

from autotune_policies.errors import PolicyError
from autotune_policies.settings import SETTINGS, Settings, expert_group

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

HYBRID_EP_TOPOLOGY = ("NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN", "NVLINK_DOMAIN_SIZE", "USE_MNNVL")
"""Where HybridEP finds the ranks it exchanges tokens with; wrong values hang it or avoid NVLink."""

HYBRID_EP_VARIABLES = (
    *HYBRID_EP_TOPOLOGY,
    *_COUNTS["tokens_per_chunk"],
    "NUM_OF_STAGES_DISPATCH_API",
    "NUM_OF_STAGES_G2S_COMBINE_API",
    "NUM_OF_STAGES_S2G_COMBINE_API",
    "NUM_OF_IN_FLIGHT_S2G_DISPATCH_API",
)
"""Every variable that only HybridEP reads; beside another dispatcher each of them is half a switch left behind."""

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


def topology_of(settings: Mapping[str, object], *, nvlink_domain_gpus: int, gpus_per_node: int) -> dict[str, str]:
    """HybridEP's view of the machine, as Megatron-Bridge's performance recipes write it; nothing for other dispatchers.

    A group that exchanges tokens is expert_parallel x expert_tensor_parallel ranks. It lies in one NVLink domain, or
    fills whole ones.

    Args:
        settings: Canonical settings.
        nvlink_domain_gpus: GPUs that reach each other over NVLink.
        gpus_per_node: GPUs of one node; a larger domain spans nodes (multi-node NVLink).

    Raises:
        PolicyError: a group that is larger than a domain and is not whole ones.
    """
    if settings.get("dispatcher") != "hybridep":
        return {}
    group = expert_group(settings)
    inside = min(group, nvlink_domain_gpus)
    if group % inside:
        raise PolicyError(
            f"expert_parallel x expert_tensor_parallel = {group} ranks are not whole NVLink domains of {inside} GPUs",
            hint=f"hybridep needs at most {inside} ranks, or a multiple of {inside}",
        )
    values = (str(inside), str(nvlink_domain_gpus), str(int(nvlink_domain_gpus > gpus_per_node)))
    return dict(zip(HYBRID_EP_TOPOLOGY, values, strict=True))


def check_hybrid_ep(settings: Mapping[str, object], environment: Mapping[str, str]) -> None:
    """Nothing, if these variables are HybridEP's whole switch, or no part of it beside another dispatcher.

    Raises:
        PolicyError: a variable that is missing, contradicts the settings, or belongs to a dispatcher that is not
            chosen; the message begins with its name.
    """
    if settings.get("dispatcher") != "hybridep":
        for name in HYBRID_EP_VARIABLES:
            if name in environment:
                chosen = settings.get("dispatcher")
                raise PolicyError(f"{name} is for hybridep, but dispatcher is {chosen}", hint="remove the line")
        return
    for name in HYBRID_EP_TOPOLOGY:
        if name not in environment:
            raise PolicyError(
                f"{name} is missing, but dispatcher is hybridep", hint="it needs " + ", ".join(HYBRID_EP_TOPOLOGY)
            )
    ranks, domain, spans = (environment[name] for name in HYBRID_EP_TOPOLOGY)
    group = expert_group(settings)
    inside = min(group, int(domain))
    if int(ranks) != inside:
        raise PolicyError(
            f"{HYBRID_EP_TOPOLOGY[0]} is {ranks}, but {group} ranks of an expert group in NVLink domains of "
            f"{domain} GPUs make {inside}",
            hint="the group is expert_parallel x expert_tensor_parallel",
        )
    if group % inside:
        raise PolicyError(
            f"{HYBRID_EP_TOPOLOGY[0]} is {ranks}, but the {group} ranks of an expert group are no multiple of it",
            hint="hybridep needs whole NVLink domains",
        )
    if spans not in ("0", "1"):
        raise PolicyError(
            f"{HYBRID_EP_TOPOLOGY[2]} is {spans!r}", hint="legal: 0 (a domain is one node), 1 (it spans nodes)"
        )


def stale_variables(settings: Mapping[str, object]) -> tuple[str, ...]:
    """Variables that must not be set beside these settings, such as those of a dispatcher that was given up."""
    return () if settings.get("dispatcher") == "hybridep" else HYBRID_EP_VARIABLES


def said_together(variables: Mapping[str, str]) -> tuple[str, ...]:
    """All variables of the settings that these variables say, given or not: half of such a group says nothing."""
    return tuple(name for names in _COUNTS.values() if any(one in variables for one in names) for name in names)


def launch_of(settings: Mapping[str, object]) -> dict[str, dict[str, int]]:
    """The launch settings that make these settings true, as a policy's ``launch`` writes them."""
    per_node = settings.get("gpus_per_numa_node")
    return {"numa_binding": {"gpus_per_numa_node": per_node}} if isinstance(per_node, int) else {}


def numa_words(gpus_per_numa_node: int, environment: Mapping[str, str]) -> list[str]:
    """The words before a rank's command that bind it to the cores and memory of its GPU's NUMA node.

    Raises:
        PolicyError: numactl is not here, or no variable says which rank of the node this is.
    """
    import shutil  # only a launcher needs it

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
