"""Megatron-Bridge's own recipes on a machine without a GPU, its kernel libraries or a model hub.

Recipes only build configuration objects, yet importing them imports kernel libraries, and every recipe asks the hub for
its model's configuration. ``install_stubs`` stands in for the libraries; ``use_local_models`` answers for the hub with
the shapes that the model cards publish.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
from pathlib import Path
from typing import Any

STUBBED = ("transformer_engine", "transformer_engine_torch", "modelopt")

Model = tuple[str, str, dict[str, Any]]


def install_stubs() -> None:
    """Let the kernel libraries be imported where they are not installed; every name in them is an empty class."""
    missing = tuple(name for name in STUBBED if importlib.util.find_spec(name) is None)
    if missing:
        sys.meta_path.insert(0, _Finder(missing))


def use_local_models(folder: Path) -> None:
    """Answer every request for a model's configuration from ``MODELS``, written to the folder when first asked for.

    Args:
        folder: Where the configurations are written; any empty folder.
    """
    from megatron.bridge import AutoBridge

    ask_hub = AutoBridge.from_hf_pretrained.__func__

    def from_hf_pretrained(cls: Any, path: str, **options: Any) -> Any:
        options.pop("revision", None)
        return ask_hub(cls, local_model(str(path), folder), **options)

    AutoBridge.from_hf_pretrained = classmethod(from_hf_pretrained)


def local_model(name: str, folder: Path) -> str:
    """The folder that holds a model's configuration.

    Raises:
        LookupError: a model whose shape is not known here.
    """
    if name not in MODELS:
        raise LookupError(f"no local configuration for model {name!r}")
    kind, architecture, shape = MODELS[name]
    place = folder / name.replace("/", "--")
    if not place.exists():
        from transformers import AutoConfig

        config = AutoConfig.for_model(kind, **shape)
        config.architectures = [architecture]
        config.torch_dtype = "bfloat16"
        config.save_pretrained(place)
    return str(place)


class _AnyClass(type):
    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        member = _AnyClass(name, (), {"__init__": lambda self, *args, **options: None})
        setattr(cls, name, member)
        return member

    def __call__(cls, *args: Any, **options: Any) -> Any:
        if len(args) == 1 and callable(args[0]) and not options:  # used as a decorator
            return args[0]
        return type.__call__(cls, *args, **options)


class FusedAdam:
    """The optimizer, whose signature says what the installed release can do."""

    def __init__(
        self, master_weight_dtype: Any, exp_avg_dtype: Any, exp_avg_sq_dtype: Any, use_decoupled_grad: bool
    ) -> None:
        pass


class _Loader(importlib.abc.Loader):
    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        module = types.ModuleType(spec.name)
        module.__path__ = []
        module.__version__ = "2.17.0"  # newer than any release that a recipe asks for

        def member(name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            value: Any = (
                FusedAdam
                if name == "FusedAdam"
                else _AnyClass(name, (), {"__init__": lambda self, *args, **options: None})
            )
            setattr(module, name, value)
            return value

        module.__getattr__ = member
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        pass


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names

    def find_spec(self, name: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if name.split(".")[0] not in self.names:
            return None
        return importlib.machinery.ModuleSpec(name, _Loader(), is_package=True)


def _qwen3_moe(**shape: Any) -> dict[str, Any]:
    return {
        "vocab_size": 151_936, "num_experts_per_tok": 8, "num_experts": 128, "norm_topk_prob": True,
        "head_dim": 128, "num_key_value_heads": 4, "rope_theta": 1e6, "decoder_sparse_step": 1, "mlp_only_layers": [],
        "max_position_embeddings": 40_960, "rms_norm_eps": 1e-6, "tie_word_embeddings": False, **shape,
    }  # fmt: skip


_QWEN3_30B = _qwen3_moe(
    num_hidden_layers=48, hidden_size=2048, num_attention_heads=32, intermediate_size=6144, moe_intermediate_size=768
)
_QWEN3_235B = _qwen3_moe(
    num_hidden_layers=94, hidden_size=4096, num_attention_heads=64, intermediate_size=12_288, moe_intermediate_size=1536
)


def _qwen35(**shape: Any) -> dict[str, Any]:
    text = {
        "vocab_size": 248_320, "head_dim": 256, "num_key_value_heads": 2, "linear_num_value_heads": 32,
        "linear_num_key_heads": 16, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
        "full_attention_interval": 4, "mtp_num_hidden_layers": 1, **shape,
    }  # fmt: skip
    return {"text_config": text}


def _nemotron(**shape: Any) -> dict[str, Any]:
    return {
        "hidden_size": 2688,
        "num_attention_heads": 32,
        "num_key_value_heads": 2,
        "n_routed_experts": 128,
        "num_experts_per_tok": 6,
        "n_shared_experts": 1,
        "vocab_size": 131_072,
        **shape,
    }


_DEEPSEEK_V4: dict[str, Any] = {
    "rope_scaling": {"rope_type": "yarn", "type": "yarn", "factor": 16.0, "original_max_position_embeddings": 65_536}
}


MODELS: dict[str, Model] = {
    "deepseek-ai/DeepSeek-V3": ("deepseek_v3", "DeepseekV3ForCausalLM", {}),
    "deepseek-ai/DeepSeek-V2": (
        "deepseek_v2", "DeepseekV2ForCausalLM",
        {"num_hidden_layers": 60, "hidden_size": 5120, "num_attention_heads": 128, "n_routed_experts": 160,
         "n_shared_experts": 2, "num_experts_per_tok": 6, "moe_intermediate_size": 1536, "q_lora_rank": 1536,
         "first_k_dense_replace": 1},
    ),
    "deepseek-ai/DeepSeek-V2-Lite": (
        "deepseek_v2", "DeepseekV2ForCausalLM",
        {"num_hidden_layers": 27, "hidden_size": 2048, "num_attention_heads": 16, "n_routed_experts": 64,
         "n_shared_experts": 2, "num_experts_per_tok": 6, "moe_intermediate_size": 1408, "q_lora_rank": None,
         "first_k_dense_replace": 1},
    ),
    "deepseek-ai/DeepSeek-V4-Flash": ("deepseek_v4", "DeepseekV4ForCausalLM", _DEEPSEEK_V4),
    "deepseek-ai/DeepSeek-V4-Pro": ("deepseek_v4", "DeepseekV4ForCausalLM", _DEEPSEEK_V4),
    "moonshotai/Kimi-K2-Instruct": (
        "deepseek_v3", "KimiK2ForCausalLM",
        {"n_routed_experts": 384, "num_attention_heads": 64, "num_key_value_heads": 64, "n_group": 1, "topk_group": 1,
         "first_k_dense_replace": 1, "vocab_size": 163_840, "num_nextn_predict_layers": 0},
    ),
    "Qwen/Qwen3-30B-A3B": ("qwen3_moe", "Qwen3MoeForCausalLM", _QWEN3_30B),
    "Qwen/Qwen3-235B-A22B": ("qwen3_moe", "Qwen3MoeForCausalLM", _QWEN3_235B),
    "Qwen/Qwen3-Next-80B-A3B-Instruct": ("qwen3_next", "Qwen3NextForCausalLM", {}),
    "Qwen/Qwen3-VL-30B-A3B-Instruct": (
        "qwen3_vl_moe", "Qwen3VLMoeForConditionalGeneration", {"text_config": _QWEN3_30B},
    ),
    "Qwen/Qwen3-VL-235B-A22B-Instruct": (
        "qwen3_vl_moe", "Qwen3VLMoeForConditionalGeneration", {"text_config": _QWEN3_235B},
    ),
    "Qwen/Qwen3.5-35B-A3B": (
        "qwen3_5_moe", "Qwen3_5MoeForConditionalGeneration",
        _qwen35(num_hidden_layers=40, hidden_size=2048, num_attention_heads=16, num_experts=256),
    ),
    "Qwen/Qwen3.5-122B-A10B": (
        "qwen3_5_moe", "Qwen3_5MoeForConditionalGeneration",
        _qwen35(num_hidden_layers=48, hidden_size=3072, num_attention_heads=32, num_experts=256),
    ),
    "Qwen/Qwen3.5-397B-A17B": (
        "qwen3_5_moe", "Qwen3_5MoeForConditionalGeneration",
        _qwen35(num_hidden_layers=60, hidden_size=4096, num_attention_heads=32, num_experts=512),
    ),
    "Qwen/Qwen3-Omni-30B-A3B-Instruct": ("qwen3_omni_moe", "Qwen3OmniMoeForConditionalGeneration", {}),
    "openai/gpt-oss-20b": (
        "gpt_oss", "GptOssForCausalLM",
        {"num_hidden_layers": 24, "num_local_experts": 32},
    ),
    "openai/gpt-oss-120b": (
        "gpt_oss", "GptOssForCausalLM",
        {"num_hidden_layers": 36, "num_local_experts": 128},
    ),
    "zai-org/GLM-4.5": ("glm4_moe", "Glm4MoeForCausalLM", {}),
    "zai-org/GLM-4.5-Air": ("glm4_moe", "Glm4MoeForCausalLM", {}),
    "zai-org/GLM-4.5V": (
        "glm4v_moe", "Glm4vMoeForConditionalGeneration", {"text_config": {"head_dim": 128}},
    ),
    "zai-org/GLM-5.1": ("glm_moe_dsa", "GlmMoeDsaForCausalLM", {"indexer_rope_interleave": True}),
    "zai-org/GLM-5.2": ("glm_moe_dsa", "GlmMoeDsaForCausalLM", {"indexer_rope_interleave": True}),
    "moonshotai/Moonlight-16B-A3B": (
        "deepseek_v3", "DeepseekV3ForCausalLM",
        {"num_hidden_layers": 27, "hidden_size": 2048, "intermediate_size": 11_264, "moe_intermediate_size": 1408,
         "n_routed_experts": 64, "n_shared_experts": 2, "num_experts_per_tok": 6, "num_attention_heads": 16,
         "num_key_value_heads": 16, "q_lora_rank": None, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1,
         "vocab_size": 163_840},
    ),
    "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": ("nemotron_h", "NemotronHForCausalLM", _nemotron()),
    "nvidia/NVIDIA-Nemotron-3.5-Lightning-30B-A3B-BF16": ("nemotron_h", "NemotronHForCausalLM", _nemotron()),
    "nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-BF16": (
        "nemotron_h", "NemotronHForCausalLM",
        _nemotron(hidden_size=4096, n_routed_experts=512, num_experts_per_tok=22),
    ),
    "nvidia/NVIDIA-Nemotron-3-Ultra-550B-A55B-BF16": (
        "nemotron_h", "NemotronHForCausalLM",
        _nemotron(hidden_size=8192, n_routed_experts=512, num_experts_per_tok=22),
    ),
    "LGAI-EXAONE/K-EXAONE-236B-A23B": ("exaone_moe", "ExaoneMoeForCausalLM", {}),
    "MiniMaxAI/MiniMax-M3": ("minimax_m3_vl", "MiniMaxM3SparseForConditionalGeneration", {}),
    "google/gemma-4-26B-A4B-it": ("gemma4", "Gemma4ForConditionalGeneration", {}),
}  # fmt: skip
