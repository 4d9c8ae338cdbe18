"""Linear maps, and the product of matrices that they are made of, by the faster of two libraries.

PyTorch multiplies float32 matrices with MKL, which uses AVX-512 on Intel's processors only. PyTorch also contains
oneDNN, which uses it on AMD's too, and was measured to be 2.3 times as fast there, forward and backward. The choice
depends on the processor, its limits and on sizes alone, never on a clock, so that a run can be repeated to the bit.

For inference, oneDNN gets weights that were packed once, in the order in which it reads them: measured 2.3 times as
fast as unpacked for 5 rows and 8,000 outputs, 1.2 times for 32 rows, 1.05 times for 640, and for a single row 1.3 to 2
times from 131,072 weights on, which MKL multiplies with one thread. They take their memory twice.
"""

from __future__ import annotations

import resource
from collections.abc import Sequence
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.layers.packed import (
    LEAST_INT8,
    BFloat16Weight,
    InferencePrecision,
    Int8Weight,
    OneDNNWeight,
    PackedWeight,
    PackWeight,
)

_SMALL = 1_000_000  # multiplications: below, a call of oneDNN costs more than it saves
_SMALL_PACKED = 300_000  # the same with packed weights,
_LEAST_PACKED = 1 << 17  # or weights of a matrix that gains from packing even for a single row
_MOST_PACKED = 1 << 26  # weights of a matrix that is packed, at most


def _onednn_is_faster() -> bool:
    """Whether MKL leaves AVX-512 unused, as it does unless the processor is Intel's, and this PyTorch has oneDNN."""
    needed = "_linear_pointwise", "_reorder_linear_weight"
    if not torch.backends.mkldnn.is_available() or not all(hasattr(torch.ops.mkldnn, name) for name in needed):
        return False
    if resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY:
        return False  # where oneDNN gets no memory for its code, it may end the process with a signal
    facts = torch.cpu.get_capabilities()
    return bool(facts.get("avx512_f")) and "Intel" not in facts.get("cpu_name", "")


ONEDNN = _onednn_is_faster()


class Linear(nn.Linear):
    """`nn.Linear` with the faster product, and weights packed at the first call without gradients."""

    precision: InferencePrecision = "float32"  # of products without gradients
    _packed: tuple[tuple[PackWeight, int, int, int], PackedWeight] | None = None  # which weights, and these packed

    def forward(self, x: Tensor) -> Tensor:
        weight, bias = self.weight, self.bias
        kind = None if torch.is_grad_enabled() or self.training else self._kind(x, weight)
        if kind is None:
            return product(x, weight, bias)
        try:
            return self._pack(kind, weight)(x, bias)
        except RuntimeError:  # no memory for a second copy, or for the code that oneDNN compiles
            if self.precision != "float32":
                raise
            return product(x, weight, bias)

    def gains_from(self, precision: InferencePrecision) -> bool:
        """Whether the matrix is large enough for this precision."""
        return precision != "int8" or self.weight.numel() >= LEAST_INT8

    def _kind(self, x: Tensor, weight: Tensor) -> PackWeight | None:
        """The kind of packed weights that the product gains from; by shape and processor alone, never by a clock."""
        numbers = x.numel()
        if self.precision != "float32" and numbers:
            # By the matrix alone, never by the number of rows, which are to have the same outputs in any batch.
            low: PackWeight = Int8Weight if self.precision == "int8" else BFloat16Weight
            return low if self.gains_from(self.precision) else None
        few = numbers <= self.in_features or numbers * self.out_features < _SMALL_PACKED
        if not numbers or (few and weight.numel() < _LEAST_PACKED) or weight.is_inference():
            return None
        return OneDNNWeight if _is_suitable(x, weight) and weight.numel() <= _MOST_PACKED else None

    def _pack(self, kind: PackWeight, weight: Tensor) -> PackedWeight:
        """The packed weights, packed anew after any change."""
        which = kind, id(weight), weight.data_ptr(), 0 if weight.is_inference() else weight._version
        known = self._packed  # another thread may drop it
        if known is None or known[0] != which:
            known = self._packed = which, kind(weight.detach())
        return known[1]

    def train(self, mode: bool = True) -> Self:
        """Training changes weights, so that packed ones are dropped."""
        self._packed = None
        return super().train(mode)

    def __getstate__(self) -> dict[str, Any]:
        """What is copied and pickled: packed weights are made again."""
        return {name: value for name, value in self.__dict__.items() if name != "_packed"}


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
    plain = x.dtype == weight.dtype == torch.float32 and x.is_cpu and weight.is_cpu
    return ONEDNN and plain and not torch.is_autocast_enabled("cpu") and not torch._C._is_tracing()


def _gradient_of_weight(gradient: Tensor, x: Tensor) -> Tensor:
    """RN, RK -> NK. oneDNN copies the transposed first factor, so that is the narrower one."""
    if gradient.shape[1] <= x.shape[1]:
        return multiply(gradient.t(), x.t())
    return multiply(x.t(), gradient.t()).t()


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
        of_weight = _gradient_of_weight(rows, x.reshape(-1, x.shape[-1])) if needs_weight else None
        return of_x, of_weight, rows.sum(0) if needs_bias else None


class StepProduct:
    """The products of the steps of a loop with one weight, whose gradient is one product over all steps.

    Step by step, as autograd computes it, that gradient is a product per step and a sum of them all.
    """

    def __init__(self, weight: Tensor) -> None:
        self.steps: list[tuple[Tensor, Tensor]] = []  # of the backward pass: inputs and gradients
        gathers = torch.is_grad_enabled() and weight.requires_grad
        self.weight: Tensor = _Gathered.apply(weight, self.steps) if gathers else weight  # type: ignore[no-untyped-call]

    def __call__(self, x: Tensor, added: Tensor) -> Tensor:
        """RK, RN -> RN: the product with the weight, plus what is added."""
        if x.numel() * len(self.weight) < _SMALL or not _is_suitable(x, self.weight):
            return torch.addmm(added, x, self.weight.t())
        found: Tensor = _StepProduct.apply(x, added, self.weight, self.steps)  # type: ignore[no-untyped-call]
        return found


class _StepProduct(torch.autograd.Function):
    """One step. The weight's gradient is left to `_Gathered`, whose backward pass runs after those of all steps."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, added: Tensor, weight: Tensor, steps: list[tuple[Tensor, Tensor]]) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.steps = steps
        return multiply(x, weight).add_(added)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor, None, None]:
        x, weight = ctx.saved_tensors
        needs_x, _, needs_weight, _ = ctx.needs_input_grad
        if needs_weight:
            ctx.steps.append((x, gradient))
        return multiply(gradient, weight.t()) if needs_x else None, gradient, None, None


class _Gathered(torch.autograd.Function):
    """A weight as it is; its gradient is that of all steps, and that of products by PyTorch."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, steps: list[tuple[Tensor, Tensor]]) -> Tensor:
        ctx.steps = steps
        ctx.set_materialize_grads(False)
        return weight.view_as(weight)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor | None) -> tuple[Tensor | None, None]:
        if not ctx.steps:
            return gradient, None
        inputs, gradients = (torch.cat(parts) for parts in zip(*ctx.steps))
        ctx.steps.clear()
        found = _gradient_of_weight(gradients, inputs)
        return found if gradient is None else found + gradient, None
