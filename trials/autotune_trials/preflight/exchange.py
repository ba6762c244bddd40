"""A tiny dispatch and combine by Megatron-Core's own functions, held against what must come back.

``python -m autotune_trials.preflight.exchange deepep`` is one rank of it (``RANK``, ``WORLD_SIZE``, ``MASTER_ADDR`` and
``MASTER_PORT`` are set). Experts do nothing, so each token comes back as often as it was sent: once per rank that it
went to, or once per expert. Tokens are small whole numbers, so that sums are exact in bfloat16.

The same program tries the fused permutation (``permute_fusion``), alone and against the plain one.
"""

import importlib
import os
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from autotune_trials.preflight.advice import advice
from autotune_trials.preflight.process import Answer
from autotune_trials.preflight.verdict import Verdict, verdict

PERMUTE_FUSION = "permute_fusion"
"""What the fused permutation is called: the setting that it is."""

TOKENS, HIDDEN, TOPK, LOCAL_EXPERTS = 512, 512, 2, 4
"""Of one rank: the least that every library takes."""

_NUM_SMS = 8
_FUSED_A2A = "megatron.core.transformer.moe.fused_a2a"


class Tokens:
    """What one rank sends.

    Args:
        rank: Its number.
        ranks: How many there are.
        device: Where its tokens lie.
    """

    def __init__(self, rank: int, ranks: int, device: Any) -> None:
        torch: Any = importlib.import_module("torch")
        self.ranks, self.experts = ranks, LOCAL_EXPERTS * ranks
        row = torch.arange(TOKENS, device=device).unsqueeze(1)
        column = torch.arange(HIDDEN, device=device).unsqueeze(0)
        self.x = ((7 * row + column + rank) % 13).to(torch.bfloat16)
        # The second expert of a token is one rank on, except for every third token, where both are on one rank.
        step = torch.where(row % 3 == 0, 1, LOCAL_EXPERTS + 1)
        self.indices = torch.cat([row % self.experts, (row + step) % self.experts], dim=1)
        self.probs = torch.full((TOKENS, TOPK), 0.5, dtype=torch.float32, device=device)
        self.routing_map = torch.zeros(TOKENS, self.experts, dtype=torch.bool, device=device)
        self.routing_map.scatter_(1, self.indices, True)
        self.dense_probs = self.routing_map.float() / TOPK

    @property
    def ranks_per_token(self) -> Any:
        """On how many ranks the experts of each token are."""
        return self.routing_map.view(TOKENS, self.ranks, LOCAL_EXPERTS).any(dim=2).sum(dim=1, keepdim=True)


def _deepep(tokens: Tokens, group: Any) -> tuple[Any, Any]:
    a2a: Any = importlib.import_module(_FUSED_A2A)
    a2a.set_deepep_num_sms(_NUM_SMS)
    received, _, _, _, handle = a2a.fused_dispatch(tokens.x, tokens.indices, tokens.probs, tokens.experts, group)
    return a2a.fused_combine(received, group, handle)[0], tokens.x * tokens.ranks_per_token


def _hybridep(tokens: Tokens, group: Any) -> tuple[Any, Any]:
    a2a: Any = importlib.import_module(_FUSED_A2A)
    sms = {"num_sms_dispatch_api": _NUM_SMS, "num_sms_combine_api": _NUM_SMS}
    received, _, _, _, handle = a2a.hybrid_ep_dispatch(
        tokens.x, tokens.routing_map, tokens.dense_probs, group, LOCAL_EXPERTS, **sms
    )
    return a2a.hybrid_ep_combine(received, handle, None, None), tokens.x * TOPK


def _ncclep(tokens: Tokens, group: Any) -> tuple[Any, Any]:
    a2a: Any = importlib.import_module(_FUSED_A2A)
    capacity = TOKENS * TOPK * tokens.ranks
    a2a.ensure_nccl_ep_bootstrapped(group, tokens.experts, TOKENS, capacity, HIDDEN, num_sms=_NUM_SMS)
    buffer = a2a.new_nccl_ep_buffer(TOPK, TOKENS, capacity, HIDDEN, LOCAL_EXPERTS)
    received, _, _ = a2a.nccl_ep_dispatch(buffer, tokens.x, tokens.indices, tokens.probs)
    return a2a.nccl_ep_combine(buffer, received), tokens.x * TOPK


