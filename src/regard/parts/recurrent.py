"""Recurrence: a state that reads one token after another, and a recurrent decoder that asks the source as it goes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor, nn

from regard.parts.attention import soft
from regard.parts.contract import Context, Shared, Sublayer
from regard.parts.linear import linear
from regard.parts.score import Additive, AnyScore


@dataclass(frozen=True)
class Cell:
    """The state of a long short-term memory: what it shows and what it holds, both BD."""

    shown: Tensor
    held: Tensor


@dataclass(frozen=True)
class Recurrent:
    """A long short-term memory over the sequence (Hochreiter 1997); both ways, each direction has half the width."""

    both_ways: bool = False
    name: ClassVar[str] = "recurrent"

    def build(self, width: int, source_width: int | None = None) -> RecurrentLayer:
        """The module for a stream of this width."""
        return RecurrentLayer(width, self.both_ways)


class RecurrentLayer(Sublayer):
    def __init__(self, width: int, both_ways: bool) -> None:
        super().__init__()
        inner = width // 2 if both_ways else width
        self.cell = nn.LSTM(width, inner, batch_first=True, bidirectional=both_ways)

    def forward(self, x: Tensor, context: Context, memory: Cell | None = None) -> tuple[Tensor, Cell]:
        state = None
        if memory is not None:
            state = memory.shown[None].contiguous(), memory.held[None].contiguous()
        if context.padding is None:
            y, state = self.cell(x, state)
        else:
            # A row without a single token still needs a step; nobody reads its answer.
            lengths = context.padding.sum(1).clamp_min(1).cpu()
            packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
            y, state = self.cell(packed, state)
            y, _ = nn.utils.rnn.pad_packed_sequence(y, batch_first=True, total_length=x.shape[1])
        shown, held = (part.transpose(0, 1).flatten(1) for part in state)
        return y, Cell(shown, held)


@dataclass(frozen=True)
class Attentive:
    """A recurrent decoder that asks after its cell has read and feeds the answer to the next step (Luong 2015)."""

    score: AnyScore = field(default_factory=Additive)
    name: ClassVar[str] = "attentive"

    def build(self, width: int, source_width: int | None = None) -> AttentiveLayer:
        """The module for a stream of this width over a source of that width."""
        return AttentiveLayer(self, width, source_width or width)


@dataclass(frozen=True)
class AttentiveMemory:
    """The cell, the answer fed back, and the source's keys and values, which all beams of a sentence share."""

    cell: Cell
    fed: Tensor
    keys: Shared[tuple[Tensor, Tensor]]


class AttentiveLayer(Sublayer):
    def __init__(self, description: Attentive, width: int, source_width: int) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(2 * width, width)
        self.score = description.score.build(width, source_width)
        self.out = linear(width + source_width, width)
        self.bridge = linear(source_width, 2 * width, parts=2)

    def forward(
        self, x: Tensor, context: Context, memory: AttentiveMemory | None = None
    ) -> tuple[Tensor, AttentiveMemory | None]:
        memory = memory or self.begin(x, context)
        keys, values = memory.keys.tree
        cell, fed = memory.cell, memory.fed
        answers, weights = [], []
        for t in range(x.shape[1]):
            shown, held = self.cell(torch.cat([x[:, t], fed], dim=-1), (cell.shown, cell.held))
            answer, weight = self.ask(shown, keys, values, context)
            attended = torch.tanh(self.out(torch.cat([shown, answer], dim=-1)))
            answers.append(attended)
            weights.append(weight)
            if context.padding is not None:
                here = context.padding[:, t, None]
                shown = torch.where(here, shown, cell.shown)
                held = torch.where(here, held, cell.held)
                attended = torch.where(here, attended, fed)
            cell, fed = Cell(shown, held), attended
        under = context.under("cross")
        if under.looking:
            assert context.record is not None
            context.record.write(under.name, torch.cat(weights, dim=2))
        return torch.stack(answers, dim=1), AttentiveMemory(cell, fed, memory.keys) if context.remember else None

    def begin(self, x: Tensor, context: Context) -> AttentiveMemory:
        """The first state: what the source's last recurrent state makes of it."""
        assert context.source is not None
        states = context.source.states
        final: Cell = next(state for state in reversed(context.source.final) if state is not None)
        shown, held = torch.tanh(self.bridge(final.shown)).chunk(2, dim=-1)
        keys = self.score.keys(states[:, None]), states[:, None]
        return AttentiveMemory(Cell(shown, held), torch.zeros_like(shown), Shared(keys))

    def ask(self, shown: Tensor, keys: Tensor, values: Tensor, context: Context) -> tuple[Tensor, Tensor]:
        """Rows' states RD -> the answers RD and the weights R11S; beams of a sentence ask the same keys."""
        assert context.source is not None
        queries = self.score.queries(shown.unflatten(0, (keys.shape[0], -1))[:, None])
        padding = context.source.padding
        weights = soft(self.score.compare(queries, keys), None if padding is None else padding[:, None, None, :])
        return (weights @ values).flatten(0, 2), weights.transpose(1, 2).flatten(0, 1)[:, :, None]
