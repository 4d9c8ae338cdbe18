"""Token embeddings: a vector per token, with its position and, in BERT, its segment."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from regard.errors import InputError
from regard.layers.contract import Context
from regard.layers.linear import Norm, normal_table
from regard.layers.positions import EmbeddingPosition, Position, require_attached


@dataclass(frozen=True)
class Embed:
    """An embedding table, scaled by sqrt(width) when `scaled` (Vaswani 2017, section 3.4), with a position.

    BERT also adds an embedding of the segment, which of two texts a token belongs to, and normalizes the sum.
    """

    position: Position | None = None
    scaled: bool = False
    dropout: float = 0.0
    segments: int = 0
    norm: Norm | None = None
    init_std: float | None = None  # of the table's initial weights; by default width ** -0.5
    characters: ClassVar[int] = 0  # per token, for embeddings that read characters instead of token ids

    def __post_init__(self) -> None:
        require_attached(self.position, EmbeddingPosition)

    @property
    def max_positions(self) -> int | None:
        """How many tokens have a position; None when there is no bound."""
        return None if self.position is None else self.position.max_positions

    def build(self, width: int, vocabulary: int) -> EmbedLayer:
        """The module for a stream of this width over this many tokens."""
        return EmbedLayer(self, width, vocabulary)


class EmbedLayer(nn.Module):
    def __init__(self, description: Embed, width: int, vocabulary: int) -> None:
        super().__init__()
        position = require_attached(description.position, EmbeddingPosition)
        self.position = position.build(width) if position is not None else None
        self.max_positions = description.max_positions
        table_width = width - (self.position.own_width if self.position is not None else 0)
        std = table_width**-0.5 if description.init_std is None else description.init_std
        self.table = nn.Embedding(vocabulary, table_width, _weight=normal_table(vocabulary, table_width, std))
        self.segments = None
        if description.segments:
            weight = normal_table(description.segments, width, 0.02)
            self.segments = nn.Embedding(description.segments, width, _weight=weight)
        self.norm = description.norm.build(width) if description.norm else nn.Identity()
        self.scale = math.sqrt(table_width) if description.scaled else 1.0
        self.dropout = nn.Dropout(description.dropout)

    def forward(self, ids: Tensor, context: Context) -> Tensor:
        """BT -> BTD."""
        x = self.table(ids)
        x = x if self.scale == 1.0 else x * self.scale
        if self.position is not None:
            self.check_length(context, ids.shape[1])
            x = self.position(x, context.token_positions(ids.shape[1], ids.device))
        if self.segments is not None:
            x = x + self.segments(self.segments_of(ids, context))
        dropped: Tensor = self.dropout(self.norm(x))
        return dropped

    def segments_of(self, ids: Tensor, context: Context) -> Tensor:
        """BT: the segment of each token; by default the first."""
        return ids.new_zeros(ids.shape) if context.segments is None else context.segments

    def check_length(self, context: Context, length: int) -> None:
        """Refuse tokens beyond the last position."""
        if self.max_positions is None or context.positions is not None:
            return
        total = context.total_length(length)
        if total > self.max_positions:
            raise InputError(f"{total:,} tokens, this model reads {self.max_positions:,}. Shorten the text.")
