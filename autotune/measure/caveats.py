"""What the numbers of a study are, and what they are not; said wherever the numbers are shown."""

from autotune_trials.spec import Contract, GangShape, Routing

BENCHMARK_ONLY = "benchmark-only"


def routing_label(routing: Routing) -> str:
    """``benchmark-only`` for forced balance or mock data, which no training has; else ``training-like``."""
    artificial = routing.source == "forced_balance" or routing.data_condition.startswith("mock")
    return BENCHMARK_ONLY if artificial else "training-like"


def caveats(contract: Contract, gang: GangShape, repeats: int = 0) -> tuple[str, ...]:
    """Sentences a reader needs beside the numbers: routing, device and repetition.

    Args:
        contract: What every trial held fixed.
        gang: Shape of every gang.
        repeats: Runs of each finalist after the search; 0 = nothing was repeated.
    """
    routing = contract.routing
    measured = contract.steps - contract.warmup_steps
    repeated = "only finalists were run again" if repeats else "nothing was repeated"
    sentences = [
        f"routing {routing.source}, data {routing.data_condition}, tokens {routing.token_policy}: "
        f"{routing_label(routing)}",
        f"step times are medians of up to {measured} steps of one run per trial; {repeated}, "
        "so small differences may be noise",
    ]
    if gang.device == "cpu":
        sentences.append(
            "device cpu: a process counts as a GPU, and the timing is of this machine only; it says nothing about GPUs"
        )
    return tuple(sentences)
