"""What the trial program refuses before anything is built, instead of silently running something else."""

from autotune_policies.settings import FLEX_DISPATCHERS
from autotune_trials.spec import TrialSpec

SOURCES = ("forced_balance", "natural")
DATA_CONDITIONS = ("mock_random", "mock_arange")
MIN_STEPS = 2


class Rejected(Exception):  # noqa: N818 - reads as what it is
    """The configuration cannot run as asked; the message is one line with the value and the bound."""


def check(spec: TrialSpec, world_size: int, release: str) -> None:
    """Refuse what this program, or a CPU, cannot do.

    Args:
        spec: The trial.
        world_size: Ranks that were launched.
        release: Version of Megatron-Core.

    Raises:
        Rejected: the first thing found.
    """
    _check_contract(spec, world_size)
    _check_batch(spec, world_size)
    _check_split(spec)
    if spec.gang.device == "cpu":
        _check_cpu(spec, release)


def _check_contract(spec: TrialSpec, world_size: int) -> None:
    contract, routing = spec.contract, spec.contract.routing
    if world_size != spec.gang.world_size:
        raise Rejected(f"WORLD_SIZE={world_size}, but the gang has {spec.gang.world_size} ranks")
    if spec.gang.device not in ("cpu", "cuda"):
        raise Rejected(f"gang.device={spec.gang.device!r} is not cpu or cuda")
    if contract.steps < MIN_STEPS:
        raise Rejected(f"contract.steps={contract.steps}, but peak memory needs at least {MIN_STEPS} optimizer steps")
    if routing.source not in SOURCES:
        raise Rejected(f"routing.source={routing.source!r}; the native program knows {', '.join(SOURCES)}")
    if routing.data_condition not in DATA_CONDITIONS:
        raise Rejected(
            f"routing.data_condition={routing.data_condition!r}; the native program knows {', '.join(DATA_CONDITIONS)}"
        )
    if routing.token_policy != "dropless":
        raise Rejected(f"routing.token_policy={routing.token_policy!r}; the native program knows dropless")


def _check_batch(spec: TrialSpec, world_size: int) -> None:
    values = {name: value for name, value in spec.settings.items() if isinstance(value, int)}
    pipeline, chunks = values["pipeline_parallel"], values["virtual_pipeline"]
    model = values["tensor_parallel"] * pipeline * values["context_parallel"]
    experts = values["expert_tensor_parallel"] * values["expert_parallel"] * pipeline
    for ranks, what in (
        (model, "tensor x pipeline x context parallel"),
        (experts, "expert parallel x expert tensor x pipeline"),
    ):
        if world_size % ranks:
            raise Rejected(f"{what} = {ranks} does not divide the {world_size} ranks")
    per_step = values["micro_batch_size"] * (world_size // model)
    if spec.contract.global_batch_size % per_step:
        raise Rejected(
            f"micro_batch_size x data-parallel size = {per_step} does not divide "
            f"global_batch_size={spec.contract.global_batch_size}"
        )
    num_microbatches = spec.contract.global_batch_size // per_step
    if chunks > 1 and num_microbatches % pipeline:
        raise Rejected(
            f"{num_microbatches} micro-batches are no multiple of pipeline_parallel={pipeline}, as virtual stages need"
        )
    if spec.contract.seq_length % (2 * values["context_parallel"]) and values["context_parallel"] > 1:
        raise Rejected(
            f"seq_length={spec.contract.seq_length} is no multiple of 2 x context_parallel={values['context_parallel']}"
        )


def _check_split(spec: TrialSpec) -> None:
    """Splits that Megatron-Core checks late, or not at all."""
    settings, model = spec.settings, spec.model
    tensor, expert, expert_tensor = (settings[f"{name}_parallel"] for name in ("tensor", "expert", "expert_tensor"))
    assert isinstance(tensor, int)
    assert isinstance(expert, int)
    if tensor > 1 and model.num_experts and not settings["sequence_parallel"]:
        raise Rejected(f"tensor_parallel={tensor} with experts needs sequence_parallel: true")
    if settings["sequence_parallel"] and spec.contract.seq_length % tensor:
        raise Rejected(f"seq_length={spec.contract.seq_length} is no multiple of tensor_parallel={tensor}")
    if model.num_experts and model.num_experts % expert:
        raise Rejected(f"expert_parallel={expert} does not divide the {model.num_experts} experts")
    if expert_tensor != 1:
        raise Rejected(f"expert_tensor_parallel={expert_tensor}; the native program splits no expert: 1")


def _check_cpu(spec: TrialSpec, release: str) -> None:
    settings, contract = spec.settings, spec.contract
    if settings["delay_wgrad"] and release.startswith("0.16."):
        raise Rejected(
            f"delay_wgrad=true needs Transformer Engine's layers in Megatron-Core {release}; a CPU runs it from 0.19 on"
        )
    if settings["dispatcher"] in FLEX_DISPATCHERS:
        raise Rejected(f"dispatcher={settings['dispatcher']} needs GPUs; a CPU runs alltoall and allgather")
    if settings["cuda_graph_impl"] != "none":
        raise Rejected(f"cuda_graph_impl={settings['cuda_graph_impl']} needs GPUs; a CPU runs none")
    if contract.precision not in ("bf16", "fp32"):
        raise Rejected(f"precision={contract.precision} needs GPUs; a CPU runs bf16 and fp32")
    for name in ("grouped_gemm", "permute_fusion", "router_fusion"):
        if settings[name]:
            raise Rejected(f"{name}=true needs Transformer Engine, which needs GPUs")
    if settings["offload_modules"]:
        raise Rejected("offload_modules needs GPUs: a CPU has no other memory to offload to")
    parallel = settings["context_parallel"]
    if isinstance(parallel, int) and parallel > 1:
        raise Rejected(f"context_parallel={parallel} needs Transformer Engine's attention, which needs GPUs")
