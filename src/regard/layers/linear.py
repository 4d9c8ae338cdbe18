"""Linear maps, initialised as Glorot and Bengio (2010) have it, without a bias at first."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn


def linear(inputs: int, outputs: int, *, parts: int = 1, biased: bool = True) -> nn.Linear:
    """A linear map; `parts` equal maps that share their input may stand in one matrix, each with its own scale."""
    module = nn.Linear(inputs, outputs, bias=biased)
    for part in module.weight.chunk(parts):
        nn.init.xavier_uniform_(part)
    if biased:
        nn.init.zeros_(module.bias)
    return module


def table(rows: int, width: int, spread: float) -> Tensor:
    """Vectors drawn from a normal distribution; on the meta device only their shape: to draw there imports a lot."""
    weight = torch.empty(rows, width)
    return weight if weight.is_meta else nn.init.normal_(weight, std=spread)


def matrix_per_head(heads: int, rows: int, columns: int) -> nn.Parameter:
    """One matrix a head: H, rows, columns."""
    bound = math.sqrt(6 / (rows + columns))
    return nn.Parameter(torch.empty(heads, rows, columns).uniform_(-bound, bound))


def per_head(x: Tensor, matrices: Tensor) -> Tensor:
    """BH...K by HKJ -> BH...J: all that a head has is multiplied at once, not row by row."""
    heads = x.transpose(0, 1)
    product = torch.bmm(heads.reshape(len(heads), -1, x.shape[-1]), matrices)
    return product.view(*heads.shape[:-1], matrices.shape[-1]).transpose(0, 1)


@dataclass(frozen=True)
class LayerNorm:
    """Mean 0 and variance 1 over the width, then a learnt scale and shift (Ba 2016)."""

    epsilon: float = 1e-5

    def build(self, width: int) -> nn.Module:
        """The module for a stream of this width."""
        return nn.LayerNorm(width, eps=self.epsilon)


@dataclass(frozen=True)
class RMSNorm:
    """Only the scale of layer normalisation (Zhang 2019)."""

    epsilon: float = 1e-6

    def build(self, width: int) -> nn.Module:
        """The module for a stream of this width."""
        return nn.RMSNorm(width, eps=self.epsilon)


Norm = LayerNorm | RMSNorm
