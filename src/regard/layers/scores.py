"""How well a key answers a query. A score projects both sides, then compares; keys are projected as they arrive."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from regard.errors import InputError
from regard.layers.linear import matrix_per_head, per_head
from regard.layers.record import Inside


class Score(nn.Module):
    """Queries BHTK and keys BHSK -> BHTS. When `scale` is a number, it is a scaled dot product and may be fused."""

    scale: float | None = None
    first: float = 1.0  # how large the map to queries is drawn at first, where no scale keeps scores small

    def queries(self, q: Tensor) -> Tensor:
        """BHTK -> BHTK': what is compared of a query."""
        return q

    def keys(self, k: Tensor) -> Tensor:
        """BHSK -> BHSK': what is compared, and remembered, of a key."""
        return k

    def compare(self, q: Tensor, k: Tensor) -> Tensor:
        """BHTK', BHSK' -> BHTS: both sides already projected."""
        assert self.scale is not None
        return q @ k.transpose(-1, -2) * self.scale

    def inside(self, q: Tensor, k: Tensor) -> Inside:
        """BHTK', BHSK' -> what they are compared by, for someone who looks."""
        assert self.scale is not None
        return Inside("dot", q, k, self.scale)


@dataclass(frozen=True)
class Dot:
    """q·k (Luong), divided by the square root of the key width when scaled (Vaswani), times a factor."""

    scaled: bool = True
    factor: float = 1.0

    def build(self, query_width: int, key_width: int, heads: int = 1) -> Score:
        """The score over heads of these widths."""
        if query_width != key_width:
            raise InputError(f"a dot product needs equal widths, got {query_width} and {key_width}. Try general.")
        even = 1 / math.sqrt(key_width)  # what keeps the products of random vectors near 1
        return DotScore(self.factor * (even if self.scaled else 1.0), 1.0 if self.scaled else even)


class DotScore(Score):
    def __init__(self, scale: float, first: float) -> None:
        super().__init__()
        self.scale, self.first = scale, first


@dataclass(frozen=True)
class General:
    """q·Wk (Luong 2015, equation 8): one matrix between the two sides."""

    def build(self, query_width: int, key_width: int, heads: int = 1) -> Score:
        """The score over heads of these widths."""
        return GeneralScore(query_width, key_width, heads)


class GeneralScore(Score):
    scale = 1.0

    def __init__(self, query_width: int, key_width: int, heads: int) -> None:
        super().__init__()
        self.matrix = matrix_per_head(heads, key_width, query_width)

    def keys(self, k: Tensor) -> Tensor:
        return per_head(k, self.matrix)


@dataclass(frozen=True)
class ReducedRank:
    """(Uq)·(Vk): `general` with its matrix factored through a few dimensions."""

    rank: int = 16

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise InputError(f"rank must be 1 or more, got {self.rank}.")

    def build(self, query_width: int, key_width: int, heads: int = 1) -> Score:
        """The score over heads of these widths."""
        return ReducedRankScore(query_width, key_width, heads, self.rank)


class ReducedRankScore(Score):
    scale = 1.0

    def __init__(self, query_width: int, key_width: int, heads: int, rank: int) -> None:
        super().__init__()
        self.query_matrix = matrix_per_head(heads, query_width, rank)
        self.key_matrix = matrix_per_head(heads, key_width, rank)

    def queries(self, q: Tensor) -> Tensor:
        return per_head(q, self.query_matrix)

    def keys(self, k: Tensor) -> Tensor:
        return per_head(k, self.key_matrix)


@dataclass(frozen=True)
class Additive:
    """v·tanh(Wq + Uk) (Bahdanau 2014, appendix A.1.2); `inner` is the width inside, the query's when not said."""

    inner: int | None = None

    def build(self, query_width: int, key_width: int, heads: int = 1) -> Score:
        """The score over heads of these widths."""
        return AdditiveScore(query_width, key_width, heads, self.inner or query_width)


class AdditiveScore(Score):
    def __init__(self, query_width: int, key_width: int, heads: int, inner: int) -> None:
        super().__init__()
        self.query_matrix = matrix_per_head(heads, query_width, inner)
        self.key_matrix = matrix_per_head(heads, key_width, inner)
        self.vector = matrix_per_head(heads, inner, 1)

    def queries(self, q: Tensor) -> Tensor:
        return per_head(q, self.query_matrix)

    def keys(self, k: Tensor) -> Tensor:
        return per_head(k, self.key_matrix)

    def compare(self, q: Tensor, k: Tensor) -> Tensor:
        return per_head(torch.tanh(q[:, :, :, None] + k[:, :, None]), self.vector).squeeze(-1)

    def inside(self, q: Tensor, k: Tensor) -> Inside:
        return Inside("additive", q, k, vector=self.vector.squeeze(-1))


@dataclass(frozen=True)
class Uniform:
    """Every key answers alike: the mean of what is seen, which is attention without attending."""

    def build(self, query_width: int, key_width: int, heads: int = 1) -> Score:
        """The score over heads of these widths."""
        return UniformScore()


class UniformScore(Score):
    def compare(self, q: Tensor, k: Tensor) -> Tensor:
        # Nothing of either, yet made of both: every weight gets a gradient, which is zero.
        return 0 * (q[..., :1] + k[..., :1].transpose(-1, -2))

    def inside(self, q: Tensor, k: Tensor) -> Inside:
        return Inside("even", q, k)


AnyScore = Dot | General | ReducedRank | Additive | Uniform
