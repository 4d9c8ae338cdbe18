"""ELMo's bidirectional language model (biLM): a forward and a backward LSTM that share no state (Peters 2018)."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.errors import InputError
from regard.layers.contract import Context, Memory, Sublayer
from regard.layers.recurrent import LSTM, SequenceCell, State, UnidirectionalRNN, initialise


@dataclass(frozen=True)
class ProjectedLSTM(SequenceCell):
    """An LSTM whose hidden state is a projection (LSTMP, Sak 2014); cell state and projection may be clipped."""

    inner: int  # the width of the cell state
    cell_clip: float | None = None
    projection_clip: float | None = None  # without a projection, hidden states lie between -1 and 1
    has_cell: ClassVar[bool] = True

    def __post_init__(self) -> None:
        for name in ("cell_clip", "projection_clip"):
            bound = getattr(self, name)
            if bound is not None and bound <= 0:
                raise InputError(f"{name} must be above 0, got {bound}.")

    def build(self, input_width: int, width: int) -> nn.RNNBase:
        """The module over whole sequences; it projects where `inner` is wider than the hidden state."""
        if self.inner < width:
            raise InputError(f"inner = {self.inner} is less than the hidden width {width}. Use inner = {4 * width}.")
        if self.inner == width and self.cell_clip is None:
            return LSTM().build(input_width, width)
        projection = width if self.inner > width else 0
        if self.cell_clip is None and self.projection_clip is None:
            module = LSTMP(input_width, self.inner, proj_size=projection, batch_first=True)
        else:
            module = ClippedLSTM(self, input_width, projection)
        initialise(module, LSTM())
        if projection:
            nn.init.xavier_uniform_(module.weight_hr_l0)
        return module


class LSTMP(nn.LSTM):
    """Torch's LSTM with projections, without its warning that oneDNN has no such kernel."""

    weight_ih_l0: Tensor
    weight_hh_l0: Tensor
    weight_hr_l0: Tensor
    bias_ih_l0: Tensor
    bias_hh_l0: Tensor

    def forward(self, *arguments: Any) -> Any:
        if torch._C._is_tracing():  # ONNX has no LSTM with projections, only loops
            return self.stepwise(*arguments)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "LSTM with projections is not supported with oneDNN")
            return super().forward(*arguments)

    def stepwise(
        self, x: Tensor, state: tuple[Tensor, Tensor], cell_clip: float | None = None, clip: float | None = None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """BTD and the initial hidden and cell state, 1BD each -> the hidden states BTD, and the final state."""
        projected = F.linear(x.transpose(0, 1), self.weight_ih_l0, self.bias_ih_l0 + self.bias_hh_l0)
        steps = torch.jit.script(_steps) if torch._C._is_tracing() else _steps  # traced, the loop would lose its end
        y, hidden, cell = steps(
            projected, state[0][0], state[1][0], self.weight_hh_l0.t(),
            self.weight_hr_l0 if self.proj_size else self.weight_hh_l0, self.proj_size > 0,
            math.inf if cell_clip is None else cell_clip, math.inf if clip is None else clip,
        )  # fmt: skip
        return y.transpose(0, 1), (hidden[None], cell[None])


class ClippedLSTM(LSTMP):
    """Torch's LSTM with clipping, one step at a time, since each step is clipped before the next one reads it."""

    def __init__(self, description: ProjectedLSTM, input_width: int, projection: int) -> None:
        super().__init__(input_width, description.inner, proj_size=projection, batch_first=True)
        self.cell_clip, self.projection_clip = description.cell_clip, description.projection_clip

    def forward(  # type: ignore[override]
        self, x: Tensor, state: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """BTD and the initial hidden and cell state, 1BD each -> the hidden states BTD, and the final state."""
        return self.stepwise(x, state, self.cell_clip, self.projection_clip)


def _steps(
    projected: Tensor,
    hidden: Tensor,
    cell: Tensor,
    hidden_weight: Tensor,
    projection: Tensor,
    projects: bool,
    cell_clip: float,
    clip: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """W x_t + b TBD, the initial state BD -> the hidden states TBD, and the final state; TorchScript reads it."""
    outputs = []
    for t in range(projected.shape[0]):
        gates = torch.addmm(projected[t], hidden, hidden_weight)
        i, f, g, o = gates.chunk(4, dim=1)  # input, forget, candidate, output gate
        cell = f.sigmoid() * cell + i.sigmoid() * g.tanh()  # c_t = f * c_{t-1} + i * g
        if cell_clip < math.inf:
            cell = cell.clamp(-cell_clip, cell_clip)
        hidden = o.sigmoid() * cell.tanh()  # o * tanh(c_t), which the projection W_hr maps to h_t
        if projects:
            hidden = torch.nn.functional.linear(hidden, projection)
            if clip < math.inf:
                hidden = hidden.clamp(-clip, clip)
        outputs.append(hidden)
    return torch.stack(outputs), hidden, cell


@dataclass(frozen=True)
class BidirectionalLSTM:
    """One layer of the biLM: a forward LSTM over the first half of the width, a backward LSTM over the second."""

    cell: ProjectedLSTM
    skip: bool = False  # a residual connection, as in every layer of ELMo but the first (Peters 2018)
    name: ClassVar[str] = "bidirectional_lstm"

    def build(self, width: int, source_width: int | None = None) -> BidirectionalLSTMLayer:
        if width % 2:
            raise InputError(f"a bidirectional LSTM needs an even width, got {width}. Try {width + 1}.")
        return BidirectionalLSTMLayer(self, width // 2)


class BidirectionalLSTMLayer(Sublayer):
    def __init__(self, description: BidirectionalLSTM, half: int) -> None:
        super().__init__()
        cell = description.cell
        self.directions = nn.ModuleList(UnidirectionalRNN(cell, half, half, backward) for backward in (False, True))
        self.inner, self.skip = cell.inner, description.skip

    def forward(self, x: Tensor, context: Context, memory: Memory = None) -> tuple[Tensor, Memory]:
        if context.remember:
            raise InputError("a bidirectional model cannot generate token by token: it also reads from the right.")
        lengths = None if context.padding is None else context.padding.sum(1)
        zeros = State(x.new_zeros(x.shape[0], x.shape[2] // 2), x.new_zeros(x.shape[0], self.inner))
        halves = zip(self.directions, x.chunk(2, dim=-1), memory or (zeros, zeros))
        found = [direction(half, state, lengths, context.final_state) for direction, half, state in halves]
        y = torch.cat([output for output, _ in found], dim=-1)
        return x + y if self.skip else y, tuple(state for _, state in found) if context.final_state else None
