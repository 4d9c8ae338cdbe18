"""Recurrent cells: a state that reads one token after another."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import ClassVar, Literal, Protocol

import torch
from torch import Tensor, nn

from regard.errors import InputError
from regard.layers.contract import Context, Source, Sublayer
from regard.layers.linear import linear


@dataclass(frozen=True)
class State:
    """What a cell remembers: what it shows, RD, and what it holds, if it holds something apart."""

    shown: Tensor
    held: Tensor | None = None

    def where(self, here: Tensor, other: State) -> State:
        """The state itself in rows that are here (R), the other in the rest."""
        shown = torch.where(here[:, None], self.shown, other.shown)
        if self.held is None or other.held is None:
            return State(shown)
        return State(shown, torch.where(here[:, None], self.held, other.held))

    def parts(self, count: int) -> list[State]:
        """The state cut across its width."""
        held = count * [None] if self.held is None else self.held.chunk(count, dim=1)
        return [State(one, other) for one, other in zip(self.shown.chunk(count, dim=1), held)]


States = tuple[State, ...]
"""The states of cells on top of each other, the lowest first."""


class Step(nn.Module):
    """One cell that goes on by one token: what it reads of its inputs (R, gates * D) and its state, to its state."""

    def __init__(self, gates: int, inputs: int, width: int, *, biased: bool = False) -> None:
        super().__init__()
        self.inputs = linear(inputs, gates * width, parts=gates, biased=False)
        self.state = linear(width, gates * width, parts=gates, biased=biased)

    def forward(self, read: Tensor, inputs: Tensor, state: State) -> State:
        raise NotImplementedError

    def opened(self, read: Tensor, inputs: Tensor, state: State) -> Tensor:
        """-> R, gates * D: all that comes in, added up."""
        gates = torch.addmm(read, inputs, self.inputs.weight.t())
        return torch.addmm(gates, state.shown, self.state.weight.t())


@dataclass(frozen=True)
class RNN:
    """tanh(Wx + Uh) (Elman 1990)."""

    gates: ClassVar[int] = 1
    holds: ClassVar[bool] = False

    def whole(self, inputs: int, width: int) -> nn.RNNBase:
        """Torch's module, which reads whole sequences."""
        return begun(nn.RNN(inputs, width, batch_first=True), self)

    def step(self, inputs: int, width: int) -> Step:
        """The module that goes on by one token."""
        return RNNStep(self.gates, inputs, width)


class RNNStep(Step):
    def forward(self, read: Tensor, inputs: Tensor, state: State) -> State:
        return State(self.opened(read, inputs, state).tanh())


@dataclass(frozen=True)
class GRU:
    """A gated recurrent unit (Cho 2014): one gate forgets, one chooses between old and new."""

    gates: ClassVar[int] = 3
    holds: ClassVar[bool] = False

    def whole(self, inputs: int, width: int) -> nn.RNNBase:
        """Torch's module, which reads whole sequences."""
        return begun(nn.GRU(inputs, width, batch_first=True), self)

    def step(self, inputs: int, width: int) -> Step:
        """The module that goes on by one token."""
        return GRUStep(self.gates, inputs, width, biased=True)


class GRUStep(Step):
    def forward(self, read: Tensor, inputs: Tensor, state: State) -> State:
        read = torch.addmm(read, inputs, self.inputs.weight.t())
        width = state.shown.shape[1]
        old = self.state(state.shown)
        forget, keep = (read[:, : 2 * width] + old[:, : 2 * width]).sigmoid().chunk(2, dim=1)
        new = torch.addcmul(read[:, 2 * width :], forget, old[:, 2 * width :]).tanh()
        return State(torch.lerp(new, state.shown.to(new), keep))


@dataclass(frozen=True)
class LSTM:
    """A long short-term memory (Hochreiter 1997): what it holds is apart from what it shows."""

    gates: ClassVar[int] = 4
    holds: ClassVar[bool] = True

    def whole(self, inputs: int, width: int) -> nn.RNNBase:
        """Torch's module, which reads whole sequences."""
        # On processors oneDNN keeps about a megabyte for each shape that it has read, 1,024 of them; a few do as well.
        os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "16")
        return begun(nn.LSTM(inputs, width, batch_first=True), self)

    def step(self, inputs: int, width: int) -> Step:
        """The module that goes on by one token."""
        return LSTMStep(self.gates, inputs, width)


class LSTMStep(Step):
    def forward(self, read: Tensor, inputs: Tensor, state: State) -> State:
        assert state.held is not None
        write, keep, new, show = self.opened(read, inputs, state).chunk(4, dim=1)
        held = torch.addcmul(keep.sigmoid() * state.held, write.sigmoid(), new.tanh())
        return State(show.sigmoid() * held.tanh(), held)


Cell = RNN | GRU | LSTM


