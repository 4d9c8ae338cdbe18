"""Words become vectors by how they are spelled, so that every word has one."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from regard.errors import InputError
from regard.layers.contract import Context
from regard.layers.feedforward import activate
from regard.layers.linear import linear

FILTERS = (1, 32), (2, 32), (3, 64), (4, 128), (5, 256), (6, 512), (7, 1024)


@dataclass(frozen=True)
class Spelled:
    """A word's vector from its characters (Kim 2016): filters, the strongest answer of each, highways, a projection.

    `copies` of it stand side by side in the stream: ELMo's two readers begin with the same one (Peters 2018).
    """

    characters: int = 262  # how many there are; 0 is padding
    inner: int = 16  # the width of a character
    filters: tuple[tuple[int, int], ...] = FILTERS  # over how many characters, and how many of them
    highways: int = 2
    activation: Literal["relu", "tanh"] = "relu"
    letters: int = 50  # of each word, padding among them
    copies: int = 2
    dropout: float = 0.0

    def __post_init__(self) -> None:
        if not self.filters:
            raise InputError("a word is read by at least one filter. Use filters = [[1, 32], [2, 32]], for instance.")
        for name in ("characters", "inner", "letters", "copies"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} must be 1 or more, got {getattr(self, name)}.")
        if self.highways < 0:
            raise InputError(f"highways must be 0 or more, got {self.highways}.")
        for over, count in self.filters:
            if not 1 <= over <= self.letters or count < 1:
                raise InputError(
                    f"filters has {count} over {over} characters of {self.letters}. "
                    f"Use [characters, how many], 1 to {self.letters} and 1 or more."
                )

    def build(self, width: int, vocabulary: int) -> SpelledLayer:
        """The module for a stream of this width; words it was never told of are read as well as others."""
        if width % self.copies:
            near = width + self.copies - width % self.copies
            raise InputError(f"{self.copies} copies of a word do not fill a width of {width}. Try width = {near}.")
        return SpelledLayer(self, width // self.copies)


class SpelledLayer(nn.Module):
    max_positions: int | None = None

    def __init__(self, description: Spelled, width: int) -> None:
        super().__init__()
        inner, total = description.inner, sum(count for _, count in description.filters)
        self.table = nn.Embedding(
            description.characters, inner, _weight=_characters(description.characters, inner), padding_idx=0
        )
        self.filters = nn.ModuleList(
            _filter(inner, count, over, description.activation) for over, count in description.filters
        )
        self.activation, self.letters, self.copies = description.activation, description.letters, description.copies
        self.highways = nn.Sequential(*(Highway(total) for _ in range(description.highways)))
        self.projection = linear(total, width) if total != width else nn.Identity()
        self.dropout = nn.Dropout(description.dropout)

    def forward(self, ids: Tensor, context: Context) -> Tensor:
        """BTC -> BTD: the characters of each word, 0 where a word is padding."""
        if ids.dim() != 3 or ids.shape[2] != self.letters:
            found = "x".join(map(str, ids.shape))
            raise InputError(f"this model reads the {self.letters} characters of each word, not ids of {found}.")
        characters = self.table(ids.flatten(0, 1).int()).transpose(1, 2)
        # Which answer is the strongest is kept, not the answers: they are 50 times as many.
        strongest = torch.cat([one(characters).max(dim=2).values for one in self.filters], dim=1)
        words = self.projection(self.highways(activate(strongest, self.activation)))
        stream = words.unflatten(0, ids.shape[:2]).repeat(1, 1, self.copies)
        dropped: Tensor = self.dropout(stream)
        return dropped


class Highway(nn.Module):
    """g f(x) + (1 - g) x: each number goes through or goes by (Srivastava 2015); at first most go by."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gate, self.change = linear(width, width), linear(width, width)
        nn.init.constant_(self.gate.bias, -2.0)

    def forward(self, x: Tensor) -> Tensor:
        return torch.lerp(x, self.change(x).relu(), self.gate(x).sigmoid())


def _characters(count: int, width: int) -> Tensor:
    """Vectors drawn as the published model's were; padding is zero and stays so."""
    weight = torch.empty(count, width).uniform_(-1.0, 1.0)
    weight[0] = 0.0
    return weight


def _filter(inner: int, count: int, over: int, activation: str) -> nn.Conv1d:
    """A filter drawn as the published model's were."""
    module = nn.Conv1d(inner, count, over)
    bound = 0.05 if activation == "relu" else math.sqrt(3 / (over * inner))
    nn.init.uniform_(module.weight, -bound, bound)
    assert module.bias is not None
    nn.init.zeros_(module.bias)
    return module
