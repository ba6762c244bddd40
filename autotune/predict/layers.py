"""What each layer of a model is, and which layers each pipeline rank holds.

A *block* is what one letter of a pipeline layout places: a token mixer, a feed-forward part, or both. Predictions work
on blocks and how many of each there are, never on layers one by one.
"""

from collections import Counter
from dataclasses import dataclass
from functools import lru_cache

from autotune_policies.layout import layout_stages
from autotune_trials.spec import ModelShape


@dataclass(frozen=True)
class Block:
    """One kind of layer.

    Attributes:
        mixer: ``mha`` (also grouped-query), ``mla``, ``compressed``, ``gdn`` or ``mamba``; None = no token mixer.
        feed_forward: ``dense`` or ``moe``; None = no feed-forward part.
        window: Tokens that attention sees; None = the whole sequence.
        compression: Compressed attention: tokens that one key/value entry stands for; 0 = no such entries.
    """

    mixer: str | None
    feed_forward: str | None
    window: int | None = None
    compression: int = 0


@dataclass(frozen=True)
class Chunk:
    """What one virtual pipeline stage holds.

    Attributes:
        blocks: Kinds of decoder layers with how many of each.
        mtp_layers: Multi-token-prediction layers.
        embedding: Whether it holds the embedding.
        loss: Whether it holds the output layer and the loss.
    """

    blocks: tuple[tuple[Block, int], ...]
    mtp_layers: int = 0
    embedding: bool = False
    loss: bool = False


@lru_cache(maxsize=256)
def decoder_blocks(model: ModelShape) -> tuple[Block, ...]:
    """The decoder layers from the first to the last, multi-token-prediction layers left out.

    Raises:
        ValueError: a letter of a hybrid pattern that has no meaning.
    """
    return tuple(_block(model, letter, index) for index, letter in enumerate(model.layer_kinds))


@lru_cache(maxsize=256)
def mtp_blocks(model: ModelShape) -> tuple[Block, ...]:
    """The blocks of one multi-token-prediction layer: those of its own pattern, or another last decoder layer."""
    if not model.mtp_num_layers:
        return ()
    if model.mtp_hybrid_pattern is not None:
        return tuple(_block(model, letter, model.num_layers) for letter in model.mtp_hybrid_pattern)
    return (_block(model, model.layer_kinds[-1], model.num_layers),)


def _block(model: ModelShape, letter: str, index: int) -> Block:
    routed = "moe" if model.num_experts is not None else "dense"
    single = {"M": Block("mamba", None), "*": Block(model.attention, None), "E": Block(None, routed)}
    if letter in single:
        return single[letter]
    if letter == "-":
        return Block(None, "dense")
    feed_forward = "dense" if index < model.num_dense_layers else routed
    if letter == "g":
        return Block("gdn", feed_forward)
    if letter not in "aw":
        raise ValueError(f"layer letter {letter!r} must be one of a, w, g, M, *, E, -")
    ratios = model.kv_compression.split(",") if model.kv_compression else []
    ratio = int(ratios[index]) if index < len(ratios) else 0
    return Block(model.attention, feed_forward, model.sliding_window if letter == "w" else None, ratio)


@lru_cache(maxsize=1024)
def assumed_layout(model: ModelShape, stages: int) -> str | None:
    """The layout that a run must have used where an even split is impossible; null where the split is even.

    The last stage is lighter, since it also holds the loss and the multi-token-prediction layers.
    """
    if model.num_layers < stages or model.num_layers % stages == 0:
        return None
    # Each output layer (one more per multi-token-prediction layer) weighs about as much as a decoder layer.
    logits = 0.9 * (1 + model.mtp_num_layers)
    share = (model.num_layers + model.mtp_num_layers + logits) / stages
    last = max(0, min(round(share - model.mtp_num_layers - logits), model.num_layers - (stages - 1)))
    even, more = divmod(model.num_layers - last, stages - 1)
    counts = [even + (index >= stages - 1 - more) for index in range(stages - 1)]
    texts = ["t" * count for count in counts] + ["t" * last + "m" * model.mtp_num_layers + "L"]
    return "E" + "|".join(texts)


@lru_cache(maxsize=4096)
def pipeline_chunks(
    model: ModelShape, pipeline_parallel: int, virtual_pipeline: int, layout: str | None
) -> tuple[Chunk, ...]:
    """The virtual stages in layer order.

    Stage ``i`` is chunk ``i // pipeline_parallel`` of rank ``i % pipeline_parallel``. Without a layout, layers are
    spread evenly, or as :func:`assumed_layout` has it where that is impossible.

    Raises:
        ValueError: the layout has another number of stages or of decoder layers than the model.
        PolicyError: the layout is outside the grammar.
    """
    blocks = decoder_blocks(model)
    stages = pipeline_parallel * virtual_pipeline
    layout = layout if layout is not None else assumed_layout(model, stages)
    letters = layout_stages(layout) if layout is not None else _even(len(blocks), stages, model.mtp_num_layers)
    if len(letters) != stages:
        raise ValueError(f"pipeline_layout has {len(letters)} stages, but pipeline x virtual stages are {stages}")
    placed = sum(text.count("t") for text in letters)
    if placed != len(blocks):
        raise ValueError(f"pipeline_layout places {placed} decoder layers, but the model has {len(blocks)}")
    chunks: list[Chunk] = []
    known: dict[Chunk, Chunk] = {}
    first = 0
    for text in letters:
        count = text.count("t")
        counted = Counter(blocks[first : first + count])
        chunk = Chunk(tuple(counted.items()), text.count("m"), "E" in text, "L" in text)
        chunks.append(known.setdefault(chunk, chunk))  # equal chunks are one object: worked out once
        first += count
    return tuple(chunks)


def _even(layers: int, stages: int, mtp_layers: int) -> tuple[str, ...]:
    share, left = divmod(layers, stages)
    texts = ["t" * (share + (index < left)) for index in range(stages)]
    texts[0] = "E" + texts[0]
    texts[-1] += "m" * mtp_layers + "L"
    return tuple(texts)
