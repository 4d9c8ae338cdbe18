"""Recurrent layers: RNN, GRU and LSTM cells, unidirectional or bidirectional, and a decoder's initial state."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from regard.errors import InputError
from regard.layers.contract import Context, Facts, Source, Sublayer, require_counts
from regard.layers.dropout import Dropout
from regard.layers.linear import StepProduct, linear


@dataclass(frozen=True)
class State:
    """A recurrent state: the hidden state h_t, RD, and an LSTM's cell state c_t."""

    hidden: Tensor
    cell: Tensor | None = None

    def where(self, rows: Tensor, other: State) -> State:
        """Take this state in the rows that are True (R), the other in the rest."""
        hidden = torch.where(rows[:, None], self.hidden, other.hidden)
        if self.cell is None or other.cell is None:
            return State(hidden)
        return State(hidden, torch.where(rows[:, None], self.cell, other.cell))

    def chunk(self, count: int) -> list[State]:
        """The state cut along its width, one part per direction."""
        cells = count * [None] if self.cell is None else self.cell.chunk(count, dim=1)
        return [State(hidden, cell) for hidden, cell in zip(self.hidden.chunk(count, dim=1), cells)]


States = tuple[State, ...]
"""The states of stacked cells, the lowest first."""


Products = tuple[StepProduct, StepProduct]
"""The products of a step: with what the cell reads besides the token, and with its hidden state."""
Advance = Callable[[Tensor, Tensor, State], State]
"""One recurrent step: the projected token, what the cell reads besides, the state -> the new state."""


class Step(nn.Module):
    """One recurrent step.

    `projected`, R, gates * D, is W x_t + b of the token x_t, computed for all tokens at once since it needs no state.
    `inputs` is what the cell reads besides the token: a context vector, or the hidden state of the cell below.
    """

    direct_weights: ClassVar[tuple[str, ...]] = (
        "inputs",
        "hidden",
    )  # multiplied with, not called: no adapter adds to them

    def __init__(self, gates: int, input_width: int, width: int, *, biased: bool = False) -> None:
        super().__init__()
        self.inputs = linear(input_width, gates * width, parts=gates, biased=False)
        self.hidden = linear(width, gates * width, parts=gates, biased=biased)

    def begin(self) -> Advance:
        """The step of one loop over tokens, whose products share the gradients of the weights."""
        return partial(self, products=self.products())

    def products(self) -> Products:
        """The products of one loop, or of one step that is alone."""
        return StepProduct(self.inputs.weight), StepProduct(self.hidden.weight)

    def forward(self, projected: Tensor, inputs: Tensor, state: State, products: Products | None = None) -> State:
        raise NotImplementedError

    def gates(self, projected: Tensor, inputs: Tensor, state: State, products: Products | None) -> Tensor:
        """-> R, gates * D: W x_t + b + C inputs + U h_{t-1}, before the nonlinearities."""
        of_inputs, of_hidden = products or self.products()
        return of_hidden(state.hidden, of_inputs(inputs, projected))


class SequenceCell:
    """The base of recurrent cells, as far as a layer over whole sequences needs one."""

    has_cell: ClassVar[bool] = False  # whether it has a cell state as well as a hidden state

    def build(self, input_width: int, width: int) -> nn.RNNBase:
        """The module over whole sequences."""
        raise NotImplementedError


@dataclass(frozen=True)
class RNN(SequenceCell):
    """A simple recurrent network (Elman 1990)."""

    gates: ClassVar[int] = 1

    def build(self, input_width: int, width: int) -> nn.RNNBase:
        return initialise(nn.RNN(input_width, width, batch_first=True), self)

    def build_step(self, input_width: int, width: int) -> Step:
        return RNNStep(self.gates, input_width, width)


class RNNStep(Step):
    def forward(self, projected: Tensor, inputs: Tensor, state: State, products: Products | None = None) -> State:
        return State(self.gates(projected, inputs, state, products).tanh())  # h_t = tanh(W x_t + U h_{t-1} + b)


@dataclass(frozen=True)
class GRU(SequenceCell):
    """A gated recurrent unit with a reset gate and an update gate (Cho 2014)."""

    gates: ClassVar[int] = 3

    def build(self, input_width: int, width: int) -> nn.RNNBase:
        return initialise(nn.GRU(input_width, width, batch_first=True), self)

    def build_step(self, input_width: int, width: int) -> Step:
        return GRUStep(self.gates, input_width, width, biased=True)


