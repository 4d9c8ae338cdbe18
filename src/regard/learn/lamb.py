"""LAMB (You 2019, algorithm 2) with a least trust (Merity 2019), which neither torch nor a light library has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


class LambSteps(torch.optim.Optimizer):
    """Adam's step, made as long as its weights are large, though never shorter than `least_trust` times Adam's."""

    def __init__(
        self, groups: list[dict[str, Any]], betas: tuple[float, float], epsilon: float, least_trust: float
    ) -> None:
        super().__init__(groups, {"lr": 0.0, "betas": betas, "eps": epsilon, "least_trust": least_trust})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Move every weight that has a gradient."""
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    self.move(weight, weight.grad, group)

    def move(self, weight: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        """Move one weight."""
        state, (first, second) = self.state[weight], group["betas"]
        if not state:
            state |= {"step": torch.zeros(()), "exp_avg": zeros(weight), "exp_avg_sq": zeros(weight)}
        state["step"] += 1
        count = float(state["step"])
        state["exp_avg"].lerp_(gradient, 1 - first)
        state["exp_avg_sq"].mul_(second).addcmul_(gradient, gradient, value=1 - second)
        spread = (state["exp_avg_sq"] / (1 - second**count)).sqrt_().add_(group["eps"])
        update = (state["exp_avg"] / (1 - first**count)).div_(spread).add_(weight, alpha=group["weight_decay"])
        size, length = weight.norm(), update.norm()
        trust = torch.where((size > 0) & (length > 0), size / length, 1.0).clamp_min(group["least_trust"])
        weight.sub_(update.mul_(group["lr"] * trust))


def zeros(weight: Tensor) -> Tensor:
    """As many zeros as there are weights."""
    return torch.zeros_like(weight, memory_format=torch.preserve_format)
