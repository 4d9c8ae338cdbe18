"""The models of the lineage, each one readable function: arguments in, a description out."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

from regard.models.model import Model
from regard.models.readout import Vocabulary
from regard.models.stack import Stack
from regard.parts.attention import CrossAttention, SelfAttention
from regard.parts.embed import Embed
from regard.parts.feedforward import Activation, FeedForward
from regard.parts.join import PostNorm, PreNorm
from regard.parts.pattern import Causal
from regard.parts.position import Concatenated, Learned, RelativeBias, Rotary, Sinusoid, at
from regard.parts.reversible import Reversible
from regard.parts.score import Additive, Dot, General, ReducedRank


def transformer(
    width: int = 512,
    depth: int = 6,
    heads: int = 8,
    *,
    inner: int | None = None,
    decoder_depth: int | None = None,
    dropout: float = 0.1,
    score: Dot | General | ReducedRank | Additive = Dot(),  # noqa: B008 (descriptions are frozen)
    position: Sinusoid | Learned | Concatenated | Rotary | RelativeBias | None = Sinusoid(),  # noqa: B008
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
    look_back = replace(look, see=Causal())
    look_over = CrossAttention(heads, score=score)
    return Model(
        width,
        embed=Embed(cast("Sinusoid | Learned | Concatenated | None", at("embedding", position)), True, dropout),
        encoder=Stack(depth * ((look, feed),), join, dropout, bias),
        decoder=Stack((decoder_depth or depth) * ((look_back, look_over, feed),), join, dropout, bias),
        readout=Vocabulary(tied=tied),
        shared=shared,
    )


def gpt2(
    width: int = 768,
    depth: int = 12,
    heads: int = 12,
    *,
    inner: int | None = None,
    dropout: float = 0.1,
    score: Dot | General | ReducedRank | Additive = Dot(),  # noqa: B008
    position: Sinusoid | Learned | Concatenated | Rotary | RelativeBias | None = Learned(1024),  # noqa: B008
    join: PostNorm | PreNorm | Reversible = PreNorm(),  # noqa: B008
    activation: Activation = "gelu_tanh",
    tied: bool = True,
) -> Model:
    """The decoder alone, a language model (Radford 2019); as it stands, the smallest published size."""
    rotary = cast(Rotary | None, at("attention", position))
    look_back = SelfAttention(heads, see=Causal(), score=score, position=rotary)
    return Model(
        width,
        embed=Embed(cast("Sinusoid | Learned | Concatenated | None", at("embedding", position)), False, dropout),
        decoder=Stack(
            depth * ((look_back, FeedForward(inner or 4 * width, activation)),),
            join,
            dropout,
            cast(RelativeBias | None, at("stack", position)),
        ),
        readout=Vocabulary(tied=tied),
    )
