"""Token embeddings: a table of vectors, with positions and BERT's segments, or a character CNN (Kim 2016)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from regard.errors import InputError
from regard.layers.contract import Context, require_counts
from regard.layers.dropout import Dropout
from regard.layers.feedforward import activate
from regard.layers.join import Norm
from regard.layers.linear import linear
from regard.layers.positions import EmbeddingPosition, Position, normal_table, require_attached


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
    inner: int | None = None  # the table's width, then projected to that of the stream (Lan 2019, section 3.1)
    characters: ClassVar[int] = 0  # per token, for embeddings that read characters instead of token ids

    def __post_init__(self) -> None:
        require_counts(inner=self.inner)
        require_attached(self.position, EmbeddingPosition)

    @property
    def max_positions(self) -> int | None:
        """How many tokens have a position; None when there is no bound."""
        return None if self.position is None else self.position.max_positions

    def build(self, width: int, vocabulary: int) -> EmbedLayer:
        return EmbedLayer(self, width, vocabulary)


class EmbedLayer(nn.Module):
    def __init__(self, description: Embed, width: int, vocabulary: int) -> None:
        super().__init__()
        self.project = linear(description.inner, width) if description.inner else nn.Identity()
        width = description.inner or width
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
        self.dropout = Dropout(description.dropout)

    def forward(self, ids: Tensor, context: Context) -> Tensor:
        """BT -> BTD."""
        x = self.table(ids)
        x = x if self.scale == 1.0 else x * self.scale
        if self.position is not None:
            self.check_length(context, ids.shape[1])
            x = self.position(x, context.token_positions(ids.shape[1], ids.device))
        if self.segments is not None:
            x = x + self.segments(torch.zeros_like(ids) if context.segments is None else context.segments)
        stream: Tensor = self.project(self.dropout(self.norm(x)))
        return stream

    def check_length(self, context: Context, length: int) -> None:
        """Refuse tokens beyond the last position."""
        if self.max_positions is None or context.positions is not None or context.layout is not None:
            return
        total = context.start + length
        if total > self.max_positions:
            raise InputError(f"{total:,} tokens, this model reads {self.max_positions:,}. Shorten the text.")


FILTERS = (1, 32), (2, 32), (3, 64), (4, 128), (5, 256), (6, 512), (7, 1024)


@dataclass(frozen=True)
class CharacterCNN:
    """Convolution filters over a word's characters, max pooling, highway layers, a projection (Kim 2016).

    No word is unknown. `copies`: how often the vector is repeated along the width. The two directions of ELMo's biLM
    start from the same vector (Peters 2018).
    """

    character_vocabulary: int = 262  # 0 is padding
    character_width: int = 16
    filters: tuple[tuple[int, int], ...] = FILTERS  # (filter width in characters, number of filters)
    highways: int = 2
    activation: Literal["relu", "tanh"] = "relu"
    characters: int = 50  # per word, padding included
    copies: int = 2
    dropout: float = 0.0
    position: ClassVar[None] = None
    max_positions: ClassVar[None] = None
    segments: ClassVar[int] = 0

    def __post_init__(self) -> None:
        if not self.filters:
            raise InputError("filters is empty. Use filters = [[1, 32], [2, 32]], for instance.")
        for name in ("character_vocabulary", "character_width", "characters", "copies"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} must be 1 or more, got {getattr(self, name)}.")
        if self.highways < 0:
            raise InputError(f"highways must be 0 or more, got {self.highways}.")
        for filter_width, count in self.filters:
            if not 1 <= filter_width <= self.characters or count < 1:
                raise InputError(
                    f"filters has {count} filters of width {filter_width} over {self.characters} characters. "
                    f"Use [filter width, number of filters], 1 to {self.characters} and 1 or more."
                )

    def build(self, width: int, vocabulary: int) -> CharacterCNNLayer:
        """The module for a stream of this width; it needs no vocabulary of words."""
        if width % self.copies:
            near = width + self.copies - width % self.copies
            raise InputError(f"width {width} is not divisible by {self.copies} copies. Try width = {near}.")
        return CharacterCNNLayer(self, width // self.copies)


class CharacterCNNLayer(nn.Module):
    max_positions: int | None = None

    def __init__(self, description: CharacterCNN, width: int) -> None:
        super().__init__()
        vocabulary, inner = description.character_vocabulary, description.character_width
        total = sum(count for _, count in description.filters)
        weight = torch.empty(vocabulary, inner).uniform_(-1.0, 1.0)  # as in the published model
        weight[0] = 0.0  # padding is zero and stays zero
        self.table = nn.Embedding(vocabulary, inner, _weight=weight, padding_idx=0)
        self.filters = nn.ModuleList(
            _filter(inner, count, filter_width, description.activation) for filter_width, count in description.filters
        )
        self.activation, self.copies = description.activation, description.copies
        self.characters = description.characters
        self.highways = nn.Sequential(*(Highway(total) for _ in range(description.highways)))
        self.projection = linear(total, width) if total != width else nn.Identity()
        self.dropout = Dropout(description.dropout)

    def forward(self, ids: Tensor, context: Context) -> Tensor:
        """BTC -> BTD: the character ids of each word, all 0 where a word is padding."""
        if ids.dim() != 3 or ids.shape[2] != self.characters:
            shape = "x".join(map(str, ids.shape))
            raise InputError(f"this model reads the {self.characters} characters per word, not ids of shape {shape}.")
        characters = self.table(ids.flatten(0, 1).int()).transpose(1, 2)
        # Max pooling comes before the activation: autograd then keeps 50 times fewer numbers, and the result is equal.
        pooled = torch.cat([convolution(characters).max(dim=2).values for convolution in self.filters], dim=1)
        words = self.projection(self.highways(activate(pooled, self.activation)))
        stream = words.view(ids.shape[0], ids.shape[1], words.shape[1]).repeat(1, 1, self.copies)
        dropped: Tensor = self.dropout(stream)
        return dropped


class Highway(nn.Module):
    """A highway layer: y = T * H(x) + (1 - T) * x, transform gate T, carry gate 1 - T (Srivastava 2015).

    The negative bias of T makes a new layer carry most of its input.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.transform_gate, self.transform = linear(width, width), linear(width, width)
        nn.init.constant_(self.transform_gate.bias, -2.0)

    def forward(self, x: Tensor) -> Tensor:
        return torch.lerp(x, self.transform(x).relu(), self.transform_gate(x).sigmoid())


def _filter(inner: int, count: int, filter_width: int, activation: str) -> nn.Conv1d:
    """Filters of one width, initialised as in the published model."""
    module = nn.Conv1d(inner, count, filter_width)
    bound = 0.05 if activation == "relu" else math.sqrt(3 / (filter_width * inner))
    nn.init.uniform_(module.weight, -bound, bound)
    assert module.bias is not None
    nn.init.zeros_(module.bias)
    return module
