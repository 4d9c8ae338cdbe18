"""Linear maps, position-wise feed-forward networks (Vaswani 2017, section 3.3), and SHA-RNN's Boom layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.errors import InputError
from regard.layers.contract import Context, Facts, Memory, Sublayer
from regard.layers.dropout import Dropout
from regard.layers.linear import linear

Activation = Literal["relu", "gelu", "gelu_tanh", "silu", "tanh"]


@dataclass(frozen=True)
class FeedForward:
    """Two linear maps with an activation between (Vaswani 2017, section 3.3); `gated`: a GLU variant (Shazeer 2020)."""

    inner: int
    activation: Activation = "relu"
    gated: bool = False
    biased: bool = True
    dropout: float = 0.0  # of the hidden layer; the join drops the output
    name: ClassVar[str] = "feedforward"
    facts: ClassVar[Facts] = Facts(constant_memory=True, packs=True)

    def build(self, width: int, source_width: int | None = None) -> FeedForwardLayer:
        return FeedForwardLayer(self, width)


class FeedForwardLayer(Sublayer):
    position_wise = True

    def __init__(self, description: FeedForward, width: int) -> None:
        super().__init__()
        self.activation = description.activation
        self.up = linear(width, description.inner, biased=description.biased)
        self.gate = linear(width, description.inner, biased=description.biased) if description.gated else None
        self.down = linear(description.inner, width, biased=description.biased)
        self.dropout = Dropout(description.dropout)

    def forward(self, x: Tensor, context: Context, memory: Memory = None) -> tuple[Tensor, Memory]:
        hidden = activate(self.up(x) if self.gate is None else self.gate(x), self.activation)
        hidden = hidden if self.gate is None else hidden * self.up(x)
        return self.down(self.dropout(hidden)), None


@dataclass(frozen=True)
class Boom:
    """One linear map to a wider hidden layer, whose parts of the stream's width are then summed (Merity 2019)."""

    inner: int
    activation: Activation = "gelu"
    dropout: float = 0.0  # of the hidden layer; the join drops the output
    name: ClassVar[str] = "feedforward"
    facts: ClassVar[Facts] = Facts(constant_memory=True, packs=True)

    def build(self, width: int, source_width: int | None = None) -> BoomLayer:
        if self.inner < width or self.inner % width:
            upper = max(1, -(-self.inner // width)) * width
            raise InputError(f"inner = {self.inner} is no multiple of width = {width} (model.inner). Try {upper}.")
        return BoomLayer(self, width)


class BoomLayer(Sublayer):
    position_wise = True

    def __init__(self, description: Boom, width: int) -> None:
        super().__init__()
        self.activation, self.parts = description.activation, description.inner // width
        self.up = linear(width, description.inner, parts=self.parts)
        self.dropout = Dropout(description.dropout)

    def forward(self, x: Tensor, context: Context, memory: Memory = None) -> tuple[Tensor, Memory]:
        hidden: Tensor = self.dropout(activate(self.up(x), self.activation))
        return hidden.view(*hidden.shape[:-1], self.parts, hidden.shape[-1] // self.parts).sum(-2), None


def activate(x: Tensor, activation: Activation) -> Tensor:
    """The activation function of that name."""
    match activation:
        case "relu":
            return F.relu(x)
        case "gelu":
            return F.gelu(x)
        case "gelu_tanh":
            return F.gelu(x, approximate="tanh")
        case "silu":
            return F.silu(x)
        case "tanh":
            return torch.tanh(x)