def _alltoall(tokens: Tokens, group: Any) -> tuple[Any, Any]:
    torch: Any = importlib.import_module("torch")
    there, back = torch.empty_like(tokens.x), torch.empty_like(tokens.x)
    torch.distributed.all_to_all_single(there, tokens.x, group=group)
    torch.distributed.all_to_all_single(back, there, group=group)
    return back, tokens.x


def _allgather(tokens: Tokens, group: Any) -> tuple[Any, Any]:
    torch: Any = importlib.import_module("torch")
    everything = tokens.x.new_empty(TOKENS * tokens.ranks, HIDDEN)
    back = torch.empty_like(tokens.x)
    torch.distributed.all_gather_into_tensor(everything, tokens.x, group=group)
    torch.distributed.reduce_scatter_tensor(back, everything, group=group)
    return back, tokens.x * tokens.ranks


def _permute(tokens: Tokens, _: Any) -> tuple[Any, Any]:
    """Forward and backward of both permutations: result and gradient of each, one below the other."""
    moe: Any = importlib.import_module("megatron.core.transformer.moe.moe_utils")
    torch: Any = importlib.import_module("torch")

    def there_and_back(fused: bool) -> Any:
        x = tokens.x.clone().requires_grad_()
        permuted, _, order, *_ = moe.permute(
            x, tokens.routing_map, probs=tokens.dense_probs, num_out_tokens=TOKENS * TOPK, fused=fused
        )
        back = moe.unpermute(permuted, order, x.shape, routing_map=tokens.routing_map, fused=fused)
        back.sum().backward()
        return torch.cat([back.detach(), x.grad])

    return there_and_back(True), there_and_back(False)


EXCHANGES: Mapping[str, Callable[[Tokens, Any], tuple[Any, Any]]] = {
    "alltoall": _alltoall,
    "allgather": _allgather,
    "deepep": _deepep,
    "hybridep": _hybridep,
    "ncclep": _ncclep,
    PERMUTE_FUSION: _permute,
}
"""What came back and what must come back, by dispatcher."""


def compare(back: Any, expected: Any) -> str:
    """How what came back differs from what must come back; empty when it does not."""
    if not hasattr(back, "shape"):
        return f"{type(back).__name__} came back, but a tensor was expected"
    if back.shape != expected.shape:
        return f"{list(back.shape)} came back, but {list(expected.shape)} were expected"
    wrong = int((back != expected).any(dim=-1).sum())
    return f"{wrong} of {back.shape[0]} rows came back wrong" if wrong else ""


def exchange(name: str) -> Verdict:
    """One rank's part, in this process. Only ever called in a process made for it."""
    started_s = time.monotonic()
    level = "permute" if name == PERMUTE_FUSION else "exchange"
    try:
        difference = _exchange(name)
        error, reason = ("WrongResult", difference) if difference else ("", "")
    except BaseException as failure:  # a broken extension may raise anything
        error = type(failure).__name__
        reason = (str(failure).strip().splitlines() or [error])[0]
    seconds = time.monotonic() - started_s
    return verdict(name, seconds, level=level, error=error, reason=reason, fix=advice(reason, error=error))


def _exchange(name: str) -> str:
    torch: Any = importlib.import_module("torch")
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", rank) if cuda else torch.device("cpu")
    bound = {"device_id": device} if cuda else {}
    if cuda:
        torch.cuda.set_device(device)
    torch.distributed.init_process_group("nccl" if cuda else "gloo", rank=rank, world_size=ranks, **bound)
    back, expected = EXCHANGES[name](Tokens(rank, ranks, device), torch.distributed.group.WORLD)
    if cuda:
        torch.cuda.synchronize()  # kernels fail late
    torch.distributed.barrier()  # another rank may still read from this one's memory
    return compare(back, expected)


def main() -> None:
    """One rank of the exchange that is named on the command line."""
    [name] = sys.argv[1:]
    if name not in EXCHANGES:
        sys.exit(f"unknown exchange {name!r}; legal: {', '.join(EXCHANGES)}")
    answer = Answer()
    answer.reached("permute" if name == PERMUTE_FUSION else "exchange")
    answer.finish(exchange(name))


if __name__ == "__main__":
    main()
