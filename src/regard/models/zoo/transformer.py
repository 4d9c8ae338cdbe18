"""The Transformer (Vaswani 2017), an encoder-decoder of attention and feed-forward layers."""

from __future__ import annotations

from dataclasses import replace

from regard.layers.attention import CrossAttention, SelfAttention
from regard.layers.contract import require_counts
from regard.layers.embedding import Embed
from regard.layers.feedforward import Activation, FeedForward
from regard.layers.join import PostNorm, PreNorm, ResidualPostNorm
from regard.layers.patterns import Causal
from regard.layers.positions import Position, Sinusoid, position_for
from regard.layers.reversible import Reversible
from regard.layers.scores import Dot, Score
from regard.models.model import Model, Stack
from regard.models.readouts import Vocabulary


def sized(published: tuple[int, ...], width: int | None, depth: int | None, heads: int | None) -> tuple[int, int, int]:
    """Width, depth and heads: the caller's, else those of a published size; another width has heads of 64."""
    require_counts(width=width, depth=depth, heads=heads)
    default_heads = published[2] if width is None else max(1, width // 64)
    return width or published[0], depth or published[1], heads or default_heads


def transformer(
    width: int = 512,
    depth: int = 6,
    heads: int = 8,
    *,
    inner: int | None = None,
    decoder_depth: int | None = None,
    dropout: float = 0.1,
    score: Score = Dot(),  # noqa: B008
    position: Position | None = Sinusoid(),  # noqa: B008
    join: PostNorm | PreNorm | ResidualPostNorm | Reversible = PostNorm(),  # noqa: B008
    activation: Activation = "relu",
    tied: bool = True,
    shared: bool = True,
) -> Model:
    """The Transformer of "Attention Is All You Need" (Vaswani 2017); the defaults are its base model.

    `tied`: the readout has the weights of the target embedding (two-way tying); `shared`: the source embedding has them
    too (three-way tying). Dropout is on embeddings and sublayer outputs, never on attention weights, as in the paper.
    """
    require_counts(width=width, depth=depth, heads=heads, inner=inner, decoder_depth=decoder_depth)
    self_attention = SelfAttention(heads, score=score, position=position_for("attention", position))
    causal_attention = replace(self_attention, pattern=Causal())
    cross_attention = CrossAttention(heads, score=score)
    feed_forward = FeedForward(inner or 4 * width, activation)
    encoder_layer = self_attention, feed_forward
    decoder_layer = causal_attention, cross_attention, feed_forward
    bias = position_for("stack", position)
    return Model(
        width,
        embed=Embed(position_for("embedding", position), scaled=True, dropout=dropout),
        encoder=Stack(depth * (encoder_layer,), join, dropout, bias),
        decoder=Stack((decoder_depth or depth) * (decoder_layer,), join, dropout, bias),
        readout=Vocabulary(tied=tied),
        shared=shared,
    )
