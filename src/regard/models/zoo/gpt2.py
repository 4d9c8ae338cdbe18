"""TODO."""

from __future__ import annotations

from typing import Literal, cast

from regard.layers.attention import SelfAttention
from regard.layers.embedding import Embed
from regard.layers.feedforward import Activation, FeedForward
from regard.layers.join import PostNorm, PreNorm
from regard.layers.patterns import Causal
from regard.layers.positions import Axial, Concatenated, Embedded, Learned, RelativeBias, Rotary, Sinusoid, at
from regard.layers.reversible import Reversible
from regard.layers.scores import AnyScore, Dot
from regard.models.model import Model, Stack
from regard.models.readouts import Vocabulary
from regard.models.zoo.transformer import sized

# Width, depth, heads of the published sizes (Turc 2019 for those below base), and of T5 its inner and key widths.
GPT2 = {"small": (768, 12, 12), "medium": (1024, 24, 16), "large": (1280, 36, 20), "xl": (1600, 48, 25)}


def gpt2(
    width: int | None = None,
    depth: int | None = None,
    heads: int | None = None,
    *,
    size: Literal["small", "medium", "large", "xl"] = "small",
    inner: int | None = None,
    dropout: float = 0.1,
    score: AnyScore = Dot(),  # noqa: B008
    position: Sinusoid | Learned | Axial | Concatenated | Rotary | RelativeBias | None = Learned(1024),  # noqa: B008
    join: PostNorm | PreNorm | Reversible = PreNorm(),  # noqa: B008
    activation: Activation = "gelu_tanh",
    tied: bool = True,
) -> Model:
    """The decoder alone, a language model (Radford 2019); `size` is a published one, unless widths are said."""
    width, depth, heads = sized(GPT2[size], width, depth, heads)
    rotary = cast(Rotary | None, at("attention", position))
    look_back = SelfAttention(heads, pattern=Causal(), score=score, position=rotary)
    return Model(
        width,
        embed=Embed(cast("Embedded | None", at("embedding", position)), False, dropout),
        decoder=Stack(
            depth * ((look_back, FeedForward(inner or 4 * width, activation)),),
            join,
            dropout,
            cast(RelativeBias | None, at("stack", position)),
        ),
        readout=Vocabulary(tied=tied),
    )
