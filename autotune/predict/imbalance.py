"""How much fuller than the mean the fullest expert rank is."""

import math

from autotune.predict.memory_plan import NATURAL_IMBALANCE
from autotune_trials.spec import Routing


def rank_imbalance(routing: Routing, tokens_per_rank: int, topk: int, expert_parallel: int) -> float:
    """Tokens of the fullest expert rank over the mean, as the contract's routing implies it.

    Forced balance draws experts at random: rank loads are binomial and the fullest of n ranks is about
    ``sqrt(2 ln n)`` standard deviations above the mean.
    """
    if expert_parallel <= 1:
        return 1.0
    if routing.source != "forced_balance":
        return NATURAL_IMBALANCE
    mean = max(1.0, float(tokens_per_rank) * topk)
    return 1.0 + math.sqrt(2 * math.log(expert_parallel) / mean)
