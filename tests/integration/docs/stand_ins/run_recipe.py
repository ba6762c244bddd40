"""Stands for Megatron-Bridge's ``scripts/training/run_recipe.py``: a recipe by name, overrides, training."""

import argparse

import megatron.bridge.recipes as recipes
from megatron.bridge.training.gpt_step import forward_step
from megatron.bridge.training.pretrain import pretrain
from megatron.bridge.training.utils.omegaconf_utils import process_config_with_overrides

parser = argparse.ArgumentParser()
parser.add_argument("--recipe", required=True)
parser.add_argument("--dataset", required=True, choices=["llm-pretrain-mock"])
options, words = parser.parse_known_args()
config = process_config_with_overrides(getattr(recipes, options.recipe)(), cli_overrides=words)
pretrain(config=config, forward_step_func=forward_step)
