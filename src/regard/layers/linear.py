"""Linear maps, and the product of matrices that they are made of, by the faster of two libraries.

PyTorch multiplies float32 matrices with MKL, which uses AVX-512 on Intel's processors only. PyTorch also contains
oneDNN, which uses it on AMD's too, and was measured to be 2.3 times as fast there, forward and backward. The choice
depends on the processor and on sizes alone, never on a clock, so that a run can be repeated to the bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_SMALL = 1_000_000  # multiplications: below, a call of oneDNN costs more than it saves


def _onednn_is_faster() -> bool:
    """Whether MKL leaves AVX-512 unused, as it does unless the processor is Intel's, and this PyTorch has oneDNN."""
    if not torch.backends.mkldnn.is_available() or not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        return False
    facts = torch.cpu.get_capabilities()
    return bool(facts.get("avx512_f")) and "Intel" not in facts.get("cpu_name", "")


ONEDNN = _onednn_is_faster()


class Linear(nn.Linear):
    """`nn.Linear` with the faster product."""

    def forward(self, x: Tensor) -> Tensor:
        return product(x, self.weight, self.bias)


def linear(inputs: int, outputs: int, *, parts: int | Sequence[int] = 1, biased: bool = True) -> Linear:
    """A linear map with Glorot initialization (Glorot and Bengio 2010) and a bias of 0.

    Several maps of one input may share its matrix, each with its own scale: `parts` is their number or their widths.
    """
    module = Linear(inputs, outputs, bias=biased)
    for part in module.weight.chunk(parts) if isinstance(parts, int) else module.weight.split(parts):
        nn.init.xavier_uniform_(part)
    if biased:
        nn.init.zeros_(module.bias)
    return module


def product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """...K, NK, N -> ...N: `F.linear`, by oneDNN where that is faster."""
    if x.numel() * weight.shape[0] < _SMALL or not _is_suitable(x, weight):
        return F.linear(x, weight, bias)
    if torch.is_grad_enabled() and any(one is not None and one.requires_grad for one in (x, weight, bias)):
        found: Tensor = _Product.apply(x, weight, bias)  # type: ignore[no-untyped-call]
        return found
    return _multiply_rows(x, weight, bias)


def multiply(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """RK, NK, N -> RN: the product without gradients, in any strides."""
    if x.numel() * weight.shape[0] < _SMALL or not _is_suitable(x, weight):
        return F.linear(x, weight, bias)
    try:
        found: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    except RuntimeError:  # oneDNN compiles code for new sizes, for which there may be no memory
        return F.linear(x, weight, bias)
    return found


def _multiply_rows(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """...K, NK, N -> ...N."""
    return multiply(x.reshape(-1, x.shape[-1]), weight, bias).view(*x.shape[:-1], len(weight))


def _is_suitable(x: Tensor, weight: Tensor) -> bool:
    """Whether oneDNN is faster here, and both are float32 on a CPU."""
    plain = x.dtype == weight.dtype == torch.float32 and x.device.type == weight.device.type == "cpu"
    return ONEDNN and plain and not torch.is_autocast_enabled("cpu")


class _Product(torch.autograd.Function):
    """The product with gradients, each of which is a product as well."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _multiply_rows(x, weight, bias)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        needs_x, needs_weight, needs_bias = ctx.needs_input_grad
        rows = gradient.reshape(-1, gradient.shape[-1])
        of_x = _multiply_rows(gradient, weight.t()) if needs_x else None
        of_weight = multiply(rows.t(), x.reshape(-1, x.shape[-1]).t()) if needs_weight else None
        return of_x, of_weight, rows.sum(0) if needs_bias else None
