"""Weights of linear maps as products without gradients read them: packed, in bfloat16, or in int8.

int8 has one scale per output of the weights and one per row of the inputs (Dettmers 2022, section 2.1: vector-wise
quantization). Its sums are exact, so the outputs of a row never depend on the other rows of a batch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

InferencePrecision = Literal["float32", "bfloat16", "int8"]
"""Of the inputs and weights of linear maps in inference; what is summed and all else stays float32."""

PRECISIONS: tuple[InferencePrecision, ...] = ("float32", "bfloat16", "int8")

LEAST_INT8 = 1 << 17  # weights of a matrix in int8, at least: below, the conversion costs what the product gains
_LARGEST = 127  # of int8
_BLOCK = 1 << 19  # outputs that are computed at once, so that they stay in the cache
_PACKED_ROWS = 64  # for which the order of packed weights is chosen; it serves any number


class PackedWeight(Protocol):
    """Weights NK, ready for products."""

    def __call__(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """...K, N -> ...N: the product, plus the bias."""


PackWeight = Callable[[Tensor], PackedWeight]
"""Packs weights NK."""


class OneDNNWeight:
    """In the order in which oneDNN reads them."""

    def __init__(self, weight: Tensor) -> None:
        self.packed = torch.ops.mkldnn._reorder_linear_weight(weight, _PACKED_ROWS)
        self.product = torch.ops.mkldnn._linear_pointwise.default

    def __call__(self, x: Tensor, bias: Tensor | None) -> Tensor:
        found: Tensor = self.product(x, self.packed, bias, "none", [], "")
        return found


class BFloat16Weight:
    """In bfloat16: 8 bits of precision, the range of float32."""

    def __init__(self, weight: Tensor) -> None:
        self.weight = weight.bfloat16()

    def __call__(self, x: Tensor, bias: Tensor | None) -> Tensor:
        found = F.linear(x.bfloat16(), self.weight).to(x.dtype)
        return found if bias is None else found.add_(bias)


class Int8Weight:
    """In int8, one scale per output; inputs are converted with one scale per row."""

    def __init__(self, weight: Tensor) -> None:
        scales = _largest(weight) / _LARGEST
        self.numbers = (weight / scales).round_().to(torch.int8).t()
        self.scales = scales[:, 0] / _LARGEST

    def __call__(self, x: Tensor, bias: Tensor | None) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])
        outputs = rows.new_empty(len(rows), len(self.scales))
        block = max(1, _BLOCK // len(self.scales))
        for part, found in zip(rows.split(block), outputs.split(block)):
            largest = _largest(part)
            numbers = (part * (_LARGEST / largest)).round_().to(torch.int8)
            found.copy_(torch._int_mm(numbers, self.numbers)).mul_(self.scales)
            _ = found.mul_(largest) if bias is None else torch.addcmul(bias, found, largest, out=found)
        return outputs.view(*x.shape[:-1], -1)


def _largest(rows: Tensor) -> Tensor:
    """RK -> R1: the largest magnitude of each row; never 0."""
    return rows.abs().amax(dim=-1, keepdim=True).clamp_min_(torch.finfo(torch.float32).tiny * _LARGEST)
