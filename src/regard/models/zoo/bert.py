"""TODO."""

from __future__ import annotations

from typing import Literal, cast

from regard.layers.attention import SelfAttention
from regard.layers.embedding import Embed
from regard.layers.feedforward import Activation, FeedForward
from regard.layers.join import PostNorm, PreNorm
from regard.layers.linear import LayerNorm
from regard.layers.positions import Learned, RelativeBias, Rotary, Sinusoid, at
from regard.layers.reversible import Reversible
from regard.layers.scores import AnyScore, Dot
from regard.models.model import Model, Stack
from regard.models.readouts import NEXT_SENTENCE, Label, Transform, Vocabulary
from regard.models.zoo.transformer import sized

BERT = {
    "tiny": (128, 2, 2), "mini": (256, 4, 4), "small": (512, 4, 8), "medium": (512, 8, 8), "base": (768, 12, 12),
    "large": (1024, 24, 16),
}  # fmt: skip


def bert(
    width: int | None = None,
    depth: int | None = None,
    heads: int | None = None,
    *,
    size: Literal["tiny", "mini", "small", "medium", "base", "large"] = "base",
    inner: int | None = None,
    max_positions: int = 512,
    dropout: float = 0.1,
    score: AnyScore = Dot(),  # noqa: B008
    position: Learned | Sinusoid | Rotary | RelativeBias | None = None,
    join: PostNorm | PreNorm | Reversible = PostNorm(LayerNorm(1e-12)),  # noqa: B008
    activation: Activation = "gelu",
    next_sentence: bool = False,
) -> Model:
    """The encoder alone, which fills in masked words (Devlin 2018); `size` is a published one, unless widths are said.

    `position`: learned up to `longest` when not said. `next_sentence`: says besides whether a second text follows the
    first.
    """
    width, depth, heads = sized(BERT[size], width, depth, heads)
    position = position or Learned(max_positions)
    look = SelfAttention(heads, score=score, position=cast(Rotary | None, at("attention", position)))
    bias = cast(RelativeBias | None, at("stack", position))
    norm = LayerNorm(1e-12)
    return Model(
        width,
        embed=Embed(cast("Learned | None", at("embedding", position)), dropout=dropout, segments=2, norm=norm),
        encoder=Stack(depth * ((look, FeedForward(inner or 4 * width, activation)),), join, dropout, bias),
        readout=Vocabulary(biased=True, transform=Transform(activation, norm)),
        auxiliary=Label(NEXT_SENTENCE, dropout=dropout) if next_sentence else None,
    )
