"""How weights move: the optimizer, and how fast it goes at each step."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import nn

from regard.errors import InputError


@dataclass(frozen=True)
class AdamW:
    """Adam with weight decay apart from the gradient (Loshchilov 2019); norms, biases and vectors do not decay."""

    betas: tuple[float, float] = (0.9, 0.98)
    epsilon: float = 1e-9
    decay: float = 0.01

    def __post_init__(self) -> None:
        if not all(0 <= beta < 1 for beta in self.betas) or self.epsilon <= 0 or self.decay < 0:
            raise InputError(f"betas must lie in 0 to 1, epsilon above 0, decay at 0 or more; got {self}.")

    def build(self, module: nn.Module, rate: float) -> torch.optim.Optimizer:
        """The optimizer of a module's parameters."""
        matrices = [parameter for parameter in module.parameters() if parameter.dim() >= 2]
        others = [parameter for parameter in module.parameters() if parameter.dim() < 2]
        groups = [{"params": matrices, "weight_decay": self.decay}, {"params": others, "weight_decay": 0.0}]
        return torch.optim.AdamW(groups, lr=rate, betas=self.betas, eps=self.epsilon, fused=True)


Optimizer = AdamW


@dataclass(frozen=True)
class InverseSquareRoot:
    """Rises linearly, then falls with the square root of the step (Vaswani 2017, equation 3)."""

    warmup: int = 4000
    aims: ClassVar[bool] = False  # whether the rate of a step depends on how many there will be

    def factor(self, step: int, steps: int) -> float:
        """What the rate is multiplied by at a step, counted from 1."""
        warmup = max(1, self.warmup)
        return min(step / warmup, math.sqrt(warmup / step))


@dataclass(frozen=True)
class Cosine:
    """Rises linearly, then falls along half a cosine to `floor` at the last step."""

    warmup: int = 0
    floor: float = 0.0
    aims: ClassVar[bool] = True

    def factor(self, step: int, steps: int) -> float:
        """What the rate is multiplied by at a step, counted from 1."""
        if step <= self.warmup:
            return step / self.warmup
        return self.floor + (1 - self.floor) * (1 + math.cos(math.pi * _done(step, self.warmup, steps))) / 2


@dataclass(frozen=True)
class Linear:
    """Rises linearly, then falls linearly to `floor` at the last step."""

    warmup: int = 0
    floor: float = 0.0
    aims: ClassVar[bool] = True

    def factor(self, step: int, steps: int) -> float:
        """What the rate is multiplied by at a step, counted from 1."""
        if step <= self.warmup:
            return step / self.warmup
        return 1 - (1 - self.floor) * _done(step, self.warmup, steps)


@dataclass(frozen=True)
class Constant:
    """Rises linearly, then stays."""

    warmup: int = 0
    aims: ClassVar[bool] = False

    def factor(self, step: int, steps: int) -> float:
        """What the rate is multiplied by at a step, counted from 1."""
        return min(1.0, step / self.warmup) if self.warmup else 1.0


Schedule = InverseSquareRoot | Cosine | Linear | Constant


def _done(step: int, warmup: int, steps: int) -> float:
    return min(1.0, (step - warmup) / max(1, steps - warmup))