def begun(module: nn.RNNBase, cell: Cell) -> nn.RNNBase:
    """Torch's module, its matrices drawn gate by gate, as other linear maps are."""
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if name.startswith("bias_ih"):
                parameter.copy_(first_bias(cell, module.hidden_size))
            elif name.startswith("bias"):
                parameter.zero_()
            else:
                for part in parameter.chunk(cell.gates):
                    nn.init.xavier_uniform_(part)
    return module


def first_bias(cell: Cell, width: int) -> Tensor:
    """-> gates * width: zeros, but ones for the gate that keeps what is held: at first, nothing is forgotten."""
    bias = torch.zeros(cell.gates, width)
    if cell.holds:
        bias[1] = 1.0
    return bias.flatten()


Reads = Literal["forward", "backward", "both"]


class Whole(Protocol):
    """A cell as a reader needs it."""

    holds: ClassVar[bool]

    def whole(self, inputs: int, width: int) -> nn.RNNBase:
        """The module that reads whole sequences."""


class Reader(nn.Module):
    """One cell that reads whole sequences, from the left or from the right; padding leaves its state as it was."""

    def __init__(self, cell: Whole, inputs: int, width: int, backward: bool) -> None:
        super().__init__()
        self.cell = cell.whole(inputs, width)
        self.holds, self.backward = cell.holds, backward

    def forward(self, x: Tensor, first: State, lengths: Tensor | None, wanted: bool) -> tuple[Tensor, State]:
        """BTD and the state before it, BD -> what is shown after each token, and, if wanted, the state at the end."""
        order = reversal(lengths, x) if self.backward else None
        x = x if order is None else turned(x, order)
        if lengths is None or not wanted:
            y, state = self.run(x, first)
        elif self.holds:
            y, state = self.careful(x, first, lengths)
        else:
            # All it remembers is what it shows, which can be looked up.
            y, _ = self.run(x, first)
            last = y[torch.arange(len(y), device=y.device), lengths.clamp_min(1) - 1]
            state = State(last).where(lengths > 0, first)
        return y if order is None else turned(y, order), state

    def run(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """Read all there is, padding as well."""
        shown = state.shown[None].contiguous()
        if state.held is None:
            y, shown = self.cell(x, shown)
            return y, State(shown[0])
        y, (shown, held) = self.cell(x, (shown, state.held[None].contiguous()))
        return y, State(shown[0], held[0])

    def careful(self, x: Tensor, state: State, lengths: Tensor) -> tuple[Tensor, State]:
        """All rows together as far as the shortest goes, then step by step: rows that ended keep their state."""
        shortest = int(lengths.min())
        parts = []
        if shortest:
            part, state = self.run(x[:, :shortest], state)
            parts.append(part)
        for t in range(shortest, x.shape[1]):
            part, after = self.run(x[:, t : t + 1], state)
            parts.append(part)
            state = after.where(lengths > t, state)
        return torch.cat(parts, dim=1), state


def reversal(lengths: Tensor | None, x: Tensor) -> Tensor:
    """-> (B)T: the slot to read at each turn when rows are read from their last token to their first."""
    steps = torch.arange(x.shape[1], device=x.device)
    if lengths is None:
        return steps.flip(0)
    last = lengths[:, None]
    return torch.where(steps < last, last - 1 - steps, steps)


def turned(x: Tensor, order: Tensor) -> Tensor:
    """BTD with its slots in this order."""
    return x[:, order] if order.dim() == 1 else x.gather(1, order[..., None].expand_as(x))


@dataclass(frozen=True)
class Carried:
    """The decoder begins with the encoder's last state, layer by layer (Sutskever 2014)."""

    def build(self, cell: Cell, depth: int, width: int, source_width: int) -> Beginning:
        """The module for so many cells of this width."""
        return CarriedBeginning(cell, depth)


@dataclass(frozen=True)
class Bridged:
    """The decoder begins with tanh(Wh) of what the encoder's cells showed last, layer by layer (Bahdanau 2014)."""

    def build(self, cell: Cell, depth: int, width: int, source_width: int) -> Beginning:
        """The module for so many cells of this width."""
        return BridgedBeginning(cell, depth, width, source_width)


@dataclass(frozen=True)
class Averaged:
    """The decoder begins with tanh(Wh) of the mean of the source's states, whatever encoder made them."""

    def build(self, cell: Cell, depth: int, width: int, source_width: int) -> Beginning:
        """The module for so many cells of this width."""
        return AveragedBeginning(cell, depth, width, source_width)


Begin = Carried | Bridged | Averaged


class Beginning(nn.Module):
    """A source -> the states a decoder begins with."""

    def __init__(self, cell: Cell, depth: int) -> None:
        super().__init__()
        self.depth, self.holds = depth, cell.holds

    def forward(self, source: Source) -> States:
        raise NotImplementedError

    def last(self, source: Source) -> States:
        """What the encoder's cells remembered at the end, one for each of ours: its highest serves all above it."""
        final: States | None = next((states for states in reversed(source.final or ()) if states is not None), None)
        if final is None:
            raise InputError("the encoder has no recurrent state to begin with. Use begin = averaged.")
        return tuple(final[min(number, len(final) - 1)] for number in range(self.depth))


class CarriedBeginning(Beginning):
    def forward(self, source: Source) -> States:
        states = self.last(source)
        if (states[0].held is None) == self.holds:
            raise InputError("the encoder's cells remember other things than the decoder's. Use begin = bridged.")
        return states


class BridgedBeginning(Beginning):
    def __init__(self, cell: Cell, depth: int, width: int, source_width: int) -> None:
        super().__init__(cell, depth)
        self.parts = 2 if cell.holds else 1
        self.bridges = nn.ModuleList(linear(source_width, self.parts * width, parts=self.parts) for _ in range(depth))

    def forward(self, source: Source) -> States:
        return tuple(self.across(bridge, state.shown) for bridge, state in zip(self.bridges, self.last(source)))

    def across(self, bridge: nn.Module, given: Tensor) -> State:
        """One cell's state, made of what it is given."""
        return State(*bridge(given).tanh().chunk(self.parts, dim=1))


class AveragedBeginning(BridgedBeginning):
    def forward(self, source: Source) -> States:
        states = source.states
        mean = states.mean(dim=1)
        if source.padding is not None:
            real = source.padding[..., None]
            mean = states.masked_fill(~real, 0.0).sum(dim=1) / real.sum(dim=1).clamp_min(1)
        return tuple(self.across(bridge, mean) for bridge in self.bridges)


@dataclass(frozen=True)
class Recurrent:
    """Cells on top of each other that read the sequence; read both ways, each direction has half the width."""

    cell: Cell = field(default_factory=LSTM)
    depth: int = 1
    reads: Reads = "forward"
    dropout: float = 0.0  # between one cell and the next
    begin: Begin | None = None  # of a decoder; nothing when not said
    name: ClassVar[str] = "recurrent"
    constant_memory: ClassVar[bool] = True  # what it remembers does not grow with the text
    packs: ClassVar[bool] = False  # its state goes on from one packed document to the next

    def __post_init__(self) -> None:
        if self.depth < 1:
            raise InputError(f"depth must be 1 or more, got {self.depth}.")
        if self.begin is not None and self.reads != "forward":
            raise InputError(f'a decoder cannot read what it has not said yet (reads = "{self.reads}").')

    def build(self, width: int, source_width: int | None = None) -> RecurrentLayer:
        """The module for a stream of this width over a source of that width."""
        if self.reads == "both" and width % 2:
            raise InputError(f"reading both ways needs an even width, got {width}. Try {width + 1}.")
        return RecurrentLayer(self, width, source_width or width)


class RecurrentLayer(Sublayer):
    def __init__(self, description: Recurrent, width: int, source_width: int) -> None:
        super().__init__()
        cell, depth = description.cell, description.depth
        self.layers = nn.ModuleList(Ways(cell, width, description.reads) for _ in range(depth))
        self.dropout = nn.Dropout(description.dropout)
        self.width, self.holds = width, cell.holds
        self.begin = description.begin.build(cell, depth, width, source_width) if description.begin else None

    def forward(self, x: Tensor, context: Context, memory: States | None = None) -> tuple[Tensor, States | None]:
        states = memory or self.first(x, context)
        wanted = context.remember or context.final
        lengths = None if context.padding is None else context.padding.sum(1)
        after = []
        for number, (layer, state) in enumerate(zip(self.layers, states)):
            x, state = layer(self.dropout(x) if number else x, state, lengths, wanted)
            after.append(state)
        return x, tuple(after) if wanted else None

    def first(self, x: Tensor, context: Context) -> States:
        """The states before the first token."""
        if self.begin is not None:
            assert context.source is not None
            begun: States = self.begin(context.source)
            return begun
        nothing = x.new_zeros(len(x), self.width)
        return len(self.layers) * (State(nothing, nothing if self.holds else None),)


class Ways(nn.ModuleList):
    """A reader for each direction, side by side."""

    def __init__(self, cell: Cell, width: int, reads: Reads) -> None:
        ways = {"forward": [False], "backward": [True], "both": [False, True]}[reads]
        super().__init__(Reader(cell, width, width // len(ways), backward) for backward in ways)

    def forward(self, x: Tensor, state: State, lengths: Tensor | None, wanted: bool) -> tuple[Tensor, State]:
        """BTD -> BTD; the state after the last token is right in padded rows only if it is wanted."""
        answers, shown, held = [], [], []
        for reader, first in zip(self, state.parts(len(self))):
            y, last = reader(x, first, lengths, wanted)
            answers.append(y)
            shown.append(last.shown)
            held += [] if last.held is None else [last.held]
        return torch.cat(answers, dim=-1), State(torch.cat(shown, dim=-1), torch.cat(held, dim=-1) if held else None)
