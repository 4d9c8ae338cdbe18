"""Two readers side by side that never hear of each other, one from each end of the text."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.errors import InputError
from regard.layers.contract import Context, Memory, Sublayer
from regard.layers.recurrent import LSTM, Reader, State, begun


@dataclass(frozen=True)
class Projected:
    """An LSTM that shows a projection of what it holds (Sak 2014); both may be clipped to stay within a bound."""

    inner: int
    clip_held: float | None = None
    clip_shown: float | None = None  # of a projection; without one, what is shown lies between -1 and 1
    holds: ClassVar[bool] = True

    def __post_init__(self) -> None:
        for name in ("clip_held", "clip_shown"):
            bound = getattr(self, name)
            if bound is not None and bound <= 0:
                raise InputError(f"{name} must be above 0, got {bound}.")

    def whole(self, inputs: int, width: int) -> nn.RNNBase:
        """The module, which reads whole sequences; where it projects, inner is wider than what is shown."""
        if self.inner < width:
            raise InputError(f"a cell of inner = {self.inner} cannot show {width} numbers. Use inner = {4 * width}.")
        if self.inner == width and self.clip_held is None:
            return LSTM().whole(inputs, width)
        projection = width if self.inner > width else 0
        if self.clip_held is None and self.clip_shown is None:
            module = ProjectedLSTM(inputs, self.inner, proj_size=projection, batch_first=True)
        else:
            module = ClippedLSTM(self, inputs, projection)
        begun(module, LSTM())
        if projection:
            nn.init.xavier_uniform_(module.weight_hr_l0)
        return module


class ProjectedLSTM(nn.LSTM):
    """Torch's LSTM, which need not say that it has no faster way to project on a processor."""

    weight_ih_l0: Tensor
    weight_hh_l0: Tensor
    weight_hr_l0: Tensor
    bias_ih_l0: Tensor
    bias_hh_l0: Tensor

    def forward(self, *given: Any) -> Any:
        """As torch has it."""
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "LSTM with projections is not supported with oneDNN")
            return super().forward(*given)


class ClippedLSTM(ProjectedLSTM):
    """Torch's LSTM and its weights, one step at a time, because each step is clipped before the next one reads it."""

    def __init__(self, description: Projected, inputs: int, projection: int) -> None:
        super().__init__(inputs, description.inner, proj_size=projection, batch_first=True)
        self.held, self.shown = description.clip_held, description.clip_shown

    def forward(  # type: ignore[override]
        self, x: Tensor, state: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """BTD and the state before it, 1BD each -> what is shown after each token, and the state after the last."""
        shown, held = state[0][0], state[1][0]
        answers = []
        for read in F.linear(x.transpose(0, 1), self.weight_ih_l0, self.bias_ih_l0 + self.bias_hh_l0):
            gates = torch.addmm(read, shown, self.weight_hh_l0.t())
            write, keep, new, show = gates.chunk(4, dim=1)
            held = _clipped(keep.sigmoid() * held + write.sigmoid() * new.tanh(), self.held)
            shown = show.sigmoid() * held.tanh()
            if self.proj_size:
                shown = _clipped(F.linear(shown, self.weight_hr_l0), self.shown)
            answers.append(shown)
        return torch.stack(answers, dim=1), (shown[None], held[None])


def _clipped(x: Tensor, bound: float | None) -> Tensor:
    return x if bound is None else x.clamp(-bound, bound)


@dataclass(frozen=True)
class Apart:
    """The first half of the stream is read from the left, the second from the right, each by a cell of its own.

    `skip`: what was read is added to what is said, as in every layer of ELMo but the first (Peters 2018).
    """

    cell: Projected
    skip: bool = False
    name: ClassVar[str] = "apart"
    packs: ClassVar[bool] = False  # its state goes on from one packed document to the next

    def build(self, width: int, source_width: int | None = None) -> ApartLayer:
        """The module for a stream of this width."""
        if width % 2:
            raise InputError(f"two readers apart need an even width, got {width}. Try {width + 1}.")
        return ApartLayer(self, width // 2)


class ApartLayer(Sublayer):
    def __init__(self, description: Apart, half: int) -> None:
        super().__init__()
        cell = description.cell
        self.readers = nn.ModuleList(Reader(cell, half, half, backward) for backward in (False, True))
        self.inner, self.skip = cell.inner, description.skip

    def forward(self, x: Tensor, context: Context, memory: Memory = None) -> tuple[Tensor, Memory]:
        if context.remember:
            raise InputError("a model that also reads from the right cannot write word by word (apart).")
        lengths = None if context.padding is None else context.padding.sum(1)
        halves = x.chunk(2, dim=-1)
        y = torch.cat([self.read(reader, half, lengths) for reader, half in zip(self.readers, halves)], dim=-1)
        return x + y if self.skip else y, None

    def read(self, reader: nn.Module, half: Tensor, lengths: Tensor | None) -> Tensor:
        """One direction's half of the stream, from its own end of each row."""
        first = State(half.new_zeros(len(half), half.shape[2]), half.new_zeros(len(half), self.inner))
        y: Tensor = reader(half, first, lengths, False)[0]
        return y
