"""Scheduled sampling: less teacher forcing, because predictions replace some target tokens (Bengio 2015).

The predictions need no gradient: they are made first, by stepping through the target as in greedy search. Then the
mixed target is read in one pass like any other, so every encoder-decoder can be trained this way.
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
    """The probability of a prediction rises linearly from 0 to `max_probability` in this many steps."""

    steps: int = 10_000
    max_probability: float = 0.5

    def __post_init__(self) -> None:
        if self.steps < 1 or not 0 <= self.max_probability <= 1:
            raise InputError(
                f"steps must be 1 or more and max_probability 0 to 1, got {self.steps} and {self.max_probability}."
            )

    def probability(self, step: int) -> float:
        """The probability that a target token is replaced, after this many steps."""
        return self.max_probability * min(1.0, step / self.steps)


@dataclass(frozen=True)
class Exponential:
    """The probability of teacher forcing is `base` to the power of the step."""

    base: float = 0.9999

    def __post_init__(self) -> None:
        if not 0 < self.base <= 1:
            raise InputError(f"base must be above 0 and at most 1, got {self.base}.")

    def probability(self, step: int) -> float:
        return 1 - self.base**step


@dataclass(frozen=True)
class InverseSigmoid:
    """The probability of teacher forcing is k / (k + exp(step / k)): it stays high at first, then falls quickly."""

    k: float = 1000.0

    def __post_init__(self) -> None:
        if not 1 <= self.k < math.inf:
            raise InputError(f"k must be 1 or more, got {self.k}.")

    def probability(self, step: int) -> float:
        return 1 / (1 + self.k * math.exp(-step / self.k))


ScheduledSampling = Linear | Exponential | InverseSigmoid


@torch.no_grad()
def with_model_predictions(network: Network, inputs: dict[str, Any], probability: float) -> dict[str, Any]:
    """The inputs of a decoder, each target token replaced by the network's greedy prediction with this probability."""
    ids = inputs["ids"].clone()
    replaced = torch.rand(ids.shape, device=ids.device) < probability
    replaced[:, 0] = False
    if inputs.get("padding") is not None:
        replaced &= inputs["padding"]
    columns = replaced.any(dim=0).nonzero()
    if not len(columns):
        return inputs
    network.eval()
    try:
        source = network.encode_source(inputs["source_ids"], inputs.get("source_padding"))
        context = Context(source=source, remember=True)
        memory: Memory = None
        for t in range(int(columns[-1])):
            states, memory = network.decode(ids[:, t : t + 1], replace(context, start=t), memory)
            rows = replaced[:, t + 1].nonzero().flatten()
            if len(rows):
                ids[rows, t + 1] = network.readout(states[rows, 0]).argmax(dim=-1)
    finally:
        network.train()
    return {**inputs, "ids": ids}
