"""Recurrent decoders with attention: Bahdanau's (attention before the cell) and Luong's (attention after the cell)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal, cast

import torch
from torch import Tensor, nn

from regard.layers.attention import SourceKeys, attend_source
from regard.layers.contract import Context, Facts, Shared, Source, Sublayer, require_counts
from regard.layers.dropout import Dropout
from regard.layers.linear import linear
from regard.layers.patterns import Full, Pattern, source_pattern
from regard.layers.recurrent import LSTM, Advance, Cell, InitialState, Projected, State, States, Step, initial_bias
from regard.layers.scores import Additive, Score


class SourceAttention(nn.Module):
    """One head of attention over the source's annotations, with no projections but the score's own."""

    def __init__(self, score: Score, pattern: Pattern, width: int, source_width: int) -> None:
        super().__init__()
        self.score = score.build(width, source_width)
        self.source_mask = source_pattern(pattern).source_mask(width)

    def keys(self, source: Source) -> SourceKeys:
        """The keys of a source, projected once, not at every step, and its annotations h_j, which are the values."""
        values = source.states[:, None]
        return Shared((self.score.keys(values), values))

    def forward(self, states: Tensor, slots: Tensor, keys: SourceKeys, context: Context) -> Tensor:
        """Decoder states RTD in slots (R)T -> RTV, the context vectors `c_i = sum_j alpha_ij h_j`."""
        # alpha_i = softmax_j(e_ij), where e_ij = score(query i, h_j)
        return attend_source(self.score, self.source_mask, states, keys, context, slots=slots)


@dataclass(frozen=True)
class AttentionalVector:
    """Luong's attentional vector h~_t = tanh(W_c [c_t; h_t]) of a decoder's states (Luong 2015, equation 5)."""

    score: Score = field(default_factory=Additive)
    pattern: Pattern = field(default_factory=Full)
    name: ClassVar[str] = "cross"

    def __post_init__(self) -> None:
        source_pattern(self.pattern)

    @property
    def facts(self) -> Facts:
        return Facts(heads=1, packs=True, weights_sum_to_one=source_pattern(self.pattern).weights_sum_to_one)

    def build(self, width: int, source_width: int | None = None) -> AttentionalVectorLayer:
        return AttentionalVectorLayer(self, width, source_width or width)


class AttentionalVectorLayer(Sublayer):
    def __init__(self, description: AttentionalVector, width: int, source_width: int) -> None:
        super().__init__()
        self.attention = SourceAttention(description.score, description.pattern, width, source_width)
        self.out = linear(source_width + width, width)

    def forward(
        self, x: Tensor, context: Context, memory: SourceKeys | None = None
    ) -> tuple[Tensor, SourceKeys | None]:
        assert context.source is not None
        keys = memory or self.attention.keys(context.source)
        c = self.attention(x, context.slots(x.shape[1], x.device), keys, context)
        return self.out(torch.cat([c, x], dim=-1)).tanh(), keys if context.remember else None


@dataclass(frozen=True)
class AttentionDecoder:
    """Stacked recurrent cells whose highest state attends to the source at every step.

    attend = "before" the cell: the previous state is the query, and the cell reads the context vector (Bahdanau 2014).
    attend = "after" the cell: the new state is the query, and the next step reads the attentional vector (Luong 2015,
    section 3.3: input feeding).
    """

    attend: Literal["before", "after"] = "after"
    cell: Cell = field(default_factory=LSTM)
    depth: int = 1
    score: Score = field(default_factory=Additive)
    pattern: Pattern = field(default_factory=Full)
    initial_state: InitialState = field(default_factory=Projected)
    dropout: float = 0.0  # between one cell and the next
    name: ClassVar[str] = "cross"

    def __post_init__(self) -> None:
        require_counts(depth=self.depth)
        source_pattern(self.pattern)

    @property
    def facts(self) -> Facts:
        return Facts(heads=1, weights_sum_to_one=source_pattern(self.pattern).weights_sum_to_one)

    def build(self, width: int, source_width: int | None = None) -> AttentionDecoderLayer:
        layer = BahdanauDecoder if self.attend == "before" else LuongDecoder
        return layer(self, width, source_width or width)


@dataclass(frozen=True)
class DecoderMemory:
    """The cells' states, the last attentional vector RD (None in Bahdanau's decoder), and the source's keys."""

    states: States
    attentional: Tensor | None
    keys: SourceKeys

    def where(self, rows: Tensor, other: DecoderMemory) -> DecoderMemory:
        """Take this memory in the rows that are True (R), the other in the rest."""
        states = tuple(state.where(rows, before) for state, before in zip(self.states, other.states))
        attentional = self.attentional
        if attentional is not None and other.attentional is not None:
            attentional = torch.where(rows[:, None], attentional, other.attentional)
        return DecoderMemory(states, attentional, self.keys)


