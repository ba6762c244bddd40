"""Initial weights are a function of the place in the whole model, not of the rank."""

import pytest

torch = pytest.importorskip("torch", reason="torch not installed (extra: trial)")

from types import SimpleNamespace  # noqa: E402

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from autotune_trials.native.data import Share  # noqa: E402
from autotune_trials.native.weights import fill, global_name, initialize  # noqa: E402

pytestmark = pytest.mark.trial


def parameter(*shape: int, dim: int = 0, stride: int = 1, split: bool = True) -> torch.nn.Parameter:
    value = torch.nn.Parameter(torch.zeros(*shape))
    value.tensor_model_parallel, value.partition_dim, value.partition_stride = split, dim, stride
    return value


@settings(max_examples=25, deadline=None)
@given(size=st.sampled_from([1, 2, 4]), dim=st.sampled_from([0, 1]), stride=st.sampled_from([1, 2]))
def test_parts_make_up_the_whole_matrix(size: int, dim: int, stride: int) -> None:
    whole = parameter(16, 16)
    fill(whole, "key", 1.0, Share())
    shape = [16, 16]
    shape[dim] //= size
    parts = []
    for rank in range(size):
        part = parameter(*shape, dim=dim, stride=stride)
        fill(part, "key", 1.0, Share(rank, size))
        parts.append(torch.chunk(part.detach(), stride, dim=dim))
    together = torch.cat([part[index] for index in range(stride) for part in parts], dim=dim)
    assert torch.equal(together, whole)


def test_keys_decide_the_values() -> None:
    one, two, other = parameter(64, 64), parameter(64, 64), parameter(64, 64)
    fill(one, "a", 0.5, Share())
    fill(two, "a", 0.5, Share())
    fill(other, "b", 0.5, Share())
    assert torch.equal(one, two)
    assert not torch.equal(one, other)
    assert float(one.detach().std()) == pytest.approx(0.5, rel=0.05)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("decoder.layers.1.self_attention.linear_qkv.weight", "decoder.layers.7.self_attention.linear_qkv.weight"),
        (
            "decoder.layers.0.mlp.experts.local_experts.3.linear_fc1.weight",
            "decoder.layers.5.mlp.experts.local_experts.11.linear_fc1.weight",
        ),
        (
            "decoder.layers.0.mlp.experts.linear_fc2.weight3",
            "decoder.layers.5.mlp.experts.local_experts.11.linear_fc2.weight",
        ),
        ("embedding.word_embeddings.weight", "embedding.word_embeddings.weight"),
    ],
)
def test_local_numbers_become_global(name: str, expected: str) -> None:
    assert global_name(name, [5, 7], first_expert=8) == expected


class Chunk(torch.nn.Module):
    """A stand-in for one stage: the names and marks that the initialisation reads."""

    def __init__(self, layer_numbers: list[int], experts: int) -> None:
        super().__init__()
        self.config = SimpleNamespace(num_moe_experts=4)
        layers = []
        for number in layer_numbers:
            layer = torch.nn.Module()
            layer.layer_number = number  # type: ignore[assignment]
            layer.norm = torch.nn.Parameter(torch.ones(4))
            layer.linear_proj = parameter(8, 4, split=False)
            layer.experts = torch.nn.Module()
            layer.experts.local_experts = torch.nn.ModuleList([torch.nn.Module() for _ in range(experts)])
            for expert in layer.experts.local_experts:
                expert.weight = parameter(8, 4)
            layers.append(layer)
        self.decoder = torch.nn.Module()
        self.decoder.layers = torch.nn.ModuleList(layers)


def matrices(layer_numbers: list[int], experts: int, tensor: Share, expert: Share) -> dict[str, torch.Tensor]:
    chunk = Chunk(layer_numbers, experts)
    initialize(chunk, seed=1, std=0.02, num_layers=2, tensor_parallel=tensor, expert_parallel=expert)
    return {name: value.detach() for name, value in chunk.named_parameters()}


def test_a_stage_with_half_of_the_experts_starts_like_the_whole_model() -> None:
    whole = matrices([1, 2], 4, Share(), Share())
    part = matrices([2], 2, Share(1, 2), Share(1, 2))
    assert torch.equal(part["decoder.layers.0.linear_proj"], whole["decoder.layers.1.linear_proj"])
    experts = "experts.local_experts"
    for local, other in ((0, 2), (1, 3)):
        own = part[f"decoder.layers.0.{experts}.{local}.weight"]
        assert torch.equal(own, whole[f"decoder.layers.1.{experts}.{other}.weight"])
    assert torch.equal(part["decoder.layers.0.norm"], torch.ones(4))
    spread = float(whole["decoder.layers.0.linear_proj"].std())
    assert spread < 0.75 * float(whole[f"decoder.layers.0.{experts}.0.weight"].std())