class GRUStep(Step):
    def forward(self, projected: Tensor, inputs: Tensor, state: State, products: Products | None = None) -> State:
        width, (of_inputs, of_hidden) = state.hidden.shape[1], products or self.products()
        x = of_inputs(inputs, projected)  # W x_t + b
        h = of_hidden(state.hidden, self.hidden.bias)  # U h_{t-1} + b'
        r, z = (x[:, : 2 * width] + h[:, : 2 * width]).sigmoid().chunk(2, dim=1)  # reset gate, update gate
        n = torch.addcmul(x[:, 2 * width :], r, h[:, 2 * width :]).tanh()  # candidate n = tanh(W x_t + r * U h_{t-1})
        return State(torch.lerp(n, state.hidden.to(n), z))  # h_t = (1 - z) * n + z * h_{t-1}


@dataclass(frozen=True)
class LSTM(SequenceCell):
    """A long short-term memory with a forget gate (Hochreiter 1997, Gers 2000)."""

    gates: ClassVar[int] = 4
    has_cell: ClassVar[bool] = True

    def build(self, input_width: int, width: int) -> nn.RNNBase:
        return initialise(nn.LSTM(input_width, width, batch_first=True), self)

    def build_step(self, input_width: int, width: int) -> Step:
        return LSTMStep(self.gates, input_width, width)


class LSTMStep(Step):
    def forward(self, projected: Tensor, inputs: Tensor, state: State, products: Products | None = None) -> State:
        assert state.cell is not None
        i, f, g, o = self.gates(projected, inputs, state, products).chunk(
            4, dim=1
        )  # input, forget, candidate, output gate
        cell = torch.addcmul(f.sigmoid() * state.cell, i.sigmoid(), g.tanh())  # c_t = f * c_{t-1} + i * g
        return State(hidden=o.sigmoid() * cell.tanh(), cell=cell)  # h_t = o * tanh(c_t)


Cell = RNN | GRU | LSTM


def initialise(module: nn.RNNBase, cell: Cell) -> nn.RNNBase:
    """Torch's module with Glorot initialization per gate, as in all linear maps here."""
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if name.startswith("bias_ih"):
                parameter.copy_(initial_bias(cell, module.hidden_size))
            elif name.startswith("bias"):
                parameter.zero_()
            else:
                for gate in parameter.chunk(cell.gates):
                    nn.init.xavier_uniform_(gate)
    return module


def initial_bias(cell: Cell, width: int) -> Tensor:
    """-> gates * width: zeros, but ones for the forget gate, so that a new LSTM keeps its cell state."""
    bias = torch.zeros(cell.gates, width)
    if cell.has_cell:
        bias[1] = 1.0
    return bias.flatten()


Direction = Literal["forward", "backward", "bidirectional"]