class AttentionDecoderLayer(Sublayer):
    """The loop over target tokens, in which each step needs the previous one. Subclasses define the step."""

    def __init__(self, description: AttentionDecoder, width: int, source_width: int, input_width: int) -> None:
        super().__init__()
        cell, depth = description.cell, description.depth
        self.token_projection = linear(width, cell.gates * width, parts=cell.gates)
        self.cells = nn.ModuleList(cell.build_step(width if number else input_width, width) for number in range(depth))
        # A higher cell reads the hidden state of the cell below and no token: its `projected` is only a bias.
        self.biases = nn.ParameterList(initial_bias(cell, width) for _ in range(depth - 1))
        with torch.no_grad():
            self.token_projection.bias.copy_(initial_bias(cell, width))
        self.initial_state = description.initial_state.build(cell, depth, width, source_width)
        self.attention = SourceAttention(description.score, description.pattern, width, source_width)
        self.dropout = Dropout(description.dropout)

    def forward(
        self, x: Tensor, context: Context, memory: DecoderMemory | None = None
    ) -> tuple[Tensor, DecoderMemory | None]:
        assert context.source is not None
        memory = memory or self.initial_memory(x, context.source)
        slots = context.slots(x.shape[1], x.device)
        padding = context.padding if context.remember else None
        outputs, cells = [], [cast(Step, cell).begin() for cell in self.cells]
        for t, projected in enumerate(self.token_projection(x).unbind(1)):
            output, new = self.step(cells, projected, memory, slots[..., t : t + 1], context)
            memory = new if padding is None else new.where(padding[:, t], memory)
            outputs.append(output)
        return self.output(torch.stack(outputs, dim=1), x), memory if context.remember else None

    def initial_memory(self, x: Tensor, source: Source) -> DecoderMemory:
        """The memory before the first token."""
        return DecoderMemory(self.initial_state(source), None, self.attention.keys(source))

    def step(
        self, cells: Sequence[Advance], projected: Tensor, memory: DecoderMemory, slot: Tensor, context: Context
    ) -> tuple[Tensor, DecoderMemory]:
        """One token, projected, -> the step's output and the new memory."""
        raise NotImplementedError

    def output(self, outputs: Tensor, x: Tensor) -> Tensor:
        """The steps' outputs RT... and the input tokens RTD -> RTD."""
        return outputs

    def context_vector(self, states: States, memory: DecoderMemory, slot: Tensor, context: Context) -> Tensor:
        """-> RV: the context vector for the highest cell's hidden state."""
        c: Tensor = self.attention(states[-1].hidden[:, None], slot, memory.keys, context)
        return c.squeeze(1)

    def advance(self, cells: Sequence[Advance], projected: Tensor, inputs: Tensor, states: States) -> States:
        """One recurrent step of all stacked cells."""
        new: list[State] = []
        for number, (cell, state) in enumerate(zip(cells, states)):
            if number:
                projected, inputs = self.biases[number - 1], self.dropout(new[-1].hidden)
            new.append(cell(projected, inputs, state))
        return tuple(new)


class BahdanauDecoder(AttentionDecoderLayer):
    """Attention before the cell; the output is a maxout layer (Bahdanau 2014, section 3.1 and appendix A.2.2)."""

    def __init__(self, description: AttentionDecoder, width: int, source_width: int) -> None:
        super().__init__(description, width, source_width, input_width=source_width)
        self.out = linear(width + source_width + width, 2 * width, parts=2)

    def step(
        self, cells: Sequence[Advance], projected: Tensor, memory: DecoderMemory, slot: Tensor, context: Context
    ) -> tuple[Tensor, DecoderMemory]:
        c = self.context_vector(memory.states, memory, slot, context)  # c_i, from e_ij = score(s_{i-1}, h_j)
        states = self.advance(cells, projected, c, memory.states)  # s_i = f(s_{i-1}, y_{i-1}, c_i)
        return torch.cat([states[-1].hidden, c], dim=-1), replace(memory, states=states)

    def output(self, outputs: Tensor, x: Tensor) -> Tensor:
        # t_i = max over two linear maps of [s_i; c_i; y_{i-1}]
        one, other = self.out(torch.cat([outputs, x], dim=-1)).chunk(2, dim=-1)
        return torch.maximum(one, other)


class LuongDecoder(AttentionDecoderLayer):
    """Attention after the cell, with input feeding; the output is the attentional vector (Luong 2015, section 3)."""

    def __init__(self, description: AttentionDecoder, width: int, source_width: int) -> None:
        super().__init__(description, width, source_width, input_width=width)
        self.out = linear(source_width + width, width)

    def initial_memory(self, x: Tensor, source: Source) -> DecoderMemory:
        return replace(super().initial_memory(x, source), attentional=x.new_zeros(x.shape[0], x.shape[-1]))

    def step(
        self, cells: Sequence[Advance], projected: Tensor, memory: DecoderMemory, slot: Tensor, context: Context
    ) -> tuple[Tensor, DecoderMemory]:
        assert memory.attentional is not None
        states = self.advance(
            cells, projected, memory.attentional, memory.states
        )  # h_t, which reads y_{t-1} and h~_{t-1}
        c = self.context_vector(states, memory, slot, context)  # c_t, from score(h_t, h_s)
        attentional = self.out(torch.cat([c, states[-1].hidden], dim=-1)).tanh()  # h~_t = tanh(W_c [c_t; h_t])
        return attentional, DecoderMemory(states, attentional, memory.keys)
