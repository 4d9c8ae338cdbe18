"""Linear maps with Glorot initialization (Glorot and Bengio 2010), layer normalization and RMSNorm."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn


def linear(inputs: int, outputs: int, *, parts: int = 1, biased: bool = True) -> nn.Linear:
    """A linear map with a bias of 0; `parts` equal maps of one input may share its matrix, each with its own scale."""
    module = nn.Linear(inputs, outputs, bias=biased)
    for part in module.weight.chunk(parts):
        nn.init.xavier_uniform_(part)
    if biased:
        nn.init.zeros_(module.bias)
    return module


def normal_table(rows: int, width: int, std: float) -> Tensor:
    """Vectors drawn from a normal distribution; empty on the meta device, where drawing imports much of torch."""
    weight = torch.empty(rows, width)
    return weight if weight.is_meta else nn.init.normal_(weight, std=std)


def matrix_per_head(heads: int, rows: int, columns: int) -> nn.Parameter:
    """One matrix per head: H, rows, columns."""
    bound = math.sqrt(6 / (rows + columns))
    return nn.Parameter(torch.empty(heads, rows, columns).uniform_(-bound, bound))


def per_head(x: Tensor, matrices: Tensor) -> Tensor:
    """BH...K by HKJ -> BH...J: one matrix product per head over all rows at once."""
    heads = x.transpose(0, 1)
    product = torch.bmm(heads.reshape(len(heads), -1, x.shape[-1]), matrices)
    return product.view(*heads.shape[:-1], matrices.shape[-1]).transpose(0, 1)


@dataclass(frozen=True)
class LayerNorm:
    """Layer normalization (Ba 2016): mean 0 and variance 1 over the width, then a trained scale and shift."""

    epsilon: float = 1e-5

    def build(self, width: int) -> nn.Module:
        """The module for a stream of this width."""
        return nn.LayerNorm(width, eps=self.epsilon)


@dataclass(frozen=True)
class RMSNorm:
    """Root mean square normalization (Zhang 2019): only the scale of layer normalization."""

    epsilon: float = 1e-6

    def build(self, width: int) -> nn.Module:
        """The module for a stream of this width."""
        return nn.RMSNorm(width, eps=self.epsilon)


Norm = LayerNorm | RMSNorm