class UnidirectionalRNN(nn.Module):
    """One cell over whole sequences, forward or backward. Padding leaves its state unchanged."""

    def __init__(self, cell: SequenceCell, input_width: int, width: int, backward: bool) -> None:
        super().__init__()
        self.rnn = cell.build(input_width, width)
        self.has_cell, self.backward = cell.has_cell, backward

    def forward(self, x: Tensor, initial: State, lengths: Tensor | None, final_state: bool) -> tuple[Tensor, State]:
        """BTD, initial state BD -> hidden states BTD, final state (of padded rows right only if `final_state`)."""
        order = reversed_order(lengths, x) if self.backward else None
        x = x if order is None else reorder(x, order)
        if lengths is None or not final_state:
            y, state = self.run(x, initial)
        elif self.has_cell:
            y, state = self.run_padded(x, initial, lengths)
        else:
            # Without a cell state, the final state is the hidden state of the last token.
            y, _ = self.run(x, initial)
            last = y[torch.arange(y.shape[0], device=y.device), lengths.clamp_min(1) - 1]
            state = State(last).where(lengths > 0, initial)
        return y if order is None else reorder(y, order), state

    def run(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """Run over all positions, padding included."""
        hidden = state.hidden[None].contiguous()
        if state.cell is None:
            y, hidden = self.rnn(x, hidden)
            return y, State(hidden[0])
        y, (hidden, cell) = self.rnn(x, (hidden, state.cell[None].contiguous()))
        return y, State(hidden[0], cell[0])

    def run_padded(self, x: Tensor, state: State, lengths: Tensor) -> tuple[Tensor, State]:
        """Run up to the shortest row's end at once, then step by step: rows that have ended keep their state."""
        if torch._C._is_tracing():
            return self.run_packed(x, state, lengths)
        shortest = int(lengths.min())
        outputs = []
        if shortest:
            y, state = self.run(x[:, :shortest], state)
            outputs.append(y)
        for t in range(shortest, x.shape[1]):
            y, new = self.run(x[:, t : t + 1], state)
            outputs.append(y)
            state = new.where(lengths > t, state)
        return torch.cat(outputs, dim=1), state

    def run_packed(self, x: Tensor, state: State, lengths: Tensor) -> tuple[Tensor, State]:
        """As `run_padded`, for an exported graph: slower here, but the same operations for any lengths."""
        assert state.cell is not None
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths.clamp_min(1), batch_first=True, enforce_sorted=False)
        y, (hidden, cell) = self.rnn(packed, (state.hidden[None].contiguous(), state.cell[None].contiguous()))
        y, _ = nn.utils.rnn.pad_packed_sequence(y, batch_first=True, total_length=x.shape[1])
        return y, State(hidden[0], cell[0]).where(lengths > 0, state)


def reversed_order(lengths: Tensor | None, x: Tensor) -> Tensor:
    """-> (B)T: the index order that reverses each row's tokens and leaves its padding at the end."""
    steps = torch.arange(x.shape[1], device=x.device)
    if lengths is None:
        return steps.flip(0)
    last = lengths[:, None]
    return torch.where(steps < last, last - 1 - steps, steps)


def reorder(x: Tensor, order: Tensor) -> Tensor:
    """BTD with its tokens in this order, (B)T."""
    return x[:, order] if order.dim() == 1 else x.gather(1, order[..., None].expand_as(x))


@dataclass(frozen=True)
class Copied:
    """The decoder's initial state is the encoder's final state, layer by layer (Sutskever 2014)."""

    def build(self, cell: Cell, depth: int, width: int, source_width: int) -> InitialStates:
        return CopiedStates(cell, depth)


@dataclass(frozen=True)
class Projected:
    """The decoder's initial state is tanh(W h) of the encoder's final hidden state, per layer (Bahdanau 2014)."""

    def build(self, cell: Cell, depth: int, width: int, source_width: int) -> InitialStates:
        return ProjectedStates(cell, depth, width, source_width)


@dataclass(frozen=True)
class Averaged:
    """The decoder's initial state is tanh(W h) of the mean of the encoder's outputs; the encoder may be of any kind."""

    def build(self, cell: Cell, depth: int, width: int, source_width: int) -> InitialStates:
        return AveragedStates(cell, depth, width, source_width)


InitialState = Copied | Projected | Averaged


class InitialStates(nn.Module):
    """A source -> the initial state of each of the decoder's cells."""

    def __init__(self, cell: Cell, depth: int) -> None:
        super().__init__()
        self.depth, self.has_cell = depth, cell.has_cell

    def forward(self, source: Source) -> States:
        raise NotImplementedError

    def encoder_states(self, source: Source) -> States:
        """The encoder's final states, one per cell of the decoder; a deeper decoder repeats the last one."""
        states: list[States] = [layer for layer in source.final_state or () if layer is not None]
        if not states:
            raise InputError('the encoder has no recurrent state to start from. Use initial_state = "averaged".')
        highest = states[-1]
        return tuple(highest[min(number, len(highest) - 1)] for number in range(self.depth))


class CopiedStates(InitialStates):
    def forward(self, source: Source) -> States:
        states = self.encoder_states(source)
        if (states[0].cell is None) == self.has_cell:
            raise InputError(
                'the cells of encoder and decoder have different kinds of state. Use initial_state = "projected".'
            )
        return states


