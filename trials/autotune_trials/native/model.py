"""Builds the model: process groups, GPT chunks for every virtual stage, precision and data-parallel wrappers.

The GPU path (NCCL, Transformer Engine layers, grouped matrix products, CUDA graphs, the flex dispatcher, fp8 and fp4
recipes) follows the same lines as upstream's own training loop; development machines without GPUs cannot run it.
"""

import importlib.util
from dataclasses import dataclass
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, finalize_model_grads
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import (
    get_gpt_decoder_block_spec,
    get_gpt_decoder_layer_specs,
    get_gpt_mtp_block_spec,
)
from megatron.core.optimizer import get_megatron_optimizer
from megatron.core.tensor_parallel import model_parallel_cuda_manual_seed
from megatron.core.transformer.module import Float16Module

from autotune_policies.megatron_core import render
from autotune_policies.settings import Settings
from autotune_trials.native import config as configuration
from autotune_trials.native import weights
from autotune_trials.native.attention import use_latent_core_attention
from autotune_trials.native.data import Share
from autotune_trials.native.refusal import Rejected
from autotune_trials.spec import TrialSpec


@dataclass(frozen=True)
class Built:
    """What a trial trains.

    Attributes:
        config: The model's configuration, after Megatron completed it.
        chunks: One wrapped model per virtual stage of this rank.
        optimizer: Megatron's optimizer over all chunks.
        micro_batch_size: Sequences per forward pass.
        release: Version of Megatron-Core.
    """

    config: Any
    chunks: list[Any]
    optimizer: Any
    micro_batch_size: int
    release: str


def build(spec: TrialSpec, release: str) -> Built:
    """Process groups, model and optimizer of this rank.

    Raises:
        Rejected: this program cannot do what was asked.
        PolicyError: the installed release cannot express a setting.
        AssertionError, ValueError, RuntimeError: Megatron refuses the configuration.
    """
    engine = _transformer_engine(spec)
    fields = render(spec.settings, release)
    config = configuration.transformer_config(spec, fields, engine)
    _process_groups(spec.settings)
    graphs = spec.settings["cuda_graph_impl"] != "none"
    model_parallel_cuda_manual_seed(spec.contract.seed, te_rng_tracker=graphs and engine, use_cudagraphable_rng=graphs)

    num_chunks = spec.settings["virtual_pipeline"]
    assert isinstance(num_chunks, int)
    ddp = configuration.ddp_config(spec, fields)
    chunks = []
    for index in range(num_chunks):
        chunk = _chunk(spec, config, engine, index if num_chunks > 1 else None)
        weights.initialize(
            chunk,
            seed=spec.contract.seed,
            std=config.init_method_std,
            num_layers=spec.model.num_layers,
            tensor_parallel=tensor_share(),
            expert_parallel=expert_share(),
        )
        _check_expert_groups(chunk, spec.settings)
        if spec.gang.device == "cuda":
            chunk.cuda()
        wrapped = Float16Module(config, chunk) if config.bf16 else chunk
        # Later chunks' gradients are complete first, and all at once: buckets would only cost launches.
        chunks.append(DistributedDataParallel(config, ddp, wrapped, disable_bucketing=index > 0))
    optimizer = get_megatron_optimizer(
        configuration.optimizer_config(spec, fields), chunks, use_gloo_process_groups=False
    )
    _connect(config, chunks, optimizer, ddp)
    micro_batch_size = fields.training["micro_batch_size"]
    assert isinstance(micro_batch_size, int)
    return Built(config, chunks, optimizer, micro_batch_size, release)


def _transformer_engine(spec: TrialSpec) -> bool:
    """Whether layers come from Transformer Engine: always on a GPU that has it."""
    if spec.gang.device == "cpu":
        return False
    if importlib.util.find_spec("transformer_engine") is not None:
        return True
    for name in ("grouped_gemm", "permute_fusion", "router_fusion"):
        if spec.settings[name]:
            raise Rejected(f"{name}=true needs Transformer Engine, which is not installed")
    if spec.contract.precision not in ("bf16", "fp32"):
        raise Rejected(f"precision={spec.contract.precision} needs Transformer Engine, which is not installed")
    return False


