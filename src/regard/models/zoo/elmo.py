"""TODO."""

from __future__ import annotations

from typing import Literal

from regard.layers.bidirectional import Apart, Projected
from regard.layers.character_cnn import Spelled
from regard.layers.embedding import Embed
from regard.layers.join import Replace
from regard.models.model import Model, Stack
from regard.models.readouts import BothWays, Vocabulary


def elmo(
    size: Literal["small", "medium", "original"] = "original",
    *,
    width: int | None = None,
    inner: int | None = None,
    depth: int = 2,
    embed: Spelled | Embed | None = None,
    clip: float | None = 3.0,
    skip: bool = True,
    dropout: float = 0.1,
) -> Model:
    """Embeddings from language models (Peters 2018): one reads from the left, one from the right, words by letters.

    `size`: as published, 13.6, 28 and 93.6 million numbers below the words; `width` (of both readers together), `inner`
    (of each cell) and `embed` say otherwise: `embed = "embed"` looks words up, however they are spelled.
    """
    wide, cells, highways = {"small": (256, 1024, 1), "medium": (512, 2048, 1), "original": (1024, 4096, 2)}[size]
    cell = Projected(inner or cells, clip_held=clip, clip_shown=clip)
    above = (Apart(cell, skip=skip),)
    return Model(
        width or wide,
        embed=embed or Spelled(highways=highways, dropout=dropout),
        encoder=Stack(((Apart(cell),), *(depth - 1) * (above,)), Replace(), dropout),
        readout=BothWays(Vocabulary(tied=False, biased=True)),
    )