class ProjectedStates(InitialStates):
    def __init__(self, cell: Cell, depth: int, width: int, source_width: int) -> None:
        super().__init__(cell, depth)
        self.parts = 2 if cell.has_cell else 1
        outputs = self.parts * width
        self.projections = nn.ModuleList(linear(source_width, outputs, parts=self.parts) for _ in range(depth))

    def forward(self, source: Source) -> States:
        states = self.encoder_states(source)
        return tuple(self.project(projection, state.hidden) for projection, state in zip(self.projections, states))

    def project(self, projection: nn.Module, h: Tensor) -> State:
        """One cell's initial state: tanh(W h + b)."""
        return State(*projection(h).tanh().chunk(self.parts, dim=1))


class AveragedStates(ProjectedStates):
    def forward(self, source: Source) -> States:
        mean = mean_state(source.states, source.padding)
        return tuple(self.project(projection, mean) for projection in self.projections)


def mean_state(states: Tensor, padding: Tensor | None) -> Tensor:
    """BTD -> BD: the mean over all tokens but padding."""
    if padding is None:
        return states.mean(dim=1)
    real = padding[..., None]
    return states.masked_fill(~real, 0.0).sum(dim=1) / real.sum(dim=1).clamp_min(1)


@dataclass(frozen=True)
class Recurrent:
    """Stacked recurrent cells; each direction of a bidirectional one has half the width."""

    cell: Cell = field(default_factory=LSTM)
    depth: int = 1
    direction: Direction = "forward"
    dropout: float = 0.0  # between one cell and the next
    initial_state: InitialState | None = None  # of a decoder; zeros by default
    name: ClassVar[str] = "recurrent"
    facts: ClassVar[Facts] = Facts(constant_memory=True)

    def __post_init__(self) -> None:
        require_counts(depth=self.depth)
        if self.initial_state is not None and self.direction != "forward":
            raise InputError(f'a decoder only runs forward (direction = "{self.direction}").')

    def build(self, width: int, source_width: int | None = None) -> RecurrentLayer:
        if self.direction == "bidirectional" and width % 2:
            raise InputError(f"a bidirectional layer needs an even width, got {width}. Try {width + 1}.")
        return RecurrentLayer(self, width, source_width or width)


class RecurrentLayer(Sublayer):
    def __init__(self, description: Recurrent, width: int, source_width: int) -> None:
        super().__init__()
        cell, depth, initial = description.cell, description.depth, description.initial_state
        self.layers = nn.ModuleList(Directions(cell, width, description.direction) for _ in range(depth))
        self.dropout = Dropout(description.dropout)
        self.width, self.has_cell = width, cell.has_cell
        self.initial_state = initial.build(cell, depth, width, source_width) if initial else None

    def forward(self, x: Tensor, context: Context, memory: States | None = None) -> tuple[Tensor, States | None]:
        states = memory or self.initial_states(x, context)
        final_state = context.remember or context.final_state
        lengths = None if context.padding is None else context.padding.sum(1)
        final = []
        for number, (layer, state) in enumerate(zip(self.layers, states)):
            x, state = layer(self.dropout(x) if number else x, state, lengths, final_state)
            final.append(state)
        return x, tuple(final) if final_state else None

    def initial_states(self, x: Tensor, context: Context) -> States:
        """The states before the first token."""
        if self.initial_state is not None:
            assert context.source is not None
            states: States = self.initial_state(context.source)
            return states
        zeros = x.new_zeros(x.shape[0], self.width)
        return len(self.layers) * (State(zeros, zeros if self.has_cell else None),)


class Directions(nn.ModuleList):
    """One layer's unidirectional RNNs, forward and backward; their outputs are concatenated."""

    def __init__(self, cell: Cell, width: int, direction: Direction) -> None:
        backwards = {"forward": [False], "backward": [True], "bidirectional": [False, True]}[direction]
        super().__init__(UnidirectionalRNN(cell, width, width // len(backwards), backward) for backward in backwards)

    def forward(self, x: Tensor, state: State, lengths: Tensor | None, final_state: bool) -> tuple[Tensor, State]:
        """BTD -> BTD, and the final state."""
        outputs, hidden, cells = [], [], []
        for rnn, initial in zip(self, state.chunk(len(self))):
            y, final = rnn(x, initial, lengths, final_state)
            outputs.append(y)
            hidden.append(final.hidden)
            cells += [] if final.cell is None else [final.cell]
        cell = torch.cat(cells, dim=-1) if cells else None
        return torch.cat(outputs, dim=-1), State(torch.cat(hidden, dim=-1), cell)
