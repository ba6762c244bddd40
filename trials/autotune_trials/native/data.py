"""Mock tokens, the same global batch whatever the layout.

Sample ``i`` of step ``s`` is a function of (seed, s, i) alone; a layout only decides which rank sees it.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from autotune_trials.spec import Contract

Batch = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Share:
    """One rank's part of something that ``size`` ranks split."""

    rank: int = 0
    size: int = 1


class MockTokens:
    """The micro-batches of one rank.

    Attributes:
        num_microbatches: Micro-batches per step on this rank.
    """

    def __init__(
        self,
        contract: Contract,
        vocab_size: int,
        micro_batch_size: int,
        data_parallel: Share,
        context_parallel: Share,
        device: torch.device,
    ) -> None:
        self._contract = contract
        self._vocab_size = vocab_size
        self._micro_batch_size = micro_batch_size
        self._data_parallel = data_parallel
        self._context_parallel = context_parallel
        self._device = device
        self.num_microbatches = contract.global_batch_size // (micro_batch_size * data_parallel.size)

    def step(self, step: int) -> list[Batch]:
        """Tokens, labels and positions of every micro-batch of one step, each [micro_batch_size, tokens]."""
        rows, ranks = self._micro_batch_size, self._data_parallel
        positions = torch.arange(self._contract.seq_length).expand(rows, -1)
        batches = []
        for microbatch in range(self.num_microbatches):
            first = (microbatch * ranks.size + ranks.rank) * rows
            samples = torch.stack([self._sample(step, first + row) for row in range(rows)])
            parts = {"tokens": samples[:, :-1], "labels": samples[:, 1:], "position_ids": positions}
            batches.append({name: self._sequence_part(part).to(self._device) for name, part in parts.items()})
        return batches

    def _sequence_part(self, whole: torch.Tensor) -> torch.Tensor:
        """This context-parallel rank's tokens: an early and a late piece, so that attention costs all the same."""
        ranks = self._context_parallel
        pieces = torch.chunk(whole, 2 * ranks.size, dim=1)
        own = whole if ranks.size == 1 else torch.cat([pieces[ranks.rank], pieces[-1 - ranks.rank]], dim=1)
        return own.contiguous()

    def _sample(self, step: int, index: int) -> torch.Tensor:
        """One token more than a sequence: inputs and labels are the same sample, shifted by one."""
        length = self._contract.seq_length + 1
        if self._contract.routing.data_condition == "mock_arange":
            return torch.arange(length) % self._vocab_size
        sample = (self._contract.seed * 1_000_003 + step) * 1_000_003 + index
        generator = torch.Generator().manual_seed(sample % 2**63)
        return torch.randint(self._vocab_size, (length,), generator=generator)


def iterators(batches: list[Batch], num_chunks: int) -> Iterator[Batch] | list[Iterator[Batch]]:
    """What a schedule takes: one iterator per model chunk (each passes over all micro-batches), bare for one chunk."""
    return [iter(batches) for _ in range(num_chunks)] if num_chunks > 1 else iter(batches)
