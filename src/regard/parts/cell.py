"""Recurrent cells: a state that reads one token after another."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from regard.parts.linear import linear


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
