"""The last states become words: logits when someone asks, or a loss that never holds them all at once."""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor, nn

from regard.parts.linear import linear


@dataclass(frozen=True)
class Vocabulary:
    """A linear map to the vocabulary, the embedding's own table when tied (Press and Wolf 2017)."""

    tied: bool = True
    biased: bool = False

    def build(self, width: int, vocabulary: int, table: nn.Embedding) -> VocabularyReadout:
        """The module that reads states of this width."""
        return VocabularyReadout(self, width, vocabulary, table)


class VocabularyReadout(nn.Module):
    def __init__(self, description: Vocabulary, width: int, vocabulary: int, table: nn.Embedding) -> None:
        super().__init__()
        inner = table.embedding_dim if description.tied else width
        # A tied table narrower than the stream (its position stands beside it) is reached through a projection.
        self.project = linear(width, inner, biased=False) if inner != width else nn.Identity()
        self.words = linear(inner, vocabulary, biased=description.biased)
        if description.tied:
            self.words.weight = table.weight

    def forward(self, states: Tensor) -> Tensor:
        """...D -> ...N: the logits."""
        logits: Tensor = self.words(self.project(states))
        return logits

    def loss(self, states: Tensor, targets: Tensor, smoothing: float = 0.0) -> Tensor:
        """BTD, BT -> the summed cross entropy; a negative target asks for nothing and costs nothing."""
        real = targets >= 0
        return F.linear_cross_entropy(
            self.project(states[real]),
            self.words.weight,
            targets[real],
            linear_bias=self.words.bias,
            reduction="sum",
            label_smoothing=smoothing,
        )
