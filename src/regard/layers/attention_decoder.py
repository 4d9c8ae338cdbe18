"""Recurrent decoders that ask the source: before the cell reads (Bahdanau), or after it (Luong)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
from torch import Tensor, nn

from regard.errors import InputError
from regard.layers.attention import attend
from regard.layers.contract import Context, Shared, Source, Sublayer
from regard.layers.linear import linear
from regard.layers.patterns import Everything, SourcePattern, gathered
from regard.layers.recurrent import LSTM, Begin, Bridged, Cell, State, States, first_bias
from regard.layers.scores import Additive, AnyScore

Keys = Shared[tuple[Tensor, Tensor]]
"""What the source is asked by and what it answers, BHSK and BHSV: all beams of a sentence share it."""


class Ask(nn.Module):
    """One head that asks the source as it stands, with no projections but the score's own."""

    def __init__(self, score: AnyScore, pattern: SourcePattern, width: int, source_width: int) -> None:
        super().__init__()
        self.score = score.build(width, source_width)
        self.focus = pattern.focus(width)

    def keys(self, source: Source) -> Keys:
        """What a source is asked by and answers."""
        values = source.states[:, None]
        return Shared((self.score.keys(values), values))

    def forward(self, asking: Tensor, slots: Tensor, keys: Keys, context: Context) -> Tensor:
        """RTD in slots (R)T -> RTV: what the source answers."""
        assert context.source is not None
        k, v = keys.tree
        queries, places = gathered(asking, slots, k.shape[0])
        mask, factor = self.focus(queries, places, context.source)
        q = self.score.queries(queries[:, None])
        y = attend(self.score, q, k, v, mask, context, factor=factor, rows=len(asking))
        return y.reshape(*asking.shape[:2], -1)


@dataclass(frozen=True)
class Attentional:
    """tanh(W[c; h]): the stream and what the source answers it, as one vector (Luong 2015, equation 5)."""

    score: AnyScore = field(default_factory=Additive)
    pattern: SourcePattern = field(default_factory=Everything)
    name: ClassVar[str] = "cross"

    def build(self, width: int, source_width: int | None = None) -> AttentionalLayer:
        """The module for a stream of this width over a source of that width."""
        return AttentionalLayer(self, width, source_width or width)


class AttentionalLayer(Sublayer):
    def __init__(self, description: Attentional, width: int, source_width: int) -> None:
        super().__init__()
        self.ask = Ask(description.score, description.pattern, width, source_width)
        self.out = linear(source_width + width, width)

    def forward(self, x: Tensor, context: Context, memory: Keys | None = None) -> tuple[Tensor, Keys | None]:
        assert context.source is not None
        keys = memory or self.ask.keys(context.source)
        answer = self.ask(x, context.slots(x.shape[1], x.device), keys, context)
        return self.out(torch.cat([answer, x], dim=-1)).tanh(), keys if context.remember else None


@dataclass(frozen=True)
class Before:
    """The last state asks, and the cell reads the answer beside the token (Bahdanau 2014)."""

    def build(self, description: Attentive, width: int, source_width: int) -> AttentiveLayer:
        """The module for a stream of this width over a source of that width."""
        return AskingBefore(description, width, source_width)


@dataclass(frozen=True)
class After:
    """The new state asks; what comes of it is said, and read beside the next token (Luong 2015: input feeding)."""

    def build(self, description: Attentive, width: int, source_width: int) -> AttentiveLayer:
        """The module for a stream of this width over a source of that width."""
        return AskingAfter(description, width, source_width)


@dataclass(frozen=True)
class Attentive:
    """Cells on top of each other, of which the highest asks the source at every step."""

    asks: Before | After = field(default_factory=After)
    cell: Cell = field(default_factory=LSTM)
    depth: int = 1
    score: AnyScore = field(default_factory=Additive)
    pattern: SourcePattern = field(default_factory=Everything)
    begin: Begin = field(default_factory=Bridged)
    dropout: float = 0.0  # between one cell and the next
    name: ClassVar[str] = "cross"

    def __post_init__(self) -> None:
        if self.depth < 1:
            raise InputError(f"depth must be 1 or more, got {self.depth}.")

    def build(self, width: int, source_width: int | None = None) -> AttentiveLayer:
        """The module for a stream of this width over a source of that width."""
        return self.asks.build(self, width, source_width or width)


@dataclass(frozen=True)
class AttentiveMemory:
    """The cells' states, what is fed back RD (nothing, where the state asks first), and the source's keys."""

    states: States
    fed: Tensor | None
    keys: Keys

    def where(self, here: Tensor, other: AttentiveMemory) -> AttentiveMemory:
        """The memory itself in rows that are here (R), the other in the rest."""
        states = tuple(state.where(here, before) for state, before in zip(self.states, other.states))
        fed = self.fed if other.fed is None or self.fed is None else torch.where(here[:, None], self.fed, other.fed)
        return AttentiveMemory(states, fed, self.keys)


