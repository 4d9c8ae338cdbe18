"""Tokens become vectors that know where they stand."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from regard.errors import InputError
from regard.layers.contract import Context
from regard.layers.linear import Norm, table
from regard.layers.positions import Embedded


@dataclass(frozen=True)
class Embed:
    """A table of vectors, scaled by sqrt(width) when `scaled` (Vaswani 2017, section 3.4), with a position.

    BERT also adds a vector for the segment, which of two texts a token belongs to, and normalises the sum.
    """

    position: Embedded | None = None
    scaled: bool = False
    dropout: float = 0.0
    segments: int = 0
    norm: Norm | None = None
    spread: float | None = None  # of the vectors at first; width ** -0.5 when not said
    letters: ClassVar[int] = 0  # of each token that are read; none: its number is

    def build(self, width: int, vocabulary: int) -> EmbedLayer:
        """The module for a stream of this width over this many tokens."""
        return EmbedLayer(self, width, vocabulary)


class EmbedLayer(nn.Module):
    def __init__(self, description: Embed, width: int, vocabulary: int) -> None:
        super().__init__()
        self.position = description.position.build(width) if description.position else None
        self.max_positions = getattr(description.position, "longest", None)
        table_width = width - (self.position.taken if self.position is not None else 0)
        spread = table_width**-0.5 if description.spread is None else description.spread
        self.table = nn.Embedding(vocabulary, table_width, _weight=table(vocabulary, table_width, spread))
        self.segments = None
        if description.segments:
            self.segments = nn.Embedding(description.segments, width, _weight=table(description.segments, width, 0.02))
        self.norm = description.norm.build(width) if description.norm else nn.Identity()
        self.scale = math.sqrt(table_width) if description.scaled else 1.0
        self.dropout = nn.Dropout(description.dropout)

    def forward(self, ids: Tensor, context: Context) -> Tensor:
        """BT -> BTD."""
        x = self.table(ids)
        x = x if self.scale == 1.0 else x * self.scale
        if self.position is not None:
            self.check(context, ids.shape[1])
            x = self.position(x, context.places(ids.shape[1], ids.device))
        if self.segments is not None:
            x = x + self.segments(self.segments_of(ids, context))
        dropped: Tensor = self.dropout(self.norm(x))
        return dropped

    def segments_of(self, ids: Tensor, context: Context) -> Tensor:
        """BT: which text each token belongs to; the first when nothing is said."""
        return ids.new_zeros(ids.shape) if context.segments is None else context.segments

    def check(self, context: Context, length: int) -> None:
        """Refuse what lies beyond the last learnt position."""
        if self.max_positions is not None and context.positions is None and context.extent(length) > self.max_positions:
            raise InputError(f"{context.extent(length):,} tokens, this model reads {self.max_positions:,}. Shorten the text.")
