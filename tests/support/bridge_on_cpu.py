"""A tiny recipe for the real Megatron-Bridge, and its real ``pretrain`` on a machine without a GPU.

Megatron-Core is imported before this module, without kernel libraries, so it computes with torch alone. What stands in
for CUDA here are answers to questions (is there a device, how much memory), none of which changes what is computed.
"""

import sys
from types import SimpleNamespace
from typing import Any

import bridge_stubs
import torch

bridge_stubs.install_stubs()
sys.meta_path.insert(0, bridge_stubs._Finder(("nvidia_resiliency_ext",)))

from megatron.bridge.models.gpt_provider import GPTModelProvider  # noqa: E402
from megatron.bridge.recipes.common import _pretrain_common  # noqa: E402
from megatron.bridge.training import gpt_step, initialize, train  # noqa: E402
from megatron.bridge.training import pretrain as bridge  # noqa: E402
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec  # noqa: E402

forward_step = gpt_step.forward_step


def _layers(config: Any) -> Any:
    return get_gpt_decoder_block_spec(config, use_transformer_engine=False, normalization="RMSNorm")


def tiny() -> Any:
    """The model of search_spaces/models/tiny-moe.yaml, as a recipe of the real Megatron-Bridge."""
    config = _pretrain_common()
    config.model = GPTModelProvider(
        num_layers=4, hidden_size=128, num_attention_heads=4, num_query_groups=2, ffn_hidden_size=256, seq_length=4096,
        num_moe_experts=8, moe_router_topk=2, moe_ffn_hidden_size=128, moe_aux_loss_coeff=0.01,
        moe_router_load_balancing_type="aux_loss", vocab_size=1024, normalization="RMSNorm", add_bias_linear=False,
        gated_linear_unit=True, hidden_dropout=0.0, attention_dropout=0.0, bf16=True, params_dtype=torch.bfloat16,
        transformer_impl="local", transformer_layer_spec=_layers, use_cpu_initialization=True,
        masked_softmax_fusion=False, bias_activation_fusion=False, bias_dropout_fusion=False,
        cross_entropy_loss_fusion=False, gradient_accumulation_fusion=False,
    )  # fmt: skip
    config.tokenizer.tokenizer_type = "NullTokenizer"
    config.tokenizer.vocab_size = 1023
    config.dataset.num_workers = 0
    config.dataset.pin_memory = False
    config.dist.distributed_backend = "gloo"
    config.optimizer.use_precision_aware_optimizer = False
    return config


class _NoDeviceAgain:
    """Setup has asked whether there is a device; torch's own optimizers would believe the answer."""

    def on_train_start(self, context: Any) -> None:
        torch.cuda.is_available = lambda: False


def pretrain(config: Any, forward_step: Any, callbacks: list[Any]) -> None:
    """Megatron-Bridge's own ``pretrain``, with CUDA's answers given for it."""
    device = SimpleNamespace(major=9, minor=0, name="NVIDIA H100", multi_processor_count=132, total_memory=80 << 30)
    torch.cuda.is_available = lambda: True
    torch.cuda.device_count = lambda: 8
    torch.cuda.set_device = lambda *_: None
    torch.cuda.get_device_properties = lambda *_: device
    torch.cuda.get_device_capability = lambda *_: (9, 0)
    torch.cuda.memory_stats = lambda *_: {"allocated_bytes.all.peak": 0}
    # It would run make in the installed package; the wheel brings the module built.
    initialize.compile_helpers = lambda: None
    # ModelOpt is a stub here; without distillation the real one answers the same.
    train.get_tensor_shapes_adjust_fn_for_distillation = lambda *_, **__: None
    bridge.pretrain(config, forward_step, callbacks=[_NoDeviceAgain(), *callbacks])
    sys.stdout.flush()
