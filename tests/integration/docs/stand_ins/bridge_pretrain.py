"""``megatron.bridge.training.pretrain`` without the training: start-up, saved configuration, callbacks."""

import importlib
import sys
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import sitecustomize
import yaml


def pretrain(config: Any, forward_step_func: Any, callbacks: Sequence[Any] = ()) -> None:
    """What Bridge does before the first step, and one line in place of the steps."""
    assert callable(forward_step_func)
    state = SimpleNamespace(cfg=config)
    if sitecustomize.Bridge.installed:
        importlib.import_module("megatron.bridge.training.config").runtime_config_update(config)
        importlib.import_module("megatron.bridge.training.setup").maybe_log_and_save_config(config)
        module = importlib.import_module("megatron.bridge.training.callbacks")
        manager = module.normalize_callbacks(list(callbacks))
        if manager is not None:
            manager.fire("on_train_start", module.CallbackContext(state=state, model=[]))
    else:
        if config.logger.save_config_filepath is not None:
            with open(config.logger.save_config_filepath, "w", encoding="utf-8") as file:
                yaml.safe_dump(_plain(config), file)
        for callback in callbacks:
            callback.on_train_start(SimpleNamespace(state=state, model=[]))
    sys.stdout.write(f"training with the {config.model.moe_token_dispatcher_type} dispatcher\n")


def _plain(value: Any) -> Any:
    if hasattr(value, "__dict__"):
        return {name: _plain(item) for name, item in vars(value).items()}
    return value
