"""SHA-RNN, the single headed attention RNN (Merity 2019): an LSTM language model with one attention head."""

from __future__ import annotations

from typing import Literal

from regard.errors import InputError
from regard.layers.contract import require_counts
from regard.layers.embedding import Embed
from regard.layers.feedforward import Boom
from regard.layers.gated_attention import GatedAttention
from regard.layers.join import TwinNorm
from regard.layers.patterns import Window
from regard.layers.recurrent import LSTM, Recurrent
from regard.models.model import Model, Stack
from regard.models.readouts import Vocabulary


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
    """The single headed attention RNN (Merity 2019): an LSTM and a Boom layer per layer, gated attention in one.

    `attention`: the layers with attention, counted from 0; () is the paper's version without. `inner`: the width of
    Boom, by default 4 * width. Unlike the published code, the LSTM's output is added to the stream instead of replacing
    it, queries and keys come from the same normed states, attention has no dropout, and initialisation is Glorot's.
    """
    require_counts(width=width, depth=depth, heads=heads, inner=inner, window=window)
    named = {"before_last": (max(0, depth - 2),), "all": tuple(range(depth))}
    attending = named[attention] if isinstance(attention, str) else attention
    if any(not 0 <= layer < depth for layer in attending):
        raise InputError(f"layers {list(attending)} cannot all attend (model.attention). Use 0 to {depth - 1}.")
    lstm, gated_attention = Recurrent(LSTM()), GatedAttention(heads, Window(window))
    boom = Boom(inner or 4 * width, dropout=dropout)
    layers = tuple((lstm, gated_attention, boom) if layer in attending else (lstm, boom) for layer in range(depth))
    return Model(
        width,
        embed=Embed(dropout=dropout),
        decoder=Stack(layers, TwinNorm(), dropout),
        readout=Vocabulary(tied=tied, biased=True),
    )
