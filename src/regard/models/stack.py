"""A stack is a list of layers; a layer is a list of sublayers; `depth * [layer]` is how one writes depth."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor, nn

from regard.errors import InputError
from regard.parts.apart import Apart
from regard.parts.attention import CrossAttention, SelfAttention
from regard.parts.attentive import Attentional, Attentive
from regard.parts.contract import Context, Memory
from regard.parts.feedforward import FeedForward
from regard.parts.join import PostNorm, PreNorm, Replace
from regard.parts.position import RelativeBias
from regard.parts.recurrent import Recurrent
from regard.parts.reversible import Reversible

AnySublayer = SelfAttention | CrossAttention | FeedForward | Recurrent | Attentional | Attentive | Apart
Join = PostNorm | PreNorm | Replace | Reversible


@dataclass(frozen=True)
class Stack:
    """Layers of sublayers, how each joins the stream, and how much of its answer is dropped while learning."""

    layers: tuple[tuple[AnySublayer, ...], ...]
    join: Join
    dropout: float = 0.0
    bias: RelativeBias | None = None

    def __post_init__(self) -> None:
        if not self.layers:
            raise InputError("a stack needs at least one layer. Use depth = 1 or more.")

    def build(self, width: int, source_width: int | None = None) -> StackLayers:
        """The module for a stream of this width over a source of that width."""
        return StackLayers(self, width, source_width)


class StackLayers(nn.Module):
    def __init__(self, description: Stack, width: int, source_width: int | None) -> None:
        super().__init__()
        join, dropout = description.join, description.dropout
        self.wiring = join.wire(
            [
                {part.name: join.build(part.build(width, source_width), width, dropout) for part in layer}
                for layer in description.layers
            ]
        )
        self.closing = join.closing(width)
        attention = next((p for layer in description.layers for p in layer if isinstance(p, SelfAttention)), None)
        self.bias = None
        if description.bias is not None and attention is not None:
            self.bias = description.bias.build(attention.heads, attention.see.causal)

    def forward(self, x: Tensor, context: Context, memory: Memory = None) -> tuple[Tensor, Memory]:
        """BTD -> BTD, and what the layers remember."""
        context = context if self.bias is None else replace(context, bias=self.bias)
        x, memory = self.wiring(x, context, memory)
        x = self.closing(x)
        context.keep(x)
        return x, memory
