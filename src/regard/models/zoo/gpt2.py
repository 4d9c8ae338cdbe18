"""GPT-2 (Radford 2019): a Transformer decoder as a language model."""

from __future__ import annotations

from typing import Literal

from regard.layers.attention import SelfAttention
from regard.layers.contract import require_counts
from regard.layers.embedding import Embed
from regard.layers.feedforward import Activation, FeedForward
from regard.layers.join import PostNorm, PreNorm, ResidualPostNorm
from regard.layers.patterns import Causal, Pattern
from regard.layers.positions import Learned, Position, position_for
from regard.layers.reversible import Reversible
from regard.layers.scores import Dot, Score
from regard.models.model import Model, Stack
from regard.models.readouts import Vocabulary
from regard.models.zoo.transformer import sized

# Width, depth and heads of the published sizes.
GPT2 = {"small": (768, 12, 12), "medium": (1024, 24, 16), "large": (1280, 36, 20), "xl": (1600, 48, 25)}


def gpt2(
    width: int | None = None,
    depth: int | None = None,
    heads: int | None = None,
    *,
    size: Literal["small", "medium", "large", "xl"] = "small",
    inner: int | None = None,
    dropout: float = 0.1,
    score: Score = Dot(),  # noqa: B008
    pattern: Pattern = Causal(),  # noqa: B008
    position: Position | None = Learned(1024),  # noqa: B008
    join: PostNorm | PreNorm | ResidualPostNorm | Reversible = PreNorm(),  # noqa: B008
    activation: Activation = "gelu_tanh",
    tied: bool = True,
) -> Model:
    """GPT-2 (Radford 2019), a causal language model; `size` is a published one, which width, depth, heads override.

    `pattern`: which positions a query attends to; `window` restricts it to the last ones.
    """
    require_counts(inner=inner)
    width, depth, heads = sized(GPT2[size], width, depth, heads)
    attention = SelfAttention(heads, pattern, score, position_for("attention", position))
    layer = attention, FeedForward(inner or 4 * width, activation)
    return Model(
        width,
        embed=Embed(position_for("embedding", position), dropout=dropout),
        decoder=Stack(depth * (layer,), join, dropout, position_for("stack", position)),
        readout=Vocabulary(tied=tied),
    )
