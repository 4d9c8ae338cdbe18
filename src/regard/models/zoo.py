"""The models of the lineage, each one readable function: arguments in, a description out."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

from regard.models.model import Model
from regard.models.readout import Vocabulary
from regard.models.stack import AnySublayer, Stack
from regard.parts.attention import CrossAttention, SelfAttention
from regard.parts.attentive import After, Attentional, Attentive, Before
from regard.parts.cell import GRU, LSTM, Cell
from regard.parts.embed import Embed
from regard.parts.feedforward import Activation, FeedForward
from regard.parts.join import PostNorm, PreNorm, Replace
from regard.parts.pattern import Causal, Everything, Look
from regard.parts.position import Concatenated, Learned, RelativeBias, Rotary, Sinusoid, at
from regard.parts.recurrent import Bridged, Carried, Reads, Recurrent
from regard.parts.reversible import Reversible
from regard.parts.score import Additive, AnyScore, Dot, General


def seq2seq(
    width: int = 1000,
    depth: int = 4,
    *,
    cell: Cell = LSTM(),  # noqa: B008 (descriptions are frozen)
    reads: Reads = "backward",
    dropout: float = 0.0,
    tied: bool = False,
    shared: bool = False,
) -> Model:
    """Sequence to sequence learning (Sutskever 2014): all the decoder knows of the source is the encoder's last state.

    `reads`: "backward" is the paper's reversed source, which brings first words near each other.
    """
    encoder = Recurrent(cell, depth, reads, dropout)
    decoder = Recurrent(cell, depth, dropout=dropout, begin=Carried())
    return _recurrent(width, (encoder,), (decoder,), dropout, tied, shared)


def bahdanau(
    width: int = 1000,
    depth: int = 1,
    *,
    cell: Cell = GRU(),  # noqa: B008
    reads: Reads = "both",
    score: AnyScore = Additive(),  # noqa: B008
    see: Look = Everything(),  # noqa: B008
    dropout: float = 0.0,
    tied: bool = False,
    shared: bool = False,
) -> Model:
    """Learning to align and translate (Bahdanau 2014): the decoder's last state asks the source before its cell reads.

    Each direction of the encoder has half the width.
    """
    encoder = Recurrent(cell, depth, reads, dropout)
    decoder = Attentive(Before(), cell, depth, score, see, Bridged(), dropout)
    return _recurrent(width, (encoder,), (decoder,), dropout, tied, shared)


def luong(
    width: int = 1000,
    depth: int = 4,
    *,
    cell: Cell = LSTM(),  # noqa: B008
    reads: Reads = "backward",
    score: AnyScore = General(),  # noqa: B008
    see: Look = Everything(),  # noqa: B008
    feeding: bool = True,
    dropout: float = 0.2,
    tied: bool = False,
    shared: bool = False,
) -> Model:
    """Effective approaches to attention (Luong 2015): the decoder's new state asks the source after its cell has read.

    `see`: everything ("global"), local_m or local_p. `feeding`: what came of asking is read beside the next token;
    without it no step waits for another, and the whole target is read at once. `score = "uniform"` is mean pooling.
    """
    encoder = Recurrent(cell, depth, reads, dropout)
    begin = Carried() if reads != "both" else Bridged()
    waiting = (Attentive(After(), cell, depth, score, see, begin, dropout),)
    at_once = Recurrent(cell, depth, dropout=dropout, begin=begin), Attentional(score, see)
    return _recurrent(width, (encoder,), waiting if feeding else at_once, dropout, tied, shared)


def _recurrent(
    width: int,
    encoder: tuple[AnySublayer, ...],
    decoder: tuple[AnySublayer, ...],
    dropout: float,
    tied: bool,
    shared: bool,
) -> Model:
    """An encoder and a decoder of one layer each, with neither residual nor norm."""
    return Model(
        width,
        embed=Embed(scaled=True, dropout=dropout),
        encoder=Stack((encoder,), Replace(), dropout),
        decoder=Stack((decoder,), Replace(), dropout),
        readout=Vocabulary(tied=tied, biased=True),
        shared=shared,
    )


def transformer(
    width: int = 512,
    depth: int = 6,
    heads: int = 8,
    *,
    inner: int | None = None,
    decoder_depth: int | None = None,
    dropout: float = 0.1,
    score: AnyScore = Dot(),  # noqa: B008
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
    score: AnyScore = Dot(),  # noqa: B008
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
