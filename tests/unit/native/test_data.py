"""Mock tokens are the same global batch whatever the layout."""

import pytest

torch = pytest.importorskip("torch", reason="torch not installed (extra: trial)")

from dataclasses import replace  # noqa: E402

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from autotune_trials.native.data import MockTokens, Share, iterators  # noqa: E402
from autotune_trials.spec import Contract, Routing  # noqa: E402

pytestmark = pytest.mark.trial

CPU = torch.device("cpu")
VOCABULARY = 100
CONTRACT = Contract(seq_length=8, global_batch_size=12, seed=5)
SIZES = st.sampled_from([(1, 1), (1, 12), (2, 3), (3, 4), (4, 1), (6, 2), (12, 1)])


ALONE = Share()


def tokens(contract: Contract, data: Share = ALONE, context: Share = ALONE, rows: int = 1) -> MockTokens:
    return MockTokens(contract, VOCABULARY, rows, data, context, CPU)


def global_batch(contract: Contract, ranks: int, rows: int, step: int) -> list[tuple[int, ...]]:
    """All samples of a step, over all ranks."""
    samples = []
    for rank in range(ranks):
        for batch in tokens(contract, Share(rank, ranks), rows=rows).step(step):
            assert batch["tokens"].shape == batch["labels"].shape == batch["position_ids"].shape == (rows, 8)
            samples += [
                (*map(int, row), int(label[-1])) for row, label in zip(batch["tokens"], batch["labels"], strict=True)
            ]
    return sorted(samples)


@settings(max_examples=25, deadline=None)
@given(size=SIZES, step=st.integers(1, 10_000), seed=st.integers(0, 2**40))
def test_every_layout_sees_the_same_samples(size: tuple[int, int], step: int, seed: int) -> None:
    contract = replace(CONTRACT, seed=seed)
    ranks, rows = size
    assert global_batch(contract, ranks, rows, step) == global_batch(contract, 1, 1, step)


@settings(max_examples=25, deadline=None)
@given(ranks=st.sampled_from([1, 2, 4]), step=st.integers(1, 100))
def test_context_parallel_parts_make_up_the_sequence(ranks: int, step: int) -> None:
    whole = tokens(CONTRACT).step(step)[0]
    parts = [tokens(CONTRACT, context=Share(rank, ranks)).step(step)[0] for rank in range(ranks)]
    for name, value in whole.items():
        together = torch.cat([part[name] for part in parts], dim=1)
        order = torch.argsort(torch.cat([part["position_ids"] for part in parts], dim=1)[0])
        assert torch.equal(together[:, order], value)
        assert len({part[name].shape for part in parts}) == 1
    # Early and late tokens in every part: the work of causal attention grows with the position.
    assert len({int(part["position_ids"].sum()) for part in parts}) == 1


def test_labels_are_the_next_tokens() -> None:
    batch = tokens(CONTRACT).step(1)[0]
    assert torch.equal(batch["tokens"][:, 1:], batch["labels"][:, :-1])
    assert 0 <= int(batch["tokens"].min()) <= int(batch["tokens"].max()) < VOCABULARY


def test_steps_and_seeds_differ_and_repeat() -> None:
    first, again = tokens(CONTRACT).step(1), tokens(CONTRACT).step(1)
    assert all(torch.equal(one["tokens"], two["tokens"]) for one, two in zip(first, again, strict=True))
    others = [tokens(CONTRACT).step(2), tokens(replace(CONTRACT, seed=6)).step(1)]
    assert all(not torch.equal(first[0]["tokens"], other[0]["tokens"]) for other in others)


def test_arange_counts_through_the_vocabulary() -> None:
    contract = replace(CONTRACT, seq_length=150, routing=Routing(data_condition="mock_arange"))
    row = tokens(contract).step(3)[0]["tokens"][0]
    assert row.tolist() == [position % VOCABULARY for position in range(150)]


def test_every_chunk_gets_its_own_pass_over_the_micro_batches() -> None:
    batches = tokens(CONTRACT).step(1)
    several = iterators(batches, 2)
    assert isinstance(several, list)
    assert [len(list(item)) for item in several] == [12, 12]
    assert len(list(iterators(batches, 1))) == 12  # type: ignore[arg-type]
