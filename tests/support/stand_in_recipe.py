"""A recipe and a training loop with the shape of Megatron-Bridge's, for machines without it.

The container has Bridge's sections and Megatron-Core's fields; the loop builds a real Megatron-Core model from it,
trains it on the CPU and calls the callbacks as Bridge does. Its field ``fail`` says how it is to fail: ``build``,
``fallback``, or ``hang@1:4``, which is in step 4 of rank 1.
"""

import dataclasses
import importlib.metadata
import os
import signal
import time
from types import SimpleNamespace
from typing import Any

import torch
import yaml
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallelConfig
from megatron.core.optimizer import OptimizerConfig
from megatron.core.transformer import TransformerConfig

from autotune_policies.megatron_bridge import read_container
from autotune_policies.settings import resolve
from autotune_trials.native import rank as native_rank
from autotune_trials.spec import Contract, GangShape, ModelShape, Routing, TrialSpec


class Section(SimpleNamespace):
    """Fields of one part of the configuration."""


class MockTokens(Section):
    """A dataset whose name says what it is, as Bridge's do."""


class Container(Section):
    """Looks like a ConfigContainer."""


class CommOverlapConfig(Section):
    """Looks like Bridge's."""


def _defaults(cls: type, **values: object) -> Section:
    known = {}
    for field in dataclasses.fields(cls):
        if field.default is not dataclasses.MISSING:
            known[field.name] = field.default
        elif field.default_factory is not dataclasses.MISSING:
            known[field.name] = field.default_factory()
    return Section(**{**known, **values})


def tiny() -> Container:
    """The model of search_spaces/models/tiny-moe.yaml as a recipe."""
    model = _defaults(
        TransformerConfig, num_layers=4, hidden_size=128, num_attention_heads=4, num_query_groups=2, num_moe_experts=8,
        moe_router_topk=2, moe_ffn_hidden_size=128, ffn_hidden_size=256, moe_aux_loss_coeff=0.01, vocab_size=1024,
        seq_length=4096, bf16=True,
    )  # fmt: skip
    return Container(
        model=model,
        train=Section(
            train_iters=1000, global_batch_size=512, micro_batch_size=1, manual_gc=False, manual_gc_interval=0
        ),
        ddp=_defaults(DistributedDataParallelConfig, use_distributed_optimizer=True),
        optimizer=_defaults(OptimizerConfig, bf16=True, use_distributed_optimizer=True),
        dataset=MockTokens(sequence_length=4096),
        logger=Section(log_interval=10, save_config_filepath=None),
        checkpoint=Section(save="/nowhere", load=None),
        rng=Section(seed=1),
        comm_overlap=None,
        env_vars={"STAND_IN_RECIPE": "yes"},
        fail=None,
    )


def tiny_natural() -> Container:
    """The same, with real data."""
    config = tiny()
    config.dataset = Section(sequence_length=4096)
    return config


def pretrain(config: Any, forward_step: Any, callbacks: list[Any]) -> None:
    """Train, and call the callbacks where Bridge does."""
    assert os.environ["STAND_IN_RECIPE"] == "yes"
    assert config.checkpoint.save is None
    assert forward_step is pretrain_step
    if config.fail == "build":
        raise ValueError("num_layers must be divisible by something")
    if config.fail == "fallback" and config.model.moe_token_dispatcher_type == "allgather":
        config.model.moe_token_dispatcher_type = "alltoall"
    spec = _spec(config)
    native_rank._join(spec, *(int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK")))
    if os.environ["RANK"] == "0" and config.logger.save_config_filepath:
        _save(config)
    from autotune_trials.native.loop import Trainer
    from autotune_trials.native.model import build

    built = build(spec, importlib.metadata.version("megatron-core"))
    trainer = Trainer(spec, built)
    state = SimpleNamespace(cfg=config)
    context = SimpleNamespace(
        state=state, model=built.chunks, optimizer=built.optimizer, loss_dict=None, grad_norm=None
    )
    _fire(callbacks, "on_train_start", context)
    for step in trainer.steps():
        last = parallel_state.is_pipeline_last_stage(ignore_virtual=True)
        context.loss_dict = {"lm loss": torch.tensor(step.record.loss)} if last else {}
        context.grad_norm = step.record.grad_norm
        if config.fail and str(config.fail).partition("@")[2] == f"{os.environ['RANK']}:{step.record.step}":
            _fail_in_a_step(config.fail.partition("@")[0], context)
        _fire(callbacks, "on_train_step_end", context)
    _fire(callbacks, "on_train_end", context)


def _fail_in_a_step(how: str, context: Any) -> None:
    if how == "nan":
        context.grad_norm = float("nan")
    elif how == "oom":
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
    elif how == "segfault":
        os.kill(os.getpid(), signal.SIGSEGV)
    elif how == "hang":
        wait_for_ever()


def wait_for_ever() -> None:
    """Where a rank hangs."""
    time.sleep(3600)


def pretrain_step() -> None:
    """The forward step, which the stand-in does itself."""


def _fire(callbacks: list[Any], name: str, context: Any) -> None:
    for callback in callbacks:
        method = getattr(callback, name, None)
        if method is not None:
            method(context)


def _spec(config: Any) -> TrialSpec:
    model, core = config.model, importlib.metadata.version("megatron-core")
    shape = {field.name for field in dataclasses.fields(ModelShape)}
    same = {name: value for name, value in vars(model).items() if name in shape and name != "name"}
    settings = read_container(config, megatron_core=core, megatron_bridge="0.6.2")
    return TrialSpec(
        "stand-in", 0,
        ModelShape(**{
            "name": "tiny", **same, "num_experts": model.num_moe_experts, "router_topk": model.moe_router_topk,
            "aux_loss_coeff": model.moe_aux_loss_coeff, "kv_channels": None, "mtp_num_layers": 0,
        }),
        Contract(
            model.seq_length, config.train.global_batch_size, steps=config.train.train_iters, seed=config.rng.seed,
            routing=Routing("forced_balance" if model.moe_router_force_load_balancing else "natural"),
        ),
        resolve(settings),
        GangShape(1, int(os.environ["WORLD_SIZE"]), "cpu"),
    )  # fmt: skip


def _save(config: Any) -> None:
    def plain(value: Any) -> Any:
        if isinstance(value, Section):
            return {name: plain(item) for name, item in vars(value).items()}
        return value if isinstance(value, int | float | str | list | dict | None) else str(value)

    with open(config.logger.save_config_filepath, "w", encoding="utf-8") as file:
        yaml.safe_dump(plain(config), file)
