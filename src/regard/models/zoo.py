"""The models of the lineage, each one readable function: arguments in, a description out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Literal, cast

from regard.errors import InputError
from regard.models.model import Model
from regard.models.pooled import NEXT_SENTENCE, Label
from regard.models.readout import BothWays, Transform, Vocabulary
from regard.models.sizes import BERT, GPT2, T5, sized
from regard.models.stack import AnySublayer, Stack
from regard.parts.apart import Apart, Projected
from regard.parts.attention import CrossAttention, SelfAttention
from regard.parts.attentive import After, Attentional, Attentive, Before
from regard.parts.cell import GRU, LSTM, Cell
from regard.parts.embed import Embed
from regard.parts.feedforward import Activation, Boom, FeedForward
from regard.parts.gated import GatedAttention
from regard.parts.join import LayerNorm, PostNorm, PreNorm, Replace, RMSNorm, TwinNorm
from regard.parts.lsh import LSHAttention
from regard.parts.meeting import Chunks, Ranks, Whole
from regard.parts.pattern import Causal, Everything, Look, Window
from regard.parts.position import Axial, Concatenated, Embedded, Learned, RelativeBias, Rotary, Sinusoid, at
from regard.parts.recurrent import Bridged, Carried, Reads, Recurrent
from regard.parts.reversible import Reversible
from regard.parts.score import Additive, AnyScore, Dot, General
from regard.parts.spelling import Spelled


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
    look_back = replace(look, see=Causal())
    look_over = CrossAttention(heads, score=score)
    return Model(
        width,
        embed=Embed(cast("Embedded | None", at("embedding", position)), True, dropout),
        encoder=Stack(depth * ((look, feed),), join, dropout, bias),
        decoder=Stack((decoder_depth or depth) * ((look_back, look_over, feed),), join, dropout, bias),
        readout=Vocabulary(tied=tied),
        shared=shared,
    )


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
    look_back = SelfAttention(heads, see=Causal(), score=score, position=rotary)
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


def bert(
    width: int | None = None,
    depth: int | None = None,
    heads: int | None = None,
    *,
    size: Literal["tiny", "mini", "small", "medium", "base", "large"] = "base",
    inner: int | None = None,
    longest: int = 512,
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
    position = position or Learned(longest)
    look = SelfAttention(heads, score=score, position=cast(Rotary | None, at("attention", position)))
    bias = cast(RelativeBias | None, at("stack", position))
    norm = LayerNorm(1e-12)
    return Model(
        width,
        embed=Embed(cast("Learned | None", at("embedding", position)), dropout=dropout, segments=2, norm=norm),
        encoder=Stack(depth * ((look, FeedForward(inner or 4 * width, activation)),), join, dropout, bias),
        readout=Vocabulary(biased=True, transform=Transform(activation, norm)),
        aside=Label(NEXT_SENTENCE, dropout=dropout) if next_sentence else None,
    )


def t5(
    width: int | None = None,
    depth: int | None = None,
    heads: int | None = None,
    *,
    size: Literal["small", "base", "large", "3b", "11b"] = "small",
    version: Literal["1.0", "1.1"] = "1.1",
    inner: int | None = None,
    key_width: int | None = None,
    decoder_depth: int | None = None,
    dropout: float = 0.1,
    position: RelativeBias | Rotary | None = RelativeBias(),  # noqa: B008
    join: PreNorm | Reversible = PreNorm(RMSNorm()),  # noqa: B008
) -> Model:
    """Text to text (Raffel 2019): no biases, no scale in the dot product, a learnt bias for each distance.

    `version` "1.0" has ReLU and ties the readout to the embedding; "1.1" gates the feed-forward and ties nothing.
    """
    chosen = T5[version, size]
    inner = inner or (4 * width if width else chosen[3])
    key_width = key_width or (None if width or heads else chosen[4])
    width, depth, heads = sized(chosen[:3], width, depth, heads)
    gated = version == "1.1"
    rotary = cast(Rotary | None, at("attention", position))
    bias = cast(RelativeBias | None, at("stack", position))
    score = Dot(scaled=False)
    look = SelfAttention(heads, score=score, position=rotary, key_width=key_width, biased=False)
    look_over = CrossAttention(heads, score=score, key_width=key_width, biased=False)
    feed = FeedForward(inner, "gelu_tanh" if gated else "relu", gated=gated, biased=False, dropout=dropout)
    return Model(
        width,
        embed=Embed(dropout=dropout, spread=1.0),
        encoder=Stack(depth * ((look, feed),), join, dropout, bias),
        decoder=Stack(
            (decoder_depth or depth) * ((replace(look, see=Causal()), look_over, feed),), join, dropout, bias
        ),
        readout=Vocabulary(tied=not gated, scaled=not gated),
    )


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


def reformer(
    width: int = 256,
    depth: int = 6,
    heads: int = 4,
    *,
    shape: Literal["decoder", "encoder", "both"] = "decoder",
    attention: tuple[Literal["local", "lsh", "full"], ...] = ("local", "lsh"),
    see: Ranks | Chunks = Ranks(),  # noqa: B008
    buckets: int | tuple[int, ...] | None = 64,
    rounds: int = 2,
    inner: int | None = None,
    dropout: float = 0.05,
    position: Axial | Sinusoid | Learned | None = Axial((1024, 1024)),  # noqa: B008
    local: Rotary | None = Rotary(),  # noqa: B008
    join: Reversible | PreNorm = Reversible(),  # noqa: B008
    activation: Activation = "relu",
    tied: bool = True,
) -> Model:
    """The Reformer (Kitaev 2020): long texts, since a token asks only whom it shares a bucket with, or its neighbours.

    `attention`: which kind each layer has, from the first on and over again. `see`: `ranks`, which keeps every law, or
    the published `chunks`. Longer texts want more buckets, a million tokens (128, 128). `local`: positions within local
    attention besides those of the text; published ones have none. `shape`: a language model, a reader of masked words,
    or a translator.
    """
    if not attention:
        raise InputError('a layer needs a kind of attention (model.attention). Use ["local", "lsh"].')

    def layers(causal: bool, *besides: AnySublayer) -> tuple[tuple[AnySublayer, ...], ...]:
        kinds: dict[str, Callable[[int], AnySublayer]] = {
            "local": lambda seed: SelfAttention(heads, see=see.beside(causal), position=local, biased=False),
            "lsh": lambda seed: LSHAttention(heads, see, buckets, rounds, seed, causal),
            "full": lambda seed: LSHAttention(heads, Whole(), causal=causal),
        }
        looks = (kinds[attention[layer % len(attention)]](layer) for layer in range(depth))
        return tuple((look, *besides, FeedForward(inner or 4 * width, activation)) for look in looks)

    over = (CrossAttention(heads, biased=False),) if shape == "both" else ()
    return Model(
        width,
        embed=Embed(position, dropout=dropout),
        encoder=Stack(layers(False), join, dropout) if shape != "decoder" else None,
        decoder=Stack(layers(True, *over), join, dropout) if shape != "encoder" else None,
        readout=Vocabulary(tied=tied),
    )


def lstm_lm(
    width: int = 1024,
    depth: int = 4,
    *,
    join: PreNorm | TwinNorm | Replace = PreNorm(),  # noqa: B008
    dropout: float = 0.1,
    tied: bool = True,
) -> Model:
    """A language model of LSTM layers and nothing else, against which `sha_rnn` is held.

    `join`: "replace" is how LSTMs were stacked at first; deep ones then hardly begin to learn.
    """
    return Model(
        width,
        embed=Embed(dropout=dropout),
        decoder=Stack(depth * ((Recurrent(LSTM()),),), join, dropout),
        readout=Vocabulary(tied=tied, biased=True),
    )


def sha_rnn(
    width: int = 1024,
    depth: int = 4,
    *,
    inner: int | None = None,
    heads: int = 1,
    attention: Literal["before_last", "all"] | tuple[int, ...] = "before_last",
    window: int = 5000,
    dropout: float = 0.1,
    tied: bool = True,
) -> Model:
    """Single headed attention RNN (Merity 2019): in each layer an LSTM and Boom, in one of them a gated attention.

    `attention`: which layers attend, the first being 0; () is the paper's version without. `inner`: of Boom, 4 widths.
    Unlike the published code, an LSTM's answer is added to the stream and does not replace it, queries are made of the
    same normed states that are remembered, nothing is dropped of attention's inside, and matrices begin as Glorot's.
    """
    layers = {"before_last": (max(0, depth - 2),) if depth > 0 else (), "all": tuple(range(depth))}
    attending = layers[attention] if isinstance(attention, str) else attention
    if any(not 0 <= layer < depth for layer in attending):
        raise InputError(f"layers {list(attending)} cannot all attend (model.attention). Use 0 to {depth - 1}.")
    cell, look = Recurrent(LSTM()), GatedAttention(heads, Window(window))
    feed = Boom(inner or 4 * width, dropout=dropout)
    return Model(
        width,
        embed=Embed(dropout=dropout),
        decoder=Stack(
            tuple((cell, look, feed) if layer in attending else (cell, feed) for layer in range(depth)),
            TwinNorm(),
            dropout,
        ),
        readout=Vocabulary(tied=tied, biased=True),
    )