def _process_groups(settings: Settings) -> None:
    chunks = settings["virtual_pipeline"]
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=settings["tensor_parallel"],
        pipeline_model_parallel_size=settings["pipeline_parallel"],
        virtual_pipeline_model_parallel_size=chunks if chunks != 1 else None,
        context_parallel_size=settings["context_parallel"],
        expert_model_parallel_size=settings["expert_parallel"],
        expert_tensor_parallel_size=settings["expert_tensor_parallel"],
        create_gloo_process_groups=False,
    )


def _chunk(spec: TrialSpec, config: Any, engine: bool, stage: int | None) -> Any:
    """The part of the model that this rank holds at one virtual stage (None = there is only one)."""
    model = spec.model
    latent = model.attention == "mla" and not engine
    layers = get_gpt_decoder_block_spec(config, engine, normalization="RMSNorm", vp_stage=stage)
    mtp = None
    if model.mtp_num_layers:
        last = get_gpt_decoder_layer_specs(config, engine, normalization="RMSNorm")[-1]
        if latent:
            use_latent_core_attention([last])
        mtp = get_gpt_mtp_block_spec(config, last, engine, vp_stage=stage)
    if latent:
        use_latent_core_attention(layers.layer_specs)
    return GPTModel(
        config=config,
        transformer_layer_spec=layers,
        vocab_size=model.vocab_size,
        max_sequence_length=spec.contract.seq_length,
        pre_process=parallel_state.is_pipeline_first_stage(ignore_virtual=False, vp_stage=stage),
        post_process=parallel_state.is_pipeline_last_stage(ignore_virtual=False, vp_stage=stage),
        share_embeddings_and_output_weights=model.tied_embeddings,
        position_embedding_type="rope",
        rotary_base=model.rotary_base,
        mtp_block_spec=mtp,
        vp_stage=stage,
    )


def _check_expert_groups(chunk: Any, settings: Settings) -> None:
    """Refuse a model whose experts would train wrongly.

    Without expert parallelism 0.16 reduces the experts' gradients over the dense data-parallel group, which leaves
    out the tensor-parallel ranks although each of them sends its own tokens through its own copy of the experts.
    """
    if settings["tensor_parallel"] == settings["expert_tensor_parallel"]:
        return
    for name, parameter in chunk.named_parameters():
        if ".mlp.experts." in name and getattr(parameter, "allreduce", True):
            raise Rejected(
                f"tensor_parallel={settings['tensor_parallel']} with expert_parallel=1: this Megatron-Core release "
                "does not sum the experts' gradients over tensor-parallel ranks; use expert_parallel >= 2"
            )


def _connect(config: Any, chunks: list[Any], optimizer: Any, ddp: Any) -> None:
    """What the schedules call back: gradient scaling, synchronisation and the end of a step."""
    config.grad_scale_func = optimizer.scale_loss
    config.finalize_model_grads_func = finalize_model_grads
    if ddp.overlap_grad_reduce:
        config.no_sync_func = _one_or_list([chunk.no_sync for chunk in chunks])
        # All pipeline stages start reducing together, as upstream's own loop does.
        config.grad_sync_func = _one_or_list([chunk.start_grad_sync for chunk in chunks])


def _one_or_list(functions: list[Any]) -> Any:
    return functions if len(functions) > 1 else functions[0]


def tensor_share() -> Share:
    """This rank's part of split matrices."""
    ps = parallel_state
    return Share(ps.get_tensor_model_parallel_rank(), ps.get_tensor_model_parallel_world_size())


def expert_share() -> Share:
    """This rank's part of the experts."""
    ps = parallel_state
    return Share(ps.get_expert_model_parallel_rank(), ps.get_expert_model_parallel_world_size())


def device_of(spec: TrialSpec) -> torch.device:
    """Where this rank's tensors live."""
    return torch.device("cuda", torch.cuda.current_device()) if spec.gang.device == "cuda" else torch.device("cpu")
