"""One state of what all layers say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class Mix:
    """The layers' states, weighed by a learnt softmax and scaled (Peters 2018, equation 1); at first, their mean.

    `normed`: each state is normalised first, token by token, so that a text's neighbours change nothing.
    """

    normed: bool = False

    def build(self, layers: int) -> MixLayer:
        """The module for so many states: the embedding's and one a layer."""
        return MixLayer(self, layers)


class MixLayer(nn.Module):
    def __init__(self, description: Mix, layers: int) -> None:
        super().__init__()
        self.normed = description.normed
        self.weights = nn.Parameter(torch.zeros(layers))
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, states: Sequence[Tensor]) -> Tensor:
        """BTD of each layer, the embedding's first -> BTD."""
        assert len(states) == len(self.weights)
        if self.normed:
            states = [F.layer_norm(state, state.shape[-1:], eps=1e-12) for state in states]
        mixed = torch.zeros_like(states[0])
        for weight, state in zip(self.weights.softmax(0), states):
            mixed = mixed + weight * state
        return self.scale * mixed
