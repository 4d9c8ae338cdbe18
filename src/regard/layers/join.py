"""Residual connection and normalization: how a sublayer's output joins the stream (post-norm, pre-norm, and others)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, cast

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from regard.layers.contract import Context, Memory, Sublayer
from regard.layers.dropout import Dropout


@dataclass(frozen=True)
class LayerNorm:
    """Layer normalization (Ba 2016): mean 0 and variance 1 over the width, then a trained scale and shift."""

    epsilon: float = 1e-5
    biased: bool = True  # with the trained shift

    def build(self, width: int) -> nn.Module:
        return nn.LayerNorm(width, eps=self.epsilon, bias=self.biased)


@dataclass(frozen=True)
class RMSNorm:
    """Root mean square normalization (Zhang 2019): only the scale of layer normalization."""

    epsilon: float = 1e-6

    def build(self, width: int) -> nn.Module:
        return nn.RMSNorm(width, eps=self.epsilon)


Norm = LayerNorm | RMSNorm


class Joined(Sublayer):
    """A sublayer with its norm and its dropout; subclasses add the residual connection."""

    def __init__(self, sublayer: Sublayer, norm: nn.Module, dropout: float) -> None:
        super().__init__()
        self.sublayer, self.norm, self.dropout = sublayer, norm, Dropout(dropout)
        self.position_wise = sublayer.position_wise


Layers = list[dict[str, Sublayer]]
"""The joined sublayers of each layer, by name."""


class SequentialLayers(nn.ModuleList):
    """Each layer reads the output of the one before it."""

    def __init__(self, layers: Layers) -> None:
        super().__init__(SequentialLayer(layer) for layer in layers)

    def forward(self, x: Tensor, context: Context, memory: Memory = None) -> tuple[Tensor, Memory]:
        """BTD -> BTD, and a tuple of each sublayer's memory."""
        kept: list[Memory] = []
        for number, layer in enumerate(self):
            context.add_layer(x)
            old = memory[len(kept) : len(kept) + len(cast(SequentialLayer, layer))] if memory else None
            x, new = layer(x, context.child(str(number)), old)
            kept += new
        return x, tuple(kept)


class SequentialLayer(nn.ModuleDict):
    """Each sublayer reads the output of the one before it."""

    def forward(self, x: Tensor, context: Context, memory: Memory = None) -> tuple[Tensor, Memory]:
        """BTD -> BTD, and a tuple of each sublayer's memory."""
        if not context.gradient_checkpointing:
            return self.sublayers(x, context, memory)
        # Gradient checkpointing: only the layer's input is kept; the backward pass recomputes the rest, with the same
        # random numbers.
        output: tuple[Tensor, Memory] = checkpoint(self.sublayers, x, context, memory, use_reentrant=False)
        return output

    def sublayers(self, x: Tensor, context: Context, memory: Memory) -> tuple[Tensor, Memory]:
        """One sublayer after another."""
        kept: list[Memory] = []
        for name, sublayer in self.items():
            x, new = sublayer(x, context.child(name), memory[len(kept)] if memory else None)
            kept.append(new)
        return x, tuple(kept)


@dataclass(frozen=True)
class SequentialJoin:
    """The base of joins whose layers follow one another; the stack ends without a norm of its own."""

    streams: ClassVar[int] = 1  # the stack's output is this many times as wide as its input

    def layers(self, layers: Layers) -> nn.Module:
        """The module of all layers."""
        return SequentialLayers(layers)

    def final_norm(self, width: int) -> nn.Module:
        """The norm of the stack's output."""
        return nn.Identity()


@dataclass(frozen=True)
class PostNorm(SequentialJoin):
    """norm(x + f(x)): layer normalization after the residual connection (Vaswani 2017)."""

    norm: Norm = field(default_factory=LayerNorm)

    def build(self, sublayer: Sublayer, width: int, dropout: float) -> Joined:
        return PostNormJoined(sublayer, self.norm.build(width), dropout)


class PostNormJoined(Joined):
    def forward(self, x: Tensor, context: Context, memory: Memory = None) -> tuple[Tensor, Memory]:
        y, memory = self.sublayer(x, context, memory)
        return self.norm(x + self.dropout(y)), memory


@dataclass(frozen=True)
class NormedInput(SequentialJoin):
    """The base of joins whose sublayers read a normalized stream; the stack ends in one more norm."""

    norm: Norm = field(default_factory=LayerNorm)

    def build(self, sublayer: Sublayer, width: int, dropout: float) -> Joined:
        return PreNormJoined(sublayer, self.norm.build(width), dropout)

    def final_norm(self, width: int) -> nn.Module:
        return self.norm.build(width)


@dataclass(frozen=True)
class PreNorm(NormedInput):
    """x + f(norm(x)): trains without warmup (Xiong 2020)."""


class PreNormJoined(Joined):
    def forward(self, x: Tensor, context: Context, memory: Memory = None) -> tuple[Tensor, Memory]:
        y, memory = self.sublayer(self.norm(x), context, memory)
        return x + self.dropout(y), memory


@dataclass(frozen=True)
class PreNormExceptFirst(NormedInput):
    """Pre-norm for a stream that the embedding normalizes: the first sublayer has no norm of its own (Warner 2024)."""

    def layers(self, layers: Layers) -> nn.Module:
        first = next(iter(layers[0].values()))
        first.norm = nn.Identity()
        return SequentialLayers(layers)


@dataclass(frozen=True)
class ResidualPostNorm(SequentialJoin):
    """x + norm(f(x)): the norm inside the residual connection ("res-post-norm", Liu 2022); the stack ends in a norm."""

    norm: Norm = field(default_factory=LayerNorm)

    def build(self, sublayer: Sublayer, width: int, dropout: float) -> Joined:
        return ResidualPostNormJoined(sublayer, self.norm.build(width), dropout)

    def final_norm(self, width: int) -> nn.Module:
        return self.norm.build(width)


class ResidualPostNormJoined(Joined):
    def forward(self, x: Tensor, context: Context, memory: Memory = None) -> tuple[Tensor, Memory]:
        y, memory = self.sublayer(x, context, memory)
        return x + self.dropout(self.norm(y)), memory


@dataclass(frozen=True)
class TwinNorm(SequentialJoin):
    """a(x) + f(b(x)): the residual stream has a norm of its own (Merity 2019, figure 1)."""

    norm: Norm = field(default_factory=lambda: LayerNorm(1e-12))

    def build(self, sublayer: Sublayer, width: int, dropout: float) -> Joined:
        return TwinNormJoined(sublayer, self.norm.build(width), self.norm.build(width), dropout)


class TwinNormJoined(Joined):
    def __init__(self, sublayer: Sublayer, norm: nn.Module, residual_norm: nn.Module, dropout: float) -> None:
        super().__init__(sublayer, norm, dropout)
        self.residual_norm = residual_norm

    def forward(self, x: Tensor, context: Context, memory: Memory = None) -> tuple[Tensor, Memory]:
        y, memory = self.sublayer(self.norm(x), context, memory)
        return self.residual_norm(x) + self.dropout(y), memory


@dataclass(frozen=True)
class Replace(SequentialJoin):
    """f(x): no residual connection and no norm, as the first recurrent models were stacked."""

    def build(self, sublayer: Sublayer, width: int, dropout: float) -> Joined:
        return BranchJoined(sublayer, nn.Identity(), dropout)


class BranchJoined(Joined):
    def forward(self, x: Tensor, context: Context, memory: Memory = None) -> tuple[Tensor, Memory]:
        y, memory = self.sublayer(self.norm(x), context, memory)
        return self.dropout(y), memory
