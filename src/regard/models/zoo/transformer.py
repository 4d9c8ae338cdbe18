"""TODO."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

from regard.layers.attention import CrossAttention, SelfAttention
from regard.layers.embedding import Embed
from regard.layers.feedforward import Activation, FeedForward
from regard.layers.join import PostNorm, PreNorm
from regard.layers.patterns import Causal
from regard.layers.positions import Axial, Concatenated, Embedded, Learned, RelativeBias, Rotary, Sinusoid, at
from regard.layers.reversible import Reversible
from regard.layers.scores import AnyScore, Dot
from regard.models.model import Model, Stack
from regard.models.readouts import Vocabulary


def sized(
    chosen: tuple[int, ...], width: int | None, depth: int | None, heads: int | None
) -> tuple[int, int, int]:  # fmt: skip
    """Width, depth and heads as a size has them, where nothing else is said; 64 a head in another width."""
    even = chosen[2] if width is None else max(1, width // 64)
    return width or chosen[0], depth or chosen[1], heads or even


def transformer(
    width: int = 512,
    depth: int = 6,
    heads: int = 8,
    *,
    inner: int | None = None,
    decoder_depth: int | None = None,
    dropout: float = 0.1,
    score: AnyScore = Dot(),  # noqa: B008
    position: Sinusoid | Learned | Axial | Concatenated | Rotary | RelativeBias | None = Sinusoid(),  # noqa: B008
    join: PostNorm | PreNorm | Reversible = PostNorm(),  # noqa: B008
    activation: Activation = "relu",
    tied: bool = True,
    shared: bool = True,
) -> Model:
    """The Transformer of "Attention Is All You Need" (Vaswani 2017); as it stands, its base model.

    `tied`: the readout is the target's embedding (two-way tying); `shared`: so is the source's (three-way).
    Dropout falls on embeddings and on what sublayers say, never on attention weights, as the paper has it.
    """
    feed = FeedForward(inner or 4 * width, activation)
    rotary = cast(Rotary | None, at("attention", position))
    bias = cast(RelativeBias | None, at("stack", position))
    look = SelfAttention(heads, score=score, position=rotary)
    look_back = replace(look, pattern=Causal())
    look_over = CrossAttention(heads, score=score)
    return Model(
        width,
        embed=Embed(cast("Embedded | None", at("embedding", position)), True, dropout),
        encoder=Stack(depth * ((look, feed),), join, dropout, bias),
        decoder=Stack((decoder_depth or depth) * ((look_back, look_over, feed),), join, dropout, bias),
        readout=Vocabulary(tied=tied),
        shared=shared,
    )
