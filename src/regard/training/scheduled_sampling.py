"""Away from teacher forcing: some of the words a model reads become those it would have said (Bengio 2015).

The choice of words needs no gradient, so it is made first, by stepping through the target as a search does; then the
changed target is read like any other. Stepping equals reading at once, so every model learns this way alike.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch

from regard.errors import InputError
from regard.layers.contract import Context, Memory
from regard.models.model import Network


@dataclass(frozen=True)
class Linear:
    """The model's own share rises from 0 to `most` in so many steps."""

    steps: int = 10_000
    most: float = 0.5

    def __post_init__(self) -> None:
        if self.steps < 1 or not 0 <= self.most <= 1:
            raise InputError(f"steps must be 1 or more and most 0 to 1, got {self.steps} and {self.most}.")

    def share(self, step: int) -> float:
        """How many of the words are the model's own after so many steps."""
        return self.most * min(1.0, step / self.steps)


@dataclass(frozen=True)
class Exponential:
    """The teacher's share is multiplied by `base` at every step."""

    base: float = 0.9999

    def __post_init__(self) -> None:
        if not 0 < self.base <= 1:
            raise InputError(f"base must be above 0 and at most 1, got {self.base}.")

    def share(self, step: int) -> float:
        """How many of the words are the model's own after so many steps."""
        return 1 - self.base**step


@dataclass(frozen=True)
class InverseSigmoid:
    """The teacher's share is k / (k + exp(step / k)): it stays high at first, then falls quickly."""

    k: float = 1000.0

    def __post_init__(self) -> None:
        if not 1 <= self.k < math.inf:
            raise InputError(f"k must be 1 or more, got {self.k}.")

    def share(self, step: int) -> float:
        """How many of the words are the model's own after so many steps."""
        return 1 / (1 + self.k * math.exp(-step / self.k))


Sampling = Linear | Exponential | InverseSigmoid


@torch.no_grad()
def own_words(network: Network, inputs: dict[str, Any], share: float) -> dict[str, Any]:
    """The arguments of `Network.states`, with this share of the target's words replaced by the likeliest ones."""
    said = inputs["ids"].clone()
    own = torch.rand(said.shape, device=said.device) < share
    own[:, 0] = False
    if inputs.get("padding") is not None:
        own &= inputs["padding"]
    columns = own.any(dim=0).nonzero()
    if not len(columns):
        return inputs
    network.eval()
    try:
        context = Context(source=network.encode_source(inputs["source_ids"], inputs.get("source_padding")), remember=True)
        memory: Memory = None
        for t in range(int(columns[-1])):
            states, memory = network.decode(said[:, t : t + 1], replace(context, start=t), memory)
            rows = own[:, t + 1].nonzero().flatten()
            if len(rows):
                said[rows, t + 1] = network.readout(states[rows, 0]).argmax(dim=-1)
    finally:
        network.train()
    return {**inputs, "ids": said}
