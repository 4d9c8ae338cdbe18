"""The models of the lineage, each one readable function: arguments in, a description out."""

from __future__ import annotations

from typing import Literal

from regard.errors import InputError
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
