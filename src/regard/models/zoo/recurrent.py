"""Recurrent models: seq2seq (Sutskever 2014), Bahdanau's and Luong's attention (2014, 2015), an LSTM language model."""

from __future__ import annotations

from regard.layers.attention_decoder import AttentionalVector, AttentionDecoder
from regard.layers.contract import require_counts
from regard.layers.embedding import Embed
from regard.layers.join import PreNorm, Replace, TwinNorm
from regard.layers.patterns import Full, Pattern
from regard.layers.recurrent import GRU, LSTM, Cell, Copied, Direction, Projected, Recurrent
from regard.layers.scores import Additive, General, Score
from regard.models.model import AnySublayer, Model, Stack
from regard.models.readouts import Vocabulary


def seq2seq(
    width: int = 1000,
    depth: int = 4,
    *,
    cell: Cell = LSTM(),  # noqa: B008 (descriptions are frozen)
    direction: Direction = "backward",
    dropout: float = 0.0,
    tied: bool = False,
    shared: bool = False,
) -> Model:
    """Sequence to sequence learning (Sutskever 2014): the decoder reads of the source only the encoder's final state.

    `direction`: "backward" is the paper's reversed source, which brings the first words of both sides close together.
    """
    encoder = Recurrent(cell, depth, direction, dropout)
    decoder = Recurrent(cell, depth, dropout=dropout, initial_state=Copied())
    return _encoder_decoder(width, encoder, (decoder,), dropout, tied, shared)


def bahdanau(
    width: int = 1000,
    depth: int = 1,
    *,
    cell: Cell = GRU(),  # noqa: B008
    direction: Direction = "bidirectional",
    score: Score = Additive(),  # noqa: B008
    pattern: Pattern = Full(),  # noqa: B008
    dropout: float = 0.0,
    tied: bool = False,
    shared: bool = False,
) -> Model:
    """Learning to align and translate (Bahdanau 2014): the decoder attends with its previous state, before its cell."""
    encoder = Recurrent(cell, depth, direction, dropout)
    decoder = AttentionDecoder("before", cell, depth, score, pattern, Projected(), dropout)
    return _encoder_decoder(width, encoder, (decoder,), dropout, tied, shared)


def luong(
    width: int = 1000,
    depth: int = 4,
    *,
    cell: Cell = LSTM(),  # noqa: B008
    direction: Direction = "backward",
    score: Score = General(),  # noqa: B008
    pattern: Pattern = Full(),  # noqa: B008
    input_feeding: bool = True,
    dropout: float = 0.2,
    tied: bool = False,
    shared: bool = False,
) -> Model:
    """Effective approaches to attention (Luong 2015): the decoder attends with its new state, after its cell.

    `pattern`: full (the paper's global attention), `local_m` or `local_p`. `input_feeding`: the next step reads the
    attentional vector; without it no step depends on attention, and training runs over the whole target at once.
    `score = "uniform"` is mean pooling.
    """
    encoder = Recurrent(cell, depth, direction, dropout)
    initial = Copied() if direction != "bidirectional" else Projected()
    decoder: tuple[AnySublayer, ...] = (AttentionDecoder("after", cell, depth, score, pattern, initial, dropout),)
    if not input_feeding:
        decoder = Recurrent(cell, depth, dropout=dropout, initial_state=initial), AttentionalVector(score, pattern)
    return _encoder_decoder(width, encoder, decoder, dropout, tied, shared)


def _encoder_decoder(
    width: int, encoder: Recurrent, decoder: tuple[AnySublayer, ...], dropout: float, tied: bool, shared: bool
) -> Model:
    """An encoder and a decoder of one layer each, without residual connections and norms."""
    require_counts(width=width)
    return Model(
        width,
        embed=Embed(scaled=True, dropout=dropout),
        encoder=Stack(((encoder,),), Replace(), dropout),
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
    """A language model of LSTM layers only, the baseline of `sha_rnn`.

    `join`: "replace" stacks the LSTMs without residual connections; deep stacks of this kind hardly train.
    """
    require_counts(width=width, depth=depth)
    return Model(
        width,
        embed=Embed(dropout=dropout),
        decoder=Stack(depth * ((Recurrent(LSTM()),),), join, dropout),
        readout=Vocabulary(tied=tied, biased=True),
    )
