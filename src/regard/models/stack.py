"""A stack is a list of layers; a layer is a list of sublayers; `depth * [layer]` is how one writes depth."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from regard.errors import InputError
from regard.parts.apart import Apart
from regard.parts.attention import CrossAttention, SelfAttention
from regard.parts.attentive import Attentional, Attentive
from regard.parts.contract import Context, Memory, Record, write
from regard.parts.feedforward import Boom, FeedForward
from regard.parts.gated import GatedAttention
from regard.parts.join import PostNorm, PreNorm, Replace, TwinNorm
from regard.parts.lsh import LSHAttention
from regard.parts.position import RelativeBias
from regard.parts.recurrent import Recurrent
from regard.parts.reversible import Reversible

AnySublayer = (
    SelfAttention
    | LSHAttention
    | CrossAttention
    | GatedAttention
    | FeedForward
    | Boom
    | Recurrent
    | Attentional
    | Attentive
    | Apart
)
Join = PostNorm | PreNorm | TwinNorm | Replace | Reversible


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

    @property
    def steady(self) -> bool:
        """Whether what was read stays what it is as the text goes on, so that it need not be read again."""
        sees = (getattr(part, "see", None) for layer in self.layers for part in layer)
        return all(getattr(see, "steady", True) for see in sees)

    def outgoing(self, width: int) -> int:
        """How wide its answer is."""
        return width * self.join.streams

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
        self.closing = join.closing(description.outgoing(width))
        self.steady = description.steady
        attention = next((p for layer in description.layers for p in layer if isinstance(p, SelfAttention)), None)
        self.bias = None
        if description.bias is not None and attention is not None:
            self.bias = description.bias.build(attention.heads, attention.see.causal)

    def forward(self, x: Tensor, context: Context, memory: Memory = None) -> tuple[Tensor, Memory]:
        """BTD -> BTD, and what the layers remember."""
        context = context if self.bias is None else replace(context, bias=self.bias)
        if context.remember and not self.steady:
            return self.again(x, context, memory)
        x, memory = self.wiring(x, context, memory)
        x = self.closing(x)
        context.keep(x)
        return x, memory

    def again(self, x: Tensor, context: Context, memory: Tensor | None) -> tuple[Tensor, Tensor]:
        """As `forward`, where later tokens change what earlier ones saw: all that came in is kept, and read again."""
        slots, fresh = context.slots(x.shape[1], x.device).expand(len(x), -1), memory is None
        memory = write(memory, x, context, dim=1)
        whole = memory[:, : context.extent(x.shape[1])]
        if not fresh:
            there = torch.arange(whole.shape[1], device=x.device) <= slots[:, -1:]
            context = replace(context, padding=None if bool(there.all()) else there)
        seen = None if context.record is None else Record(context.record.wanted)
        states, _ = self.wiring(whole, replace(context, start=0, end=None, remember=False, record=seen), None)
        if seen is not None and context.record is not None:
            for name, rows in seen.rows.items():
                context.record.write(name, _at(slots, rows[0].transpose(1, 2)).transpose(1, 2))
            for name, buckets in seen.buckets.items():
                context.record.note(name, _at(slots, buckets[0].transpose(1, 2)).transpose(1, 2))
        states = self.closing(_at(slots, states))
        context.keep(states)
        return states, memory


def _at(slots: Tensor, values: Tensor) -> Tensor:
    """BT, BS... -> BT...: what stands in these slots."""
    return values[torch.arange(len(slots), device=slots.device)[:, None], slots]