class AttentiveLayer(Sublayer):
    """The loop in which each step waits for the one before it. Subclasses say who asks when, and what is said."""

    def __init__(self, description: Attentive, width: int, source_width: int, fed: int) -> None:
        super().__init__()
        cell, depth = description.cell, description.depth
        self.read = linear(width, cell.gates * width, parts=cell.gates)
        self.steps = nn.ModuleList(cell.step(width if number else fed, width) for number in range(depth))
        # A higher cell reads what the one below shows, and besides it only its own bias.
        self.biases = nn.ParameterList(first_bias(cell, width) for _ in range(depth - 1))
        with torch.no_grad():
            self.read.bias.copy_(first_bias(cell, width))
        self.begin = description.begin.build(cell, depth, width, source_width)
        self.ask = Ask(description.score, description.pattern, width, source_width)
        self.dropout = nn.Dropout(description.dropout)

    def forward(
        self, x: Tensor, context: Context, memory: AttentiveMemory | None = None
    ) -> tuple[Tensor, AttentiveMemory | None]:
        assert context.source is not None
        memory = memory or AttentiveMemory(self.begin(context.source), self.feed(x), self.ask.keys(context.source))
        slots = context.slots(x.shape[1], x.device)
        here = context.padding if context.remember else None
        kept = []
        # What a step reads of its token waits for nothing, so all tokens are read at once.
        for t, read in enumerate(self.read(x).unbind(1)):
            said, after = self.step(read, memory, slots[..., t : t + 1], context)
            memory = after if here is None else after.where(here[:, t], memory)
            kept.append(said)
        return self.said(torch.stack(kept, dim=1), x), memory if context.remember else None

    def feed(self, x: Tensor) -> Tensor | None:
        """-> RD: what is fed to the first step."""
        raise NotImplementedError

    def step(
        self, read: Tensor, memory: AttentiveMemory, slot: Tensor, context: Context
    ) -> tuple[Tensor, AttentiveMemory]:
        """One token further: what there is to say of it, and what to remember."""
        raise NotImplementedError

    def said(self, kept: Tensor, x: Tensor) -> Tensor:
        """What the steps had to say, RT., and the tokens they read -> RTD."""
        return kept

    def asked(self, states: States, memory: AttentiveMemory, slot: Tensor, context: Context) -> Tensor:
        """-> RV: what the source answers the highest cell."""
        answer: Tensor = self.ask(states[-1].shown[:, None], slot, memory.keys, context)
        return answer[:, 0]

    def through(self, read: Tensor, inputs: Tensor, states: States) -> States:
        """The cells, one above the other, one token further."""
        after: list[State] = []
        for number, (step, state) in enumerate(zip(self.steps, states)):
            if number:
                read, inputs = self.biases[number - 1], self.dropout(after[-1].shown)
            after.append(step(read, inputs, state))
        return tuple(after)


class AskingBefore(AttentiveLayer):
    """What is said is the larger of two maps of state, answer and token (maxout: Bahdanau 2014, appendix A.2.2)."""

    def __init__(self, description: Attentive, width: int, source_width: int) -> None:
        super().__init__(description, width, source_width, source_width)
        self.out = linear(width + source_width + width, 2 * width, parts=2)

    def feed(self, x: Tensor) -> None:
        return None

    def step(
        self, read: Tensor, memory: AttentiveMemory, slot: Tensor, context: Context
    ) -> tuple[Tensor, AttentiveMemory]:
        answer = self.asked(memory.states, memory, slot, context)
        states = self.through(read, answer, memory.states)
        return torch.cat([states[-1].shown, answer], dim=-1), replace(memory, states=states)

    def said(self, kept: Tensor, x: Tensor) -> Tensor:
        one, other = self.out(torch.cat([kept, x], dim=-1)).chunk(2, dim=-1)
        return torch.maximum(one, other)


class AskingAfter(AttentiveLayer):
    """What is said is tanh(W[c; h]), the attentional vector (Luong 2015, equation 5)."""

    def __init__(self, description: Attentive, width: int, source_width: int) -> None:
        super().__init__(description, width, source_width, width)
        self.out = linear(source_width + width, width)

    def feed(self, x: Tensor) -> Tensor:
        return x.new_zeros(len(x), x.shape[-1])

    def step(
        self, read: Tensor, memory: AttentiveMemory, slot: Tensor, context: Context
    ) -> tuple[Tensor, AttentiveMemory]:
        assert memory.fed is not None
        states = self.through(read, memory.fed, memory.states)
        answer = self.asked(states, memory, slot, context)
        said = self.out(torch.cat([answer, states[-1].shown], dim=-1)).tanh()
        return said, AttentiveMemory(states, said, memory.keys)
