"""How a sublayer's answer joins the stream. Joins hold the residual and the norm, once."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, cast

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from regard.layers.contract import Context, Memory, Sublayer
from regard.layers.linear import LayerNorm, Norm


class Joined(Sublayer):
    """A sublayer with its norm and its dropout; subclasses say how they meet the stream."""

    def __init__(self, sublayer: Sublayer, norm: nn.Module, dropout: float) -> None:
        super().__init__()
        self.sublayer = sublayer
        self.norm = norm
        self.dropout = nn.Dropout(dropout)
        self.tokenwise = sublayer.tokenwise


Layers = list[dict[str, Sublayer]]
"""The sublayers of each layer, joined, by name."""


class InSequence(nn.Module):
    """Each layer reads what the one before it wrote."""

    def __init__(self, layers: Layers) -> None:
        super().__init__()
        self.layers = nn.ModuleList(SequenceLayer(layer) for layer in layers)

    def forward(self, x: Tensor, context: Context, memory: Memory = None) -> tuple[Tensor, Memory]:
        """BTD -> BTD, and a tuple of what each sublayer remembers."""
        kept: list[Memory] = []
        for number, layer in enumerate(self.layers):
            context.keep(x)
            was = memory[len(kept) : len(kept) + len(cast(SequenceLayer, layer))] if memory else None
            x, now = layer(x, context.under(str(number)), was)
            kept += now
        return x, tuple(kept)


class SequenceLayer(nn.ModuleDict):
    """Each sublayer reads what the one before it wrote."""

    def forward(self, x: Tensor, context: Context, memory: Memory = None) -> tuple[Tensor, Memory]:
        """BTD -> BTD, and a tuple of what each sublayer remembers."""
        if not context.gradient_checkpointing:
            return self.through(x, context, memory)
        # Only the layer's input is kept; going back, all is done again with the same random numbers.
        answer: tuple[Tensor, Memory] = checkpoint(self.through, x, context, memory, use_reentrant=False)
        return answer

    def through(self, x: Tensor, context: Context, memory: Memory) -> tuple[Tensor, Memory]:
        """One sublayer after another."""
        kept: list[Memory] = []
        for name, sublayer in self.items():
            x, now = sublayer(x, context.under(name), memory[len(kept)] if memory else None)
            kept.append(now)
        return x, tuple(kept)


@dataclass(frozen=True)
class PostNorm:
    """norm(x + f(x)): as the Transformer's paper has it."""

    norm: Norm = field(default_factory=LayerNorm)
    streams: ClassVar[int] = 1  # that come out of the stack, side by side

    def build(self, sublayer: Sublayer, width: int, dropout: float) -> Joined:
        """The sublayer, joined."""
        return PostNormJoined(sublayer, self.norm.build(width), dropout)

    def wire(self, layers: Layers) -> nn.Module:
        """The layers, one after another."""
        return InSequence(layers)

    def closing(self, width: int) -> nn.Module:
        """What stands at the end of the stack."""
        return nn.Identity()


class PostNormJoined(Joined):
    def forward(self, x: Tensor, context: Context, memory: Memory = None) -> tuple[Tensor, Memory]:
        y, memory = self.sublayer(x, context, memory)
        return self.norm(x + self.dropout(y)), memory


@dataclass(frozen=True)
class PreNorm:
    """x + f(norm(x)): trains without warmup (Xiong 2020); the stack ends in one more norm."""

    norm: Norm = field(default_factory=LayerNorm)
    streams: ClassVar[int] = 1  # that come out of the stack, side by side

    def build(self, sublayer: Sublayer, width: int, dropout: float) -> Joined:
        """The sublayer, joined."""
        return PreNormJoined(sublayer, self.norm.build(width), dropout)

    def wire(self, layers: Layers) -> nn.Module:
        """The layers, one after another."""
        return InSequence(layers)

    def closing(self, width: int) -> nn.Module:
        """What stands at the end of the stack."""
        return self.norm.build(width)


class PreNormJoined(Joined):
    def forward(self, x: Tensor, context: Context, memory: Memory = None) -> tuple[Tensor, Memory]:
        y, memory = self.sublayer(self.norm(x), context, memory)
        return x + self.dropout(y), memory


@dataclass(frozen=True)
class TwinNorm:
    """a(x) + f(b(x)): what the stream carries is normed too, each with a norm of its own (Merity 2019, figure 1)."""

    norm: Norm = field(default_factory=lambda: LayerNorm(1e-12))
    streams: ClassVar[int] = 1  # that come out of the stack, side by side

    def build(self, sublayer: Sublayer, width: int, dropout: float) -> Joined:
        """The sublayer, joined."""
        return TwinNormJoined(sublayer, self.norm.build(width), self.norm.build(width), dropout)

    def wire(self, layers: Layers) -> nn.Module:
        """The layers, one after another."""
        return InSequence(layers)

    def closing(self, width: int) -> nn.Module:
        """What stands at the end of the stack."""
        return nn.Identity()


class TwinNormJoined(Joined):
    def __init__(self, sublayer: Sublayer, norm: nn.Module, stream: nn.Module, dropout: float) -> None:
        super().__init__(sublayer, norm, dropout)
        self.stream = stream

    def forward(self, x: Tensor, context: Context, memory: Memory = None) -> tuple[Tensor, Memory]:
        y, memory = self.sublayer(self.norm(x), context, memory)
        return self.stream(x) + self.dropout(y), memory


@dataclass(frozen=True)
class Replace:
    """f(x): no residual and no norm, as the first recurrent models were stacked."""

    streams: ClassVar[int] = 1  # that come out of the stack, side by side

    def build(self, sublayer: Sublayer, width: int, dropout: float) -> Joined:
        """The sublayer, joined."""
        return ReplaceJoined(sublayer, nn.Identity(), dropout)

    def wire(self, layers: Layers) -> nn.Module:
        """The layers, one after another."""
        return InSequence(layers)

    def closing(self, width: int) -> nn.Module:
        """What stands at the end of the stack."""
        return nn.Identity()


class ReplaceJoined(Joined):
    def forward(self, x: Tensor, context: Context, memory: Memory = None) -> tuple[Tensor, Memory]:
        y, memory = self.sublayer(x, context, memory)
        return self.dropout(y), memory
