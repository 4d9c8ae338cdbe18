"""BERT (Devlin 2018): a Transformer encoder as a masked language model."""

from __future__ import annotations

from typing import Literal

from regard.layers.attention import SelfAttention
from regard.layers.contract import require_counts
from regard.layers.embedding import Embed
from regard.layers.feedforward import Activation, FeedForward
from regard.layers.join import LayerNorm, PostNorm, PreNorm, ResidualPostNorm
from regard.layers.positions import Learned, Position, position_for
from regard.layers.reversible import Reversible
from regard.layers.scores import Dot, Score
from regard.models.model import Model, Stack
from regard.models.readouts import NEXT_SENTENCE, Label, Transform, Vocabulary
from regard.models.zoo.transformer import sized

# Width, depth and heads of the published sizes (Turc 2019 for those below base).
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
    score: Score = Dot(),  # noqa: B008
    position: Position | None = None,
    join: PostNorm | PreNorm | ResidualPostNorm | Reversible = PostNorm(LayerNorm(1e-12)),  # noqa: B008
    activation: Activation = "gelu",
    next_sentence: bool = False,
) -> Model:
    """BERT (Devlin 2018), a masked language model; `size` is a published one, which width, depth, heads override.

    `position`: by default learned, `max_positions` of them. `next_sentence`: adds the auxiliary readout of next
    sentence prediction.
    """
    require_counts(inner=inner, max_positions=max_positions)
    width, depth, heads = sized(BERT[size], width, depth, heads)
    position = position or Learned(max_positions)
    attention = SelfAttention(heads, score=score, position=position_for("attention", position))
    layer, norm = (attention, FeedForward(inner or 4 * width, activation)), LayerNorm(1e-12)
    return Model(
        width,
        embed=Embed(position_for("embedding", position), dropout=dropout, segments=2, norm=norm),
        encoder=Stack(depth * (layer,), join, dropout, position_for("stack", position)),
        readout=Vocabulary(biased=True, transform=Transform(activation, norm)),
        auxiliary=Label(NEXT_SENTENCE, dropout=dropout) if next_sentence else None,
    )
