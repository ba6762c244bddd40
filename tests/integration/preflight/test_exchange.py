"""The exchange for real between two processes over gloo; the libraries are stand-ins that move tokens with it."""

import importlib.util
from pathlib import Path

import pytest

from autotune_trials.preflight.exchange import PERMUTE_FUSION
from autotune_trials.preflight.node import run_exchange

pytestmark = [
    pytest.mark.trial,
    pytest.mark.skipif(
        any(importlib.util.find_spec(name) is None for name in ("torch", "megatron")),
        reason="torch and megatron not installed (extra: trial)",
    ),
]

STAND_IN = """
import torch
import torch.distributed as dist

def set_deepep_num_sms(num_sms):
    assert num_sms % 2 == 0

def _everything(x):
    parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, x)
    return torch.cat(parts)

def _sum(rows, where, like):
    whole = torch.zeros(like[0] * dist.get_world_size(), like[1]).index_add_(0, where, rows.float())
    dist.all_reduce(whole)
    return whole.view(dist.get_world_size(), *like)[dist.get_rank()].bfloat16()

def _mine(routing_map):
    local = routing_map.shape[1] // dist.get_world_size()
    return routing_map[:, dist.get_rank() * local : (dist.get_rank() + 1) * local]

def fused_dispatch(x, indices, probs, num_experts, group):
    routing_map = torch.zeros(len(x), num_experts, dtype=torch.bool).scatter_(1, indices, True)
    where = _mine(_everything(routing_map)).any(dim=1).nonzero()[:, 0]
    return _everything(x)[where], None, None, None, (where, x.shape)

def fused_combine(received, group, handle):
    return (_sum(received, *handle) DAMAGE, None)

def hybrid_ep_dispatch(x, routing_map, probs, group, num_local_experts, **sms):
    where = _mine(_everything(routing_map)).nonzero()[:, 0]
    return _everything(x)[where], None, None, None, (where, x.shape)

def hybrid_ep_combine(received, handle, num_permuted_tokens, pad_multiple):
    return _sum(received, *handle)

def ensure_nccl_ep_bootstrapped(group, num_experts, max_tokens, capacity, hidden, num_sms=0):
    assert capacity >= max_tokens

def new_nccl_ep_buffer(top_k, max_tokens, capacity, hidden, num_local_experts):
    return {}

def nccl_ep_dispatch(buffer, tokens, topk_idx, topk_weights):
    routing_map = torch.zeros(len(tokens), 4 * dist.get_world_size(), dtype=torch.bool).scatter_(1, topk_idx, True)
    buffer["handle"] = _mine(_everything(routing_map)).nonzero()[:, 0], tokens.shape
    return _everything(tokens)[buffer["handle"][0]], None, None

def nccl_ep_combine(buffer, received):
    return _sum(received, *buffer["handle"])
"""
PERMUTE = """
import torch

def permute(tokens, routing_map, probs=None, num_out_tokens=None, fused=False):
    where = routing_map.T.nonzero()[:, 1]
    return tokens[where] DAMAGE, None, where, None, None

def unpermute(permuted, where, restore_shape, routing_map=None, fused=False):
    return torch.zeros(restore_shape, dtype=permuted.dtype).index_add_(0, where, permuted)
"""


def plant(folder: Path, damage: str = "") -> dict[str, str]:
    """Megatron-Core's two modules that the exchange calls, with stand-ins for the libraries."""
    package = folder / "megatron" / "core" / "transformer" / "moe"
    package.mkdir(parents=True)
    for level in (package, *package.parents[:3]):
        (level / "__init__.py").touch()
    (package / "fused_a2a.py").write_text(STAND_IN.replace("DAMAGE", damage))
    (package / "moe_utils.py").write_text(PERMUTE.replace("DAMAGE", f"{damage} * fused" if damage else ""))
    return {"PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}


@pytest.mark.parametrize("name", ["alltoall", "allgather"])
def test_collectives(name: str) -> None:
    found = run_exchange(name, 2, {"OMP_NUM_THREADS": "1"}, timeout_s=60.0)
    assert (found["available"], found["reason"]) == (True, "")


@pytest.mark.parametrize("name", ["deepep", "hybridep", "ncclep"])
def test_a_library_that_moves_tokens_as_megatron_expects(tmp_path: Path, name: str) -> None:
    found = run_exchange(name, 2, plant(tmp_path), timeout_s=60.0)
    assert (found["available"], found["reason"]) == (True, "")


def test_a_library_that_damages_tokens(tmp_path: Path) -> None:
    found = run_exchange("deepep", 2, plant(tmp_path, "+ (torch.arange(512) == 7)[:, None]"), timeout_s=60.0)
    assert (found["error"], found["reason"]) == ("WrongResult", "1 of 512 rows came back wrong")


def test_a_fused_permutation_that_is_right_and_one_that_is_not(tmp_path: Path) -> None:
    right = run_exchange(PERMUTE_FUSION, 1, plant(tmp_path / "right"), timeout_s=60.0)
    assert (right["available"], right["reason"]) == (True, "")
    wrong = run_exchange(PERMUTE_FUSION, 1, plant(tmp_path / "wrong", "+ 1"), timeout_s=60.0)
    assert (wrong["error"], wrong["level"]) == ("WrongResult", "permute")


def test_the_real_megatron_core_refuses_a_fused_permutation_without_transformer_engine() -> None:
    if importlib.util.find_spec("transformer_engine") is not None:
        pytest.skip("transformer_engine is installed")
    found = run_exchange(PERMUTE_FUSION, 1, {"OMP_NUM_THREADS": "1"}, timeout_s=120.0)
    assert (found["available"], found["level"]) == (False, "permute")
    assert "TE" in found["reason"]
