"""ELMo, embeddings from language models (Peters 2018): a character CNN below a bidirectional language model (biLM)."""

from __future__ import annotations

from typing import Literal

from regard.layers.bidirectional import BidirectionalLSTM, ProjectedLSTM
from regard.layers.contract import require_counts
from regard.layers.embedding import CharacterCNN, Embed
from regard.layers.join import Replace
from regard.models.model import Model, Stack
from regard.models.readouts import BidirectionalVocabulary, Vocabulary


def elmo(
    size: Literal["small", "medium", "original"] = "original",
    *,
    width: int | None = None,
    inner: int | None = None,
    depth: int = 2,
    embed: CharacterCNN | Embed | None = None,
    clip: float | None = 3.0,
    skip: bool = True,
    dropout: float = 0.1,
) -> Model:
    """ELMo (Peters 2018): a forward and a backward LSTM language model over character-based word vectors.

    `size`: a published one, of 13.6, 28 or 93.6 million parameters without the readout. `width` (of both directions
    together), `inner` (of each cell state) and `embed` override it; `embed = "embed"` is an ordinary embedding table.
    """
    require_counts(width=width, inner=inner, depth=depth)
    published_width, published_inner, highways = {
        "small": (256, 1024, 1), "medium": (512, 2048, 1), "original": (1024, 4096, 2),
    }[size]  # fmt: skip
    cell = ProjectedLSTM(inner or published_inner, cell_clip=clip, projection_clip=clip)
    first, upper = (BidirectionalLSTM(cell),), (BidirectionalLSTM(cell, skip=skip),)
    return Model(
        width or published_width,
        embed=embed or CharacterCNN(highways=highways, dropout=dropout),
        encoder=Stack((first, *(depth - 1) * (upper,)), Replace(), dropout),
        readout=BidirectionalVocabulary(Vocabulary(tied=False, biased=True)),
    )
