"""What 8- and 4-bit precisions need."""

from autotune.constraint.rule import Candidate, Verdict
from autotune.constraint.rules.registry import Rules, join, needs_version

RULES = Rules()


@RULES.add("AT030", "8- and 4-bit matrix products are CUDA's")
def _small_precisions_need_a_gpu(c: Candidate) -> Verdict:
    if c.contract.precision.startswith(("fp8", "fp4")) and c.gang.device != "cuda":
        return 1.0, f"precision={c.contract.precision} needs CUDA devices; legal: bf16, fp32"
    return None


@RULES.add("AT031", "Transformer Engine: block-scaled formats are those of Blackwell's tensor cores")
def _block_scales_need_blackwell(c: Candidate) -> Verdict:
    if c.contract.precision in ("fp8_mxfp8", "fp4_nvfp4") and c.is_hopper:
        return 1.0, (
            f"precision={c.contract.precision} needs Blackwell, but the GPU is {c.accelerator}; "
            "legal: bf16, fp8_tensorwise, fp8_blockwise, fp8_delayed"
        )
    return None


@RULES.add("MC160", "core/transformer/transformer_config.py:1821")
def _recompute_allows_the_scaling(c: Candidate) -> Verdict:
    modules = {"moe_act", "layernorm"} & set(c.names("recompute_modules"))
    if not modules or not c.contract.precision.startswith("fp8"):
        return None
    if c.contract.precision == "fp8_delayed":
        return float(len(modules)), f"precision=fp8_delayed excludes {join(modules)} among recompute_modules"
    return needs_version(c, f"recomputing {join(modules)} in fp8", "transformer_engine", (2, 6))


@RULES.add("MC174", "training/arguments.py:1073")
def _fp4_needs_transformer_engine(c: Candidate) -> Verdict:
    if not c.contract.precision.startswith("fp4"):
        return None
    return needs_version(c, f"precision={c.contract.precision}", "transformer_engine", (2, 7))


@RULES.add("MC175", "core/transformer/transformer_config.py:2294-2306")
def _fp8_needs_transformer_engine(c: Candidate) -> Verdict:
    if not c.contract.precision.startswith("fp8"):
        return None
    minimum = (1, 11) if c.settings["grouped_gemm"] else (1, 7)
    return needs_version(c, f"precision={c.contract.precision}", "transformer_engine", minimum)
