"""TODO."""

from __future__ import annotations

from regard.layers.attention_decoder import After, Attentional, Attentive, Before
from regard.layers.embedding import Embed
from regard.layers.join import PreNorm, Replace, TwinNorm
from regard.layers.patterns import Everything, SourcePattern
from regard.layers.recurrent import GRU, LSTM, Bridged, Carried, Cell, Reads, Recurrent
from regard.layers.scores import Additive, AnyScore, General
from regard.models.model import AnySublayer, Model, Stack
from regard.models.readouts import Vocabulary


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
    pattern: SourcePattern = Everything(),  # noqa: B008
    dropout: float = 0.0,
    tied: bool = False,
    shared: bool = False,
) -> Model:
    """Learning to align and translate (Bahdanau 2014): the decoder's last state asks the source before its cell reads.

    Each direction of the encoder has half the width.
    """
    encoder = Recurrent(cell, depth, reads, dropout)
    decoder = Attentive(Before(), cell, depth, score, pattern, Bridged(), dropout)
    return _recurrent(width, (encoder,), (decoder,), dropout, tied, shared)


def luong(
    width: int = 1000,
    depth: int = 4,
    *,
    cell: Cell = LSTM(),  # noqa: B008
    reads: Reads = "backward",
    score: AnyScore = General(),  # noqa: B008
    pattern: SourcePattern = Everything(),  # noqa: B008
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
    waiting = (Attentive(After(), cell, depth, score, pattern, begin, dropout),)
    at_once = Recurrent(cell, depth, dropout=dropout, begin=begin), Attentional(score, pattern)
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
