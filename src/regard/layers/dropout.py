"""Dropout with few random bits: on a CPU most of its time is spent drawing random numbers."""

from __future__ import annotations

import torch
from torch import Tensor, nn

_LEVELS = 1 << 16  # of the random number that decides about one element


class Dropout(nn.Dropout):
    """Dropout (Srivastava 2014), with 16 random bits per element on a CPU; p is rounded to a multiple of 2 ** -16."""

    def forward(self, x: Tensor) -> Tensor:
        """Some elements become 0, the others larger, so that the mean stays the same."""
        if not self.training:
            return x
        dropped = round(self.p * _LEVELS)
        if not (x.device.type == "cpu" and 0 < dropped < _LEVELS):
            return super().forward(x)
        words = torch.empty((x.numel() + 3) // 4, dtype=torch.int64).random_(-(1 << 63), None)
        numbers = words.view(torch.int16)[: x.numel()].view(x.shape)
        kept = torch.ge(numbers, dropped - _LEVELS // 2, out=torch.empty(x.shape, dtype=x.dtype))
        return x * kept.mul_(_LEVELS / (_LEVELS - dropped))
